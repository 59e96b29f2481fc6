"""The checks of pages find what is wrong with a page, and nothing where all is well."""

import pathlib
from typing import Any

import pytest
from browser import checks

pytestmark = pytest.mark.slow

# Each fault by the words with which it is named.
_FAULTS = {
    "overflows: div#wide": '<div id="wide" style="width: 2000px">wide</div>',
    "overflows: page of": '<div style="margin-left: -9px; width: 2000px; height: 9px"></div>',
    "overflows: p#left": '<p id="left" style="margin-left: -200px">left</p>',
    "cut off: div#cut": '<div id="cut" style="width: 50px; overflow: hidden; white-space: nowrap">much more text</div>',
    "cut off: text": '<svg width="60" height="20" role="img" aria-label="x"><text x="50" y="15">much more</text></svg>',
    "dead link: file": '<a href="none.html">nowhere</a>',
    "#none": '<a href="#none">no section</a>',
    "dead link: file:///": '<a href="page.html#none">no section of this file</a>',
    "request: https://example.org/x.js": '<script src="https://example.org/x.js"></script>',
    "request: http://example.org/x.png": '<img src="http://example.org/x.png" alt="x">',
    "not loaded": '<img src="none.png" alt="x">',
    "script: ": "<script>throw new Error('wrong')</script>",
    "console: ": "<script>console.error('wrong')</script>",
    "axe: color-contrast": '<p style="color: #999; background: #fff">pale</p>',
    "axe: image-alt": '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">',
    "axe: link-name": '<a href="#top"><span style="display: inline-block; width: 9px; height: 9px"></span></a>',
    "axe: label": '<input type="text">',
    "axe: heading-order": "<h4>too deep</h4>",
    "stuck fold": '<details><summary onclick="event.preventDefault()">stuck</summary>text</details>',
    "Tab misses button#unreached": '<button id="unreached" tabindex="-1">x</button><a href="#top">y</a>',
    "Tab misses input": '<label for="x">open</label><input type="checkbox" id="x" style="display: none">',
    "focused a#plain": '<a id="plain" style="outline: none" href="#top">no outline</a>',
    "focused a#hidden": '<a id="hidden" style="position: fixed; left: -500px" href="#top">out of sight</a>',
}
_PAGE = """<!doctype html><html lang="en"><head><title>x</title>
<link rel="icon" href="data:,"></head><body><main id="top"><h1>x</h1>{}</main></body></html>"""
_WELL = """<p>text <a href="#top">up</a> <a href="page.html">here</a> <a href="https://example.org">away</a></p>
<details><summary>fold</summary><p>more</p></details><details open><summary>open fold</summary><p>more</p></details>
<div style="overflow-x: auto" tabindex="0"><div style="width: 2000px">a wide table</div></div>
<label>name <input type="text"></label> <button>press</button> <h2>y</h2>"""


@pytest.fixture
def keep_no_pictures(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SCREENSHOTS", tmp_path / "pictures")


def examined(chromium: Any, folder: pathlib.Path, body: str) -> list[str]:
    page = folder / "page.html"
    page.write_text(_PAGE.format(body), encoding="utf-8")
    return checks.examine(chromium, page, "page")


@pytest.mark.usefixtures("keep_no_pictures")
@pytest.mark.parametrize("named", _FAULTS)
def test_a_fault_is_named(chromium: Any, tmp_path: pathlib.Path, named: str) -> None:
    found = examined(chromium, tmp_path, _FAULTS[named])
    assert any(named in fault for fault in found), found


@pytest.mark.usefixtures("keep_no_pictures")
def test_nothing_is_found_where_all_is_well(chromium: Any, tmp_path: pathlib.Path) -> None:
    assert examined(chromium, tmp_path, _WELL) == []
    kept = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert kept == {f"page-{width}-{scheme}.png" for width in (1280, 390) for scheme in ("light", "dark")}


@pytest.mark.usefixtures("keep_no_pictures")
def test_the_dark_is_examined_too(chromium: Any, tmp_path: pathlib.Path) -> None:
    style = "<style>@media (prefers-color-scheme: dark) { p { color: #222; background: #111 } }</style><p>dark</p>"
    found = examined(chromium, tmp_path, style)
    assert found and all("axe: color-contrast" in fault for fault in found)


@pytest.mark.usefixtures("keep_no_pictures")
def test_a_phone_is_examined_too(chromium: Any, tmp_path: pathlib.Path) -> None:
    found = examined(chromium, tmp_path, '<div style="width: 600px">wide for a phone</div>')
    assert found and all(fault.startswith("390 px: ") for fault in found)
