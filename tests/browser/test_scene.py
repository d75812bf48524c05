"""The scene view in a browser: moving shapes changes the captions."""

import io

import pytest
from PIL import Image, ImageChops

from ngsan.data.synthetic.render import render
from ngsan.data.synthetic.scenes import Scene, Thing, read_claim
from tests.browser.visitor import relation_of

pytestmark = pytest.mark.browser

BALL = ".object[aria-label^='red ball']"
BOX = ".object[aria-label^='blue box']"


def card(visitor, name):
    return visitor.page.locator("#compare button").filter(
        has=visitor.page.locator(".who", has_text=name)
    )


def test_dragging_changes_captions_of_models_with_geometry_only(visit):
    visitor = visit("scene")
    page = visitor.page
    before = relation_of(visitor.scene_caption())
    x, y = visitor.centre(page.locator(BALL))
    goal_x, goal_y = visitor.centre(page.locator(BOX))
    page.mouse.move(x, y)
    page.mouse.down()
    seen = []
    for step in range(1, 16):
        share = step / 16
        page.mouse.move(x + share * (goal_x - x), y + share * (goal_y - y), steps=2)
        seen.append(relation_of(visitor.scene_caption()))
        if seen[-1] != before:
            break
    page.mouse.up()
    assert seen[-1] is not None
    assert seen[-1] != before, f"relations during the drag: {seen}"
    assert "noticed the move: changed" in card(visitor, "NG-SAN").first.inner_text()
    for place, blind in enumerate(("SAN", "N-SAN")):
        text = page.locator("#compare button").nth(place).inner_text()
        assert text.startswith(blind)
        assert "has not noticed the move" in text
    page.keyboard.press("Control+Z")
    assert relation_of(visitor.scene_caption()) == before


def test_drag_never_queues_requests(visit):
    visitor = visit("scene")
    page = visitor.page
    open_requests, max_open, sent = set(), [0], [0]

    def on_request(request):
        if request.url.endswith("/v1/scene"):
            open_requests.add(request)
            max_open[0] = max(max_open[0], len(open_requests))
            sent[0] += 1

    page.on("request", on_request)
    page.on("requestfinished", lambda request: open_requests.discard(request))
    page.on("requestfailed", lambda request: open_requests.discard(request))
    x, y = visitor.centre(page.locator(BALL))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 200, y + 100, steps=100)
    page.mouse.up()
    visitor.scene_caption()
    assert sent[0] > 3
    # One for the chosen model and one for the compared models.
    assert max_open[0] <= 2


def test_shapes_equal_the_renderer(visit):
    visitor = visit("scene")
    page = visitor.page
    page.get_by_role("button", name="Three").click()
    visitor.scene_caption()
    page.evaluate("document.activeElement.blur()")
    size = 512
    page.set_viewport_size({"width": 1600, "height": 1200})
    page.locator("#board svg").evaluate(
        "(svg, size) => { svg.style.cssText = `width: ${size}px; max-width: none; border: 0;"
        " border-radius: 0` }",
        size,
    )
    shown = Image.open(io.BytesIO(page.locator("#board svg").screenshot())).convert("RGB")
    things = (
        Thing("red", "triangle", (0.25, 0.3, 0.2, 0.2)),
        Thing("blue", "ring", (0.72, 0.34, 0.26, 0.26)),
        Thing("yellow", "star", (0.48, 0.76, 0.18, 0.18)),
    )
    drawn = render(Scene(things), size)
    difference = ImageChops.difference(shown.resize((size, size)), drawn).convert("L")
    # Only anti-aliased edges may differ.
    assert sum(difference.histogram()[48:]) < 0.004 * size * size


def test_add_recolour_resize_delete_undo(visit):
    visitor = visit("scene")
    page = visitor.page
    things = page.locator(".object")
    assert things.count() == 2
    page.get_by_label("Add a star").click()
    assert things.count() == 3
    assert "star" in visitor.focused()
    page.locator("#inspector").get_by_label("purple").check(force=True)
    star = page.locator(".object[aria-label^='purple star']")
    assert star.count() == 1
    label = star.get_attribute("aria-label")
    x, y = visitor.centre(page.locator(".handle").nth(2))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 50, y + 40, steps=4)
    page.mouse.up()
    assert star.get_attribute("aria-label") != label
    claim = read_claim(visitor.scene_caption())
    assert claim is not None
    page.get_by_label("Delete the chosen shape").click()
    assert things.count() == 2
    for _ in range(4):
        page.get_by_label("Undo").click()
    assert things.count() == 2
    page.get_by_label("Redo").click()
    assert things.count() == 3


def test_models_and_signed_geometry(visit):
    visitor = visit("scene")
    page = visitor.page
    page.get_by_role("button", name="Left and right").click()
    sign = page.get_by_label("Signed geometry")
    page.locator("#scene-models").get_by_label("N-SAN", exact=True).check(force=True)
    assert sign.is_disabled()
    page.locator("#scene-models").get_by_label("NG-SAN").check(force=True)
    sign.check(force=True)
    visitor.scene_caption()
    assert "NG-SAN, signed" in visitor.text("#scene-verdict")
    pressed = page.locator("#compare [aria-pressed=true]")
    assert "NG-SAN, signed" in pressed.inner_text()
    # Eq. 8 does not distinguish a mirrored scene.
    unsigned = {}
    for moment in ("before", "after"):
        visitor.scene_caption()
        unsigned[moment] = [
            card.locator(".said").inner_text()
            for card in page.locator("#compare button").all()
            if "signed" not in card.locator(".who").inner_text()
        ]
        page.get_by_label("Mirror the scene left to right").click()
    assert len(unsigned["before"]) == 4
    assert unsigned["before"] == unsigned["after"]


def test_words_fade_objects_with_little_attention(visit):
    visitor = visit("scene")
    page = visitor.page
    page.locator("#scene-sentence .word").nth(1).hover()
    faded = page.locator(".object").evaluate_all("(all) => all.map((each) => each.style.opacity)")
    assert max(map(float, faded)) == 1
    assert "looks at the" in visitor.text("#scene-status")
    page.mouse.move(5, 5)
    faded = page.locator(".object").evaluate_all("(all) => all.map((each) => each.style.opacity)")
    assert faded == ["", ""]


def test_stale_captions_are_removed_when_the_server_is_unreachable(visit):
    visitor = visit("scene")
    visitor.expected = ("ERR_FAILED",)
    page = visitor.page
    visitor.scene_caption()
    before = page.locator("#compare .said").all_inner_texts()
    page.route("**/v1/scene", lambda route: route.abort())
    page.locator(BALL).focus()
    page.keyboard.press("ArrowLeft")
    page.locator("#scene-error").wait_for()
    visitor.settled()
    assert visitor.text("#scene-verdict") == ""
    assert page.locator("#compare .truth").count() == 0
    page.unroute("**/v1/scene")
    page.keyboard.press("ArrowRight")
    visitor.settled()
    assert page.locator("#scene-error").is_hidden()
    assert page.locator("#compare .said").all_inner_texts() == before


def test_only_moves_are_reported_as_noticed(visit):
    """A model without geometry notices a new object, but that is not a move."""
    visitor = visit("scene")
    page = visitor.page
    page.get_by_role("button", name="Inside").click()
    visitor.scene_caption()
    page.get_by_role("button", name="Add a star").click()
    visitor.scene_caption()
    assert "notice" not in visitor.text("#compare").lower()
    page.get_by_role("button", name="Mirror the scene left to right").click()
    visitor.scene_caption()
    assert "has not noticed the move" in page.locator("#compare button").first.inner_text()


def test_other_mouse_buttons_do_not_resize(visit):
    """Browsers send no pointerup for a press that opens a context menu."""
    visitor = visit("scene")
    page = visitor.page
    page.locator(BALL).click()
    press = {"button": 2, "pointerId": 1, "bubbles": True}
    page.locator(".handle").first.dispatch_event("pointerdown", press)
    x, y = visitor.centre(page.locator("#board svg"))
    page.mouse.click(x, y)
    assert page.locator(".handle").count() == 0
