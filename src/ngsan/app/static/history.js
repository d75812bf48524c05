/* What was, so that it can be undone. States are never changed, only replaced. */

const MOST = 200;

export class History {
  constructor(state) {
    this.past = [];
    this.present = state;
    this.future = [];
  }

  /** A new state; of steps of one `kind` that follow each other, only the first is kept. */
  push(state, kind = null) {
    if (!kind || kind !== this.kind) this.past = [...this.past, this.present].slice(-MOST);
    this.kind = kind;
    this.present = state;
    this.future = [];
  }

  /** Ends a run of steps of one kind. */
  rest() { this.kind = null; }

  undo() { return this.move(this.past, this.future); }

  redo() { return this.move(this.future, this.past); }

  move(from, to) {
    if (!from.length) return null;
    to.push(this.present);
    this.present = from.pop();
    this.kind = null;
    return this.present;
  }
}
