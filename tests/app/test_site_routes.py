"""The page, its files, the examples and the API description."""

import re

import pytest

from ngsan.app.site_routes import read_files
from ngsan.examples import EXAMPLES
from tests.app.stand_in import ask, make_app


@pytest.fixture(scope="module")
def app():
    return make_app()


def test_examples_are_served_from_the_package(app):
    listed = ask(app, "GET", "/v1/examples").json()
    assert [one["file"] for one in listed] == [example.file for example in EXAMPLES]
    for one, example in zip(listed, EXAMPLES, strict=True):
        assert one["credit"] == example.credit
        answer = ask(app, "GET", one["url"])
        assert answer.headers["content-type"] == "image/jpeg"
        assert answer.content == example.path.read_bytes()


def test_unchanged_files_answer_304(app):
    first = ask(app, "GET", "/examples/cat.jpg")
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = ask(app, "GET", "/examples/cat.jpg", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
    again = ask(app, "GET", "/examples/cat.jpg", headers={"if-none-match": '"other"'})
    assert again.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%00",
        "/examples/",
        "/examples/__init__.py",
        "/examples/CREDITS.md",
        "/examples/..%2f__main__.py",
    ],
)
def test_other_paths_are_not_served(app, path):
    assert ask(app, "GET", path).status_code == 404


def test_read_files_of_a_folder(tmp_path):
    (tmp_path / "more").mkdir()
    content = {"index.html": b"<p>", "a.js": b"1", "more/b.css": b"p{}", "c.svg": b"<svg/>"}
    for name, text in content.items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / ".hidden.js").write_bytes(b"")
    (tmp_path / "notes.py").write_bytes(b"")
    pages = read_files(tmp_path)
    assert {name: page.content for name, page in pages.items()} == content
    assert pages["a.js"].content_type == "text/javascript; charset=utf-8"
    assert pages["index.html"].content_type == "text/html; charset=utf-8"
    assert len({page.etag for page in pages.values()}) == 4


def test_openapi_description_is_complete(app):
    found = ask(app, "GET", "/openapi.json").json()
    assert set(found["paths"]) == {
        "/v1/caption",
        "/v1/explain",
        "/v1/scene",
        "/v1/bias",
        "/v1/examples",
        "/v1/models",
        "/healthz",
        "/metrics",
    }
    text = str(found)
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in found["components"]["schemas"]
    assert "HTTPValidationError" not in text
    for methods in found["paths"].values():
        for about in methods.values():
            assert about["summary"]
            assert about["description"]
            for status, answer in about["responses"].items():
                if status.startswith("4"):
                    assert "Problem" in str(answer["content"])


def test_api_page_is_self_contained(app):
    page = ask(app, "GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    text = page.text
    for path in ask(app, "GET", "/openapi.json").json()["paths"]:
        assert path in text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert loaded
    assert all(address.startswith("/") for address in loaded)
    assert "<script" not in text
    assert "style=" not in text
    assert "integer, 1 to 16<" in text
    assert "number, 0.01 to 100<" in text
    assert "9,007,199,254,740,991<" in text
    style = ask(app, "GET", "/static/docs.css")
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert "url(" not in style.text
    assert "@import" not in style.text


def test_browsers_get_error_pages(app):
    answer = ask(app, "GET", "/nothing", headers={"accept": "text/html,*/*"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>Error 404</h1>" in answer.text
    assert ask(app, "GET", "/nothing").headers["content-type"] == "application/json"
