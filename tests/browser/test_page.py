"""The whole page: keyboard control, phones, dark mode, accessibility, and the content policy."""

import pytest

pytestmark = pytest.mark.browser

VIEWS = ("photo", "scene", "geometry")
PHONE = {"width": 360, "height": 740, "has_touch": True, "is_mobile": True}


def test_policy_is_strict_and_nothing_is_inline(visit):
    visitor = visit()
    policy = visitor.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert (
        visitor.page.locator("[style], style, script:not([src])").evaluate_all(
            "(all) => all.filter((each) => each.matches('style, script'))"
        )
        == []
    )
    # The policy is enforced: an injected script does not run.
    visitor.expected = ("policy:", "Content Security Policy")
    visitor.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.intruder = true";
            document.head.append(script);
        }"""
    )
    assert visitor.page.evaluate("window.intruder") is None


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_stored(visit, view):
    visitor = visit(view)
    assert visitor.page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]
    assert visitor.context.cookies() == []


def press(visitor, *keys):
    for key in keys:
        visitor.page.keyboard.press(key)


def tab_to(visitor, wanted, max_presses=40):
    """Presses Tab until `wanted` accepts the focused element."""
    for _ in range(max_presses):
        press(visitor, "Tab")
        now = visitor.focused()
        if wanted(now):
            return now
    raise AssertionError("the element was not focused")


def test_photo_view_by_keyboard(visit):
    visitor = visit()
    tab_to(visitor, lambda now: now == "tab-photo")
    tab_to(visitor, lambda now: now == "Street")
    before = visitor.caption()
    press(visitor, "ArrowRight")
    assert visitor.focused() == "Coffee"
    assert visitor.new_caption(lambda: press(visitor, "Enter")) != before
    first = visitor.caption().split()[0]
    tab_to(visitor, lambda now: now == first)
    press(visitor, "ArrowRight", "ArrowRight")
    third = visitor.caption().split()[2]
    assert visitor.text("#word-status").startswith(f"“{third}”")
    press(visitor, "Escape")
    assert visitor.text("#word-status").startswith("Point at a word")


def test_scene_view_by_keyboard(visit):
    visitor = visit("scene")
    tab_to(visitor, lambda now: now.startswith("red ball"))
    before = visitor.focused()
    press(visitor, "ArrowLeft", "Shift+ArrowDown")
    after = visitor.focused()
    assert after != before
    press(visitor, "+")
    assert visitor.focused() != after
    press(visitor, "Control+z", "Control+z")
    assert visitor.focused() == before
    caption = visitor.scene_caption()
    for _ in range(14):
        press(visitor, "Shift+ArrowLeft", "Shift+ArrowDown")
        if visitor.scene_caption() != caption:
            break
    assert visitor.scene_caption() != caption
    visitor.until("document.getElementById('scene-spoken').textContent.startsWith('NG-SAN: ')")
    press(visitor, "Delete")
    assert visitor.page.locator(".object").count() == 1
    tab_to(visitor, lambda now: now == "add-ball")
    press(visitor, "ArrowRight", "ArrowRight", "Enter")
    assert visitor.page.locator(".object").count() == 2
    assert "triangle" in visitor.focused()


def test_tabs_and_geometry_view_by_keyboard(visit):
    visitor = visit()
    tab_to(visitor, lambda now: now == "tab-photo")
    press(visitor, "ArrowRight", "ArrowRight")
    visitor.until("document.querySelectorAll('#panels .region').length > 0")
    assert visitor.page.url.endswith("#geometry")
    tab_to(visitor, lambda now: now == "mean of the heads")
    press(visitor, "ArrowRight")
    assert visitor.page.get_by_label("head 1", exact=True).is_checked()
    tab_to(visitor, lambda now: now == "the red ball")
    press(visitor, "ArrowLeft")
    assert "From the " in visitor.text("#readout")
    assert "red ball" not in visitor.text("#readout")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_no_horizontal_scrolling(visit, view, width):
    visitor = visit(view, width=width, height=740)
    assert visitor.horizontal_overflow() == 0


def test_dragging_by_touch_on_a_phone(visit):
    visitor = visit("scene", **PHONE)
    page = visitor.page
    assert visitor.horizontal_overflow() == 0
    sentence, board = (page.locator(at).bounding_box() for at in ("#scene-sentence", "#board svg"))
    # The caption is visible during a drag.
    assert sentence["y"] + sentence["height"] <= board["y"]
    ball = page.locator(".object[aria-label^='red ball']")
    ball.scroll_into_view_if_needed()
    before = ball.get_attribute("aria-label")
    x, y = visitor.centre(ball)
    touch = page.context.new_cdp_session(page)
    for kind, move in (("touchStart", 0), ("touchMove", 30), ("touchMove", 60), ("touchEnd", None)):
        points = [] if move is None else [{"x": x - move, "y": y + move}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert ball.get_attribute("aria-label") != before
    small = page.locator("button:visible").evaluate_all(
        "(all) => all.map((each) => [each.getBoundingClientRect(), each.textContent])"
        ".filter(([box]) => box.width < 24 || box.height < 24).map(([, text]) => text)"
    )
    assert small == []
    visitor.go("photo")
    assert page.get_by_role("button", name="Take one").is_visible()


CONTRAST = """() => {
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (!/, 0\\)|\\/ 0/.test(colour) && !/rgba|color|\\//.test(colour)) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const SKIPPED = "svg, :disabled, :has(> :disabled), .hidden, .skip";
    const poor = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!own || !element.checkVisibility() || element.closest(SKIPPED)) continue;
        const style = getComputedStyle(element);
        const [a, b] = [light(style.color), light(ground(element))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) poor.push(`${element.textContent.trim()}: ${ratio.toFixed(2)}`);
    }
    return poor;
}"""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(visit, view, scheme):
    visitor = visit(view, color_scheme=scheme, reduced_motion="reduce")
    visitor.settled()
    assert visitor.page.evaluate(CONTRAST) == []


def test_colour_scheme_can_be_chosen(visit):
    visitor = visit(color_scheme="light")

    def ground():
        return visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")

    system = ground()
    button = visitor.page.locator("#theme")
    button.click()
    assert button.get_attribute("aria-label") == "Colours: light"
    assert ground() == system
    button.click()
    assert button.get_attribute("aria-label") == "Colours: dark"
    assert ground() != system
    visitor.page.reload()
    assert ground() == system  # nothing was stored


def test_controls_have_accessible_names(visit):
    visitor = visit("scene")
    for view in VIEWS:
        visitor.go(view)
        nameless = visitor.page.locator(
            "button:visible, input:visible, select:visible, [role=button]:visible"
        ).evaluate_all(
            "(all) => all.filter((each) => !(each.ariaHidden || each.ariaLabel || each.title"
            " || each.textContent.trim() || each.labels?.[0]?.textContent.trim()))"
            ".map((each) => each.outerHTML)"
        )
        assert nameless == []


def test_screen_reader_labels(visit):
    visitor = visit()
    page = visitor.page
    for name in ("Beam", "Captions", "Favour length", "Fewest words", "Most words"):
        assert page.get_by_role("slider", name=name, exact=True).count() == 1
    beam = page.get_by_role("slider", name="Beam", exact=True)
    assert beam.get_attribute("aria-valuetext") == "3: beam size"
    assert page.get_by_role("img", name=f"Street: {visitor.caption()}").count() == 1
    assert page.locator("#word-status[aria-live=polite]").count() == 1
    visitor.go("scene")
    ball = "red ball: 78 % across, 24 % down, 16 % wide, 16 % high"
    assert page.get_by_role("button", name=ball).count() == 1
    word = page.locator("#scene-sentence .word").first
    assert word.get_attribute("aria-describedby") == "scene-status"
    visitor.go("geometry")
    assert page.get_by_role("img", name="Position at Δw = Δh = 0.5: the bias goes").count() == 1


def test_unreachable_server_is_reported(visit):
    visitor = visit("scene")
    visitor.expected = ("Failed to load resource", "net::ERR")
    visitor.page.route("**/v1/scene", lambda route: route.abort())
    visitor.page.get_by_role("button", name="Inside").click()
    visitor.until("!document.getElementById('scene-error').hidden")
    assert "cannot be reached" in visitor.text("#scene-error")
