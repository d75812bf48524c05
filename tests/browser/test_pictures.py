"""Takes the documentation's pictures of the studio. STUDIO_IMAGES=docs/images keeps them."""

import pytest

from tests.browser.visitor import MAX_BYTES

pytestmark = pytest.mark.browser


@pytest.fixture
def keep(pictures):
    made = []

    def save(visitor, name):
        path = pictures / f"studio-{name}.png"
        visitor.picture(path)
        made.append(path)

    yield save
    for path in made:
        assert 10_000 < path.stat().st_size <= MAX_BYTES


def test_photo(visit, keep):
    visitor = visit(height=880)
    visitor.new_caption(lambda: visitor.page.get_by_label("Coffee", exact=True).click())
    visitor.page.locator("#sentence .word", has_text="coffee").click()
    visitor.page.mouse.move(5, 5)
    visitor.page.wait_for_timeout(400)
    keep(visitor, "photo")


def test_scene(visit, keep):
    visitor = visit("scene", height=1060)
    page = visitor.page
    ball = page.locator(".object[aria-label^='red ball']")
    x, y = visitor.centre(ball)
    goal_x, goal_y = visitor.centre(page.locator(".object[aria-label^='blue box']"))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 0.62 * (goal_x - x), y + 0.62 * (goal_y - y), steps=8)
    visitor.scene_caption()
    page.wait_for_timeout(800)
    keep(visitor, "scene")
    page.mouse.up()


def test_geometry(visit, keep):
    visitor = visit("geometry", height=1000, color_scheme="dark")
    visitor.settled()
    keep(visitor, "geometry")
    visitor.page.locator("#surfaces").scroll_into_view_if_needed()
    visitor.page.locator("#surfaces").evaluate("(card) => card.scrollIntoView()")
    visitor.page.wait_for_timeout(300)
    keep(visitor, "surfaces")


def test_phone(visit, keep):
    visitor = visit("scene", width=390, height=844, has_touch=True, is_mobile=True)
    visitor.settled()
    keep(visitor, "phone")
