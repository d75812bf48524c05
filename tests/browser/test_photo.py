"""The photo view in a browser: drop, paste and choose files; words, options and downloads."""

import base64
import io
import json

import pytest
from PIL import Image

import ngsan
from ngsan.examples import EXAMPLES
from tests.browser.visitor import transfer

pytestmark = pytest.mark.browser

PATHS = {example.file: example.path for example in EXAMPLES}


@pytest.fixture(scope="module")
def captioner():
    return ngsan.load()


def drop(visitor, content, name="mine.jpg", kind="image/jpeg"):
    moved = transfer(visitor.page, content, name, kind)
    for event in ("dragenter", "dragover", "drop"):
        visitor.page.dispatch_event("body", event, {"dataTransfer": moved})


def test_examples_are_captioned(visit, captioner):
    visitor = visit()
    assert visitor.caption() == captioner.caption(EXAMPLES[0].path)
    found = visitor.new_caption(lambda: visitor.page.get_by_label("Gull", exact=True).click())
    assert found == captioner.caption(PATHS["gull.jpg"])
    assert EXAMPLES[5].credit in visitor.text("#photo-credit")


def test_drop_a_file(visit, captioner):
    visitor = visit("scene")
    content = PATHS["coffee.jpg"].read_bytes()
    found = visitor.new_caption(lambda: drop(visitor, content))
    assert found == captioner.caption(content)
    assert visitor.page.locator("#view-photo").is_visible()
    assert visitor.text("#photo-credit") == "mine.jpg"
    assert visitor.page.locator("#dropping").is_hidden()


def test_paste_an_image(visit, captioner):
    visitor = visit(permissions=["clipboard-read", "clipboard-write"])
    image = io.BytesIO()
    Image.open(PATHS["cat.jpg"]).save(image, "PNG")
    visitor.page.evaluate(
        """async (coded) => {
            const bytes = Uint8Array.from(atob(coded), (sign) => sign.charCodeAt(0));
            const blob = new Blob([bytes], { type: "image/png" });
            await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
        }""",
        base64.b64encode(image.getvalue()).decode(),
    )
    found = visitor.new_caption(lambda: visitor.page.keyboard.press("Control+V"))
    assert found == captioner.caption(image.getvalue())


def test_choose_several_files(visit, captioner):
    visitor = visit()
    before = visitor.page.locator(".thumb").count()
    chosen = [PATHS["pier.jpg"], PATHS["moose.jpg"]]
    found = visitor.new_caption(lambda: visitor.page.set_input_files("#files", chosen))
    assert found == captioner.caption(chosen[0])
    assert visitor.page.locator(".thumb").count() == before + 2


def test_words_show_their_attention(visit):
    visitor = visit()
    page = visitor.page
    words = page.locator("#sentence .word")
    overlay = page.locator("#picture canvas")
    assert "on" not in (overlay.get_attribute("class") or "")
    words.nth(1).hover()
    assert "on" in overlay.get_attribute("class")
    first = overlay.evaluate("(canvas) => canvas.toDataURL()")
    assert visitor.text("#word-status").startswith(f"“{words.nth(1).inner_text()}” looks most")
    words.nth(4).click()
    assert overlay.evaluate("(canvas) => canvas.toDataURL()") != first
    page.get_by_label("The next word").click()
    assert words.nth(5).get_attribute("aria-pressed") == "true"
    page.get_by_label("Play the words").click()
    visitor.until("document.querySelectorAll('#sentence .word')[6].classList.contains('on')")
    page.get_by_label("Pause").click()
    page.locator("#picture").hover(position={"x": 40, "y": 200})
    assert "was looked at most by" in visitor.text("#word-status")


def test_objects_are_drawn_over_the_picture(visit, captioner, tmp_path):
    visitor = visit()
    page = visitor.page
    boxes = page.locator("#picture .boxes")
    assert boxes.is_hidden()
    assert page.locator("#objects-text").is_hidden()
    visitor.new_caption(lambda: page.get_by_label("Dogs", exact=True).click())
    visitor.new_caption(lambda: page.get_by_label("Objects").check(force=True))
    wanted = [f"{one.label} {one.confidence:.0%}" for one in captioner.objects(PATHS["dogs.jpg"])]
    assert len(wanted) >= 2
    assert visitor.text("#objects-text").replace(" %", "%") == f"Objects: {', '.join(wanted)}"
    assert boxes.is_visible()
    first = boxes.locator("g").last.locator("rect").last.bounding_box()
    picture = page.locator("#picture").bounding_box()
    centre = (first["x"] + first["width"] / 2 - picture["x"]) / picture["width"]
    assert centre == pytest.approx(captioner.objects(PATHS["dogs.jpg"])[0].box[0], abs=0.02)
    visitor.picture(tmp_path / "objects.png")
    # Another photograph has its own, and without the switch there are none.
    visitor.new_caption(lambda: page.get_by_label("Mountains", exact=True).click())
    assert visitor.text("#objects-text") == "No objects found."
    page.get_by_label("Objects").uncheck(force=True)
    assert boxes.is_hidden()


def test_other_captions(visit):
    visitor = visit()
    page = visitor.page
    lines = page.locator("#best button")
    assert lines.count() == 3
    wanted = lines.nth(1).locator(".text").inner_text()
    lines.nth(1).click()
    assert visitor.caption() == wanted
    # The attention of another caption is computed when it is chosen.
    visitor.until("!document.getElementById('word-status').textContent.startsWith('Computing')")
    page.locator("#sentence .word").nth(2).hover()
    assert "looks most at" in visitor.text("#word-status")


def test_options(visit, captioner):
    from ngsan.predict.captioner import PHOTO_DECODING

    visitor = visit()
    page = visitor.page

    def short():
        page.locator("#option-max_length").fill("5")

    assert len(visitor.new_caption(short).split()) <= 5
    drawn = visitor.new_caption(lambda: page.get_by_label("Sampling").check(force=True))
    assert page.locator("#option-beam").is_hidden()
    again = visitor.new_caption(page.get_by_role("button", name="Draw again").click)
    assert {drawn, again}
    page.locator("summary", has_text="More").click()

    def set_prefix():
        page.get_by_label("Begins with").fill("a photo of")
        page.keyboard.press("Tab")

    assert visitor.new_caption(set_prefix).startswith("a photo of")
    assert PHOTO_DECODING.max_length == int(page.locator("#option-max_length").get_attribute("max"))


def test_downloads(visit):
    visitor = visit()
    page = visitor.page
    with page.expect_download() as waiting:
        page.locator("#save-json").click()
    saved = json.loads(waiting.value.path().read_text(encoding="utf-8"))
    assert saved["caption"] == visitor.caption()
    assert saved["image"] == EXAMPLES[0].file
    assert len(saved["attention"]) == len(saved["words"])
    pictures = []
    for word in (None, 1):
        if word is not None:
            page.locator("#sentence .word").nth(word).click()
        with page.expect_download() as waiting:
            page.locator("#save-picture").click()
        assert waiting.value.suggested_filename == "street-caption.png"
        pictures.append(Image.open(waiting.value.path()).convert("L"))
    plain, overlaid = (sum(each.histogram()[:60]) for each in pictures)
    assert overlaid > plain  # the overlay darkens cells with little attention


def test_invalid_files_are_reported(visit):
    visitor = visit()
    drop(visitor, b"hello", "notes.txt", "text/plain")
    assert "notes.txt: not an image" in visitor.text("#photo-error")
    visitor.expected = ("the server responded with a status of 4",)
    drop(visitor, b"not a JPEG at all", "broken.jpg")
    visitor.until("document.getElementById('photo-busy').hidden")
    assert visitor.page.locator("#photo-error").is_visible()
    assert visitor.text("#photo-error")


def test_busy_server_is_retried(visit):
    visitor = visit()
    visitor.expected = ("429",)
    answers = iter([429, 429])

    def busy(route):
        if next(answers, None):
            text = json.dumps({"error": "there is too much to do"})
            route.fulfill(status=429, headers={"Retry-After": "1"}, body=text)
        else:
            route.continue_()

    visitor.page.route("**/v1/caption", busy)
    visitor.page.evaluate("document.getElementById('spoken').textContent = ''")
    visitor.page.get_by_label("Cat", exact=True).click()
    visitor.until("document.getElementById('photo-error').textContent.includes('Trying again')")
    assert "There is too much to do." in visitor.text("#photo-error")
    visitor.until("document.getElementById('spoken').textContent !== ''")
    assert visitor.page.locator("#photo-error").is_hidden()


def test_token_is_requested_and_sent(visit):
    visitor = visit()
    visitor.expected = ("401",)
    tokens = []

    def guard(route):
        tokens.append(route.request.headers.get("authorization"))
        if tokens[-1] == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, body=json.dumps({"error": "a token is needed"}))

    visitor.page.route("**/v1/caption", guard)
    visitor.page.evaluate("document.getElementById('spoken').textContent = ''")
    visitor.page.get_by_label("Cat", exact=True).click()
    visitor.page.get_by_label("Token").fill("secret")
    visitor.page.keyboard.press("Enter")
    visitor.until("document.getElementById('spoken').textContent !== ''")
    assert tokens == [None, "Bearer secret"]


def test_wrong_token_is_reported(visit):
    visitor = visit()
    visitor.expected = ("401",)
    page = visitor.page

    def guard(route):
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, body=json.dumps({"error": "a token is needed"}))

    page.route("**/v1/caption", guard)
    page.evaluate("document.getElementById('spoken').textContent = ''")
    page.get_by_label("Cat", exact=True).click()
    page.locator("#token").wait_for()
    assert page.locator("#token-wrong").is_hidden()
    for wrong in ("wrong", "ключ € 1"):
        page.get_by_label("Token").fill(wrong)
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        page.locator("#token-wrong").wait_for()
    page.get_by_label("Token").fill("secret")
    page.keyboard.press("Enter")
    visitor.until("document.getElementById('spoken').textContent !== ''")


def test_examples_load_after_the_server_returns(visit):
    visitor = visit("scene")
    visitor.expected = ("ERR_FAILED",)
    page = visitor.page
    page.route("**/v1/examples", lambda route: route.abort())
    page.get_by_role("tab", name="Photo").click()
    page.locator("#photo-error").wait_for()
    page.unroute("**/v1/examples")
    page.get_by_role("tab", name="Scene").click()
    page.get_by_role("tab", name="Photo").click()
    visitor.until("document.querySelectorAll('#sentence .word').length > 0")
    assert page.locator("#gallery button").count() > 3
    assert page.locator("#photo-error").is_hidden()


def test_long_file_name_is_shortened(visit):
    visitor = visit()
    name = "long " * 50 + "end.png"
    content = PATHS["cat.jpg"].read_bytes()
    visitor.new_caption(lambda: drop(visitor, content, name))
    shown = visitor.text("#photo-credit")
    assert len(shown) < 70
    assert shown.startswith("long long")
    assert shown.endswith("end.png")
