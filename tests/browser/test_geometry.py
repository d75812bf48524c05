"""The geometry view in a browser: attention is content times geometry, and bias surfaces."""

import re

import pytest

pytestmark = pytest.mark.browser


def shares(visitor):
    """The table's rows: content, factor and attention by region."""
    rows = {}
    for line in visitor.page.locator("#numbers tbody tr").all():
        name, content, factor, together = line.locator("th, td").all_inner_texts()
        sign, size = factor.split(" ", 1)
        ratio = float(re.match(r"[\d.]+", size).group())
        value = [float(text.strip("<% ")) / 100 for text in (content, together)]
        rows[name] = (value[0], ratio if sign == "×" else 1 / ratio, value[1])
    return rows


def test_content_times_geometry_is_attention(visit):
    visitor = visit("geometry")
    page = visitor.page
    assert page.locator("#panels .panel").count() == 3
    seen = []
    for head in ("head 1", "head 2"):
        page.get_by_label(head, exact=True).check(force=True)
        rows = shares(visitor)
        assert set(rows) == {"the red ball", "the blue box", "the canvas"}
        assert sum(row[0] for row in rows.values()) == pytest.approx(1, abs=0.02)
        assert sum(row[2] for row in rows.values()) == pytest.approx(1, abs=0.02)
        for content, factor, together in rows.values():
            if content > 0.1:
                assert content * factor == pytest.approx(together, abs=0.02)
        seen.append(rows)
    assert seen[0] != seen[1]


def test_choosing_the_query_region(visit):
    visitor = visit("geometry")
    page = visitor.page
    before = shares(visitor)
    assert "From the red ball" in visitor.text("#readout")
    page.locator("#panels .panel").last.get_by_label("the blue box").click()
    assert shares(visitor) != before
    page.locator("#panels .panel").first.locator(".region").last.hover()
    shown = visitor.text("#readout")
    assert re.search("From the blue box to the .*: .* by content, .* by geometry", shown)


def test_model_without_geometry_has_one_panel(visit):
    visitor = visit("geometry")
    page = visitor.page
    page.locator("select[name=geometry-model]").select_option(label="SAN")
    visitor.until("document.querySelectorAll('#panels .panel').length === 1")
    assert page.locator("#surfaces").is_hidden()


def test_bias_surfaces_and_their_readout(visit):
    visitor = visit("geometry")
    page = visitor.page
    visitor.until("document.querySelectorAll('.surface').length === 6")
    page.get_by_label("head 1", exact=True).check(force=True)
    visitor.settled()
    assert "the bias of the red ball (Eq. 12)" in visitor.text("#surfaces-note")
    first = page.locator(".surface").first
    shown = {}
    for kind, place in (("position", 0), ("size", 3)):
        page.locator(".surface").nth(place).focus()
        page.keyboard.press("ArrowRight")
        shown[kind] = visitor.text("#surfaces-readout")
    assert re.fullmatch(r"Δx = 1\.1, Δy = 1\.0, Δw = Δh = 0\.5: bias [−\d.]+\.", shown["position"])
    assert re.fullmatch(r"Δw = 1\.1, Δh = 1\.0, Δx = Δy = 0\.5: bias [−\d.]+\.", shown["size"])
    of_ball = first.locator("image").get_attribute("href")
    page.locator("#panels .panel").last.get_by_label("the blue box").click()
    visitor.settled()
    assert page.locator(".surface image").first.get_attribute("href") != of_ball


def test_content_independent_surfaces_do_not_depend_on_the_region(visit):
    visitor = visit("geometry")
    page = visitor.page
    page.locator("select[name=geometry-model]").select_option(label="G-SAN, content-independent")
    visitor.until("document.getElementById('surfaces-note').textContent.includes('Eq. 11')")
    assert page.locator(".surface").count() == 6
    before = page.locator(".surface image").first.get_attribute("href")
    page.locator("#panels .panel").last.get_by_label("the blue box").click()
    visitor.settled()
    assert page.locator(".surface image").first.get_attribute("href") == before


def test_geometry_of_a_photograph(visit):
    visitor = visit("photo")
    page = visitor.page
    page.get_by_role("button", name="Its geometry").click()
    visitor.until("document.querySelectorAll('#panels .region').length === 3 * 64")
    assert page.locator("#panels .panel").count() == 3
    visitor.settled()
    assert re.search(r"the bias of the cell in row \d, column \d", visitor.text("#surfaces-note"))
    assert page.locator(".surface").count() == 6
    surface = page.locator(".surface image").first.get_attribute("href")
    before = visitor.text("#readout")
    page.locator("#panels .panel").last.get_by_label("row 2, column 3").click()
    assert visitor.text("#readout") != before
    page.get_by_label("layer 1", exact=True).check(force=True)
    page.get_by_label("head 3", exact=True).check(force=True)
    assert "by content" in visitor.text("#readout") or "on average" in visitor.text("#readout")
    visitor.settled()
    assert "the bias of the cell in row 2, column 3" in visitor.text("#surfaces-note")
    assert page.locator(".surface image").first.get_attribute("href") != surface


def test_signed_surfaces_have_negative_offsets(visit):
    visitor = visit("geometry")
    page = visitor.page
    page.locator("select[name=geometry-model]").select_option(label="NG-SAN, signed")
    visitor.until("document.getElementById('surfaces-note').textContent.includes('sides count')")
    page.locator(".surface").first.focus()
    page.keyboard.press("ArrowUp")
    shown = visitor.text("#surfaces-readout")
    # The tenth of 31 values from -3 to 3; up means a smaller y.
    assert shown.startswith("Δx = −1.0, Δy = −1.2, ")
    page.locator(".surface").nth(3).focus()
    page.keyboard.press("ArrowUp")
    assert visitor.text("#surfaces-readout").startswith("Δw = 1.0, Δh = 1.1, ")
