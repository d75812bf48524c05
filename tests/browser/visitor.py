"""A visitor of the page: actions, visible text, and problems reported by the browser."""

import base64
import io
import time
from urllib.parse import urlsplit

from PIL import Image

SECONDS = 8
MAX_BYTES = 300_000
RELATIONS = (
    "near",
    "far from",
    "bigger than",
    "smaller than",
    "beside",
    "over",
    "under",
    "inside",
    "left of",
    "right of",
    "above",
    "below",
)


class Visitor:
    def __init__(self, browser, studio, viewport, options):
        self.studio = studio
        self.problems = []
        self.context = browser.new_context(viewport=viewport, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * SECONDS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("request", self._request)
        self.page.add_init_script(
            "document.addEventListener('securitypolicyviolation',"
            " (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));"
        )
        self.expected = ()

    def _console(self, message):
        if message.type in ("error", "warning") and not any(
            text in message.text for text in self.expected
        ):
            self.problems.append(f"console: {message.text}")

    def _request(self, request):
        address = urlsplit(request.url)
        if address.scheme in ("data", "blob"):
            return
        if f"{address.scheme}://{address.netloc}" != self.studio:
            self.problems.append(f"request to another host: {request.url}")

    def leave(self):
        self.context.close()

    def go(self, view):
        response = self.page.goto(f"{self.studio}/#{view}")
        self.headers = response.headers if response else {}
        ready = {
            "photo": "document.querySelectorAll('#sentence .word').length > 0",
            "scene": "document.querySelectorAll('#compare .truth').length >= 4"
            " && document.querySelectorAll('#scene-sentence .word').length > 0",
            "geometry": "document.querySelectorAll('#panels .region').length > 0"
            " && document.querySelectorAll('.surface').length === 6",
        }
        self.until(ready[view])

    def until(self, expression):
        """Waits until an expression is true; the content policy forbids Playwright's own wait."""
        end = time.monotonic() + SECONDS
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"never came true: {expression}"
            self.page.wait_for_timeout(20)

    def settled(self):
        """Waits until no request is running."""
        self.until("!document.querySelector('[aria-busy=true]')")

    def text(self, selector):
        return " ".join(self.page.locator(selector).inner_text().split())

    def focused(self):
        return self.page.evaluate(
            "document.activeElement.id || document.activeElement.getAttribute('aria-label')"
            " || document.activeElement.textContent"
        )

    def caption(self):
        return self.text("#sentence")

    def new_caption(self, act):
        """The caption after an action that triggers a new one."""
        self.page.evaluate("document.getElementById('spoken').textContent = ''")
        act()
        self.until("document.getElementById('spoken').textContent !== ''")
        self.until("document.getElementById('photo-busy').hidden")
        return self.caption()

    def scene_caption(self):
        """The caption of the scene, after the answer to the last change."""
        self.settled()
        return self.text("#scene-sentence")

    def horizontal_overflow(self):
        """The number of pixels by which the page is wider than the window."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def picture(self, path):
        """Saves a screenshot; large ones are reduced to 256 colours."""
        content = self.page.screenshot()
        image = Image.open(io.BytesIO(content)).convert("RGB")
        image.save(path, optimize=True)
        if path.stat().st_size > MAX_BYTES:
            image.quantize(256, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)

    def centre(self, locator):
        box = locator.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def relation_of(caption):
    """The relation word of a scene's caption."""
    found = [word for word in RELATIONS if f" {word} " in caption]
    return max(found, key=len, default=None)


def transfer(page, content, name, kind):
    """A `DataTransfer` with a file, as for a drop or paste."""
    return page.evaluate_handle(
        """([coded, name, type]) => {
            const bytes = Uint8Array.from(atob(coded), (sign) => sign.charCodeAt(0));
            const moved = new DataTransfer();
            moved.items.add(new File([bytes], name, { type }));
            return moved;
        }""",
        [base64.b64encode(content).decode(), name, kind],
    )
