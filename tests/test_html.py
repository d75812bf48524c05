"""Pages are rendered from templates, with every value escaped."""

import re

import pytest

from ngsan.html import data_uri, render


def test_a_page_needs_no_other_file_and_escapes_values():
    page = render("base.html.j2", title="<b>ball & box</b>")
    assert "<title>&lt;b&gt;ball &amp; box&lt;/b&gt;</title>" in page
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=", page)


def test_file_names_that_are_not_utf8_are_escaped():
    assert "<title>a\\udcff</title>" in render("base.html.j2", title="a\udcff")


def test_a_missing_value_is_an_error():
    with pytest.raises(Exception, match="'title' is undefined"):
        render("base.html.j2")


def test_data_uri():
    assert data_uri(b"\xff", "image/png") == "data:image/png;base64,/w=="
