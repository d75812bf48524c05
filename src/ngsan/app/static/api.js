/* Requests to the server that this page came from. */

import { byId } from "./dom.js";

/** The longest wait that a busy server may ask for before the page gives up and says so. */
const [PATIENCE_SECONDS, TRIES] = [8, 4];

let token = "";

/** What went wrong, as a sentence for people. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const pause = (seconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, 1000 * seconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); });
});

/** Asks for the token of a server that wants one; it is kept in memory only. */
const askToken = () => new Promise((resolve) => {
  const dialog = byId("token");
  byId("token-wrong").hidden = !token;
  dialog.returnValue = "";
  dialog.addEventListener("close", () => {
    const text = byId("token-value").value.trim();
    // A header takes no other letters; a question mark makes it a token that is wrong.
    const given = dialog.returnValue === "use" ? text.replace(/[^!-~]/g, "?") : "";
    byId("token-value").value = "";
    resolve(given);
  }, { once: true });
  if (!dialog.open) dialog.showModal();
});
let asking = null;

const asSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

const sentence = async (response) => {
  try {
    const { error } = await response.json();
    if (error) return asSentence(String(error));
  } catch { /* no JSON: the status must do */ }
  return `The server answered ${response.status} ${response.statusText}`.trim() + ".";
};

/** One request, again after a while where the server is busy; a `Response` that is fine. */
const send = async (path, { waiting, signal, ...rest } = {}) => {
  for (let tries = 1; ; tries++) {
    const headers = { ...rest.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    let response;
    try {
      // Relative, so that the page also works behind a prefix of another server.
      response = await fetch(path.replace(/^\//, ""), { ...rest, headers, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal("The server cannot be reached. Is ngsan serve still running?", 0);
    }
    if (response.ok) return response;
    if (response.status === 401) {
      asking ??= askToken().finally(() => { asking = null; });
      const given = await asking;
      if (!given) throw new Refusal(await sentence(response), 401);
      token = given;
      continue;
    }
    const busy = response.status === 429 || response.status === 503;
    const seconds = Math.max(0.2, Number(response.headers.get("Retry-After")) || 1);
    if (!busy || tries === TRIES || seconds > PATIENCE_SECONDS) {
      throw new Refusal(await sentence(response), response.status);
    }
    const text = await sentence(response);
    waiting?.(`${text} Trying again in ${Math.ceil(seconds)} s.`);
    await pause(seconds, signal);
  }
};

export const get = async (path, options) => (await send(path, options)).json();

export const post = async (path, body, options = {}) => {
  const form = body instanceof FormData;
  const response = await send(path, {
    ...options,
    method: "POST",
    body: form ? body : JSON.stringify(body),
    headers: form ? {} : { "Content-Type": "application/json" },
  });
  return response.json();
};

export const file = async (path, options) => (await send(path, options)).blob();

const isAbort = (error) => error?.name === "AbortError";

/**
 * Of many wishes, one at a time is under way and only the newest waits: answers follow a drag as
 * fast as the server gives them, and there is never a queue.
 */
export class Latest {
  /** `element` is marked as busy while something is under way. */
  constructor(work, element) {
    this.work = work;
    this.element = element;
    this.busy = false;
    this.next = null;
  }

  ask(wish) {
    this.next = { wish };
    if (!this.busy) this.run();
  }

  async run() {
    this.busy = true;
    this.element.setAttribute("aria-busy", "true");
    try {
      while (this.next) {
        const { wish } = this.next;
        this.next = null;
        await this.work(wish, () => this.next === null);
      }
    } finally {
      this.busy = false;
      this.element.setAttribute("aria-busy", "false");
    }
  }
}

/** Of many wishes only the newest counts: it puts an end to the one under way. */
export class Newest {
  constructor(work, element) {
    this.work = work;
    this.element = element;
    this.control = null;
  }

  async ask(...wish) {
    this.stop();
    const control = new AbortController();
    this.control = control;
    this.element.setAttribute("aria-busy", "true");
    try {
      return await this.work(control.signal, ...wish);
    } catch (error) {
      if (!isAbort(error)) throw error;
      return null;
    } finally {
      if (this.control === control) this.stop();
    }
  }

  stop() {
    this.control?.abort();
    this.control = null;
    this.element.setAttribute("aria-busy", "false");
  }
}
