"""Pages are rendered from templates with escaped values."""

import re

import pytest

from ngsan.html import data_uri, render


def test_page_is_self_contained_and_escapes_values():
    page = render("base.html.j2", title="<b>ball & box</b>")
    assert "<title>&lt;b&gt;ball &amp; box&lt;/b&gt;</title>" in page
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=", page)


def test_invalid_utf8_names_are_escaped():
    assert "<title>a\\udcff</title>" in render("base.html.j2", title="a\udcff")


def test_missing_value_raises():
    with pytest.raises(Exception, match="'title' is undefined"):
        render("base.html.j2")


def test_data_uri():
    assert data_uri(b"\xff", "image/png") == "data:image/png;base64,/w=="
