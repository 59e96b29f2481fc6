"""Looks at a page as people do, in a browser: with a mouse, by keyboard, on a phone, in the dark."""

import contextlib
import functools
import html
import pathlib
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Ignored by git; to be looked at after a change of a page.
SCREENSHOTS = ROOT / "build" / "screenshots"
DESK, PHONE = (1280, 900), (390, 844)
_SCRIPT = (pathlib.Path(__file__).parent / "checks.js").read_text(encoding="utf-8")
# WCAG 2.2 at level AA, and of axe's best practices those about headings.
_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
_HEADINGS = ["heading-order", "empty-heading", "page-has-heading-one"]
_MOST_STOPS = 2000
# Of a longer page the top is enough to look at.
_TALLEST = 6_000


class Visit:
    """One open page, and what it did that it should not."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        page.route("**/*", self._route)
        page.on("console", lambda message: self._note(message.type == "error", f"console: {message.text}"))
        page.on("pageerror", lambda error: self._note(True, f"script: {error}"))
        page.on("requestfailed", lambda request: self._note(True, f"not loaded: {request.url}"))

    def _note(self, is_fault: bool, text: str) -> None:
        if is_fault:
            self.faults.append(text)

    def _route(self, route: Any) -> None:
        if urllib.parse.urlsplit(route.request.url).scheme in ("file", "data", "blob"):
            route.continue_()
        else:
            self.faults.append(f"request: {route.request.url}")
            route.abort()


@contextlib.contextmanager
def visit(browser: Any, address: str, size: tuple[int, int]) -> Iterator[Visit]:
    """Opens an address in a window of a size [width, height], in light."""
    width, height = size
    viewport = {"width": width, "height": height}
    with contextlib.closing(browser.new_context(viewport=viewport, color_scheme="light")) as context:
        visited = Visit(context.new_page())
        visited.page.goto(address)
        visited.page.evaluate(_SCRIPT)
        # What moves would be measured on its way.
        visited.page.add_style_tag(content="* { transition: none !important; scroll-behavior: auto !important }")
        yield visited


def examine(browser: Any, file: pathlib.Path, picture: str) -> list[str]:
    """Returns what is wrong with a page, at a desk and on a phone, in light and dark.

    Args:
        browser: Playwright's.
        file: of the page.
        picture: name of its screenshots, without width and scheme.
    """
    found = []
    for size in (DESK, PHONE):
        with visit(browser, file.as_uri(), size) as visited:
            page = visited.page
            save(page, f"{picture}-{size[0]}-light")
            faults = [*overflowing(page), *stuck_folds(page), *overflowing(page), *unreached(page), *violations(page)]
            faults += dead_links(page)
            page.emulate_media(color_scheme="dark")
            page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
            faults += violations(page, ["color-contrast"])
            save(page, f"{picture}-{size[0]}-dark")
            found += [f"{size[0]} px: {fault}" for fault in dict.fromkeys([*faults, *visited.faults])]
    return found


def save(page: Any, name: str) -> None:
    """Keeps a picture of the whole page."""
    path = SCREENSHOTS / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, _TALLEST)}
    page.screenshot(path=path, full_page=True, clip=clip)


def overflowing(page: Any) -> list[str]:
    """Returns what leaves the window sideways, and text that is cut off."""
    found = [f"overflows: {name}" for name in page.evaluate("checks.overflowing()")]
    return found + [f"cut off: {name}" for name in page.evaluate("checks.cut()")]


def stuck_folds(page: Any) -> list[str]:
    """Opens each fold with the mouse, closes it with Enter, opens it with Space; returns those that do not obey."""
    found = []
    for summary in page.query_selector_all("details > summary"):
        was, states = summary.evaluate("x => x.parentElement.open"), []
        summary.click()
        states.append(summary.evaluate("x => x.parentElement.open"))
        for key in ("Enter", "Space"):
            summary.press(key)
            states.append(summary.evaluate("x => x.parentElement.open"))
        if states != [not was, was, not was]:
            found.append(f"stuck fold: {summary.inner_text()}")
        if was:
            summary.click()
    return found


def unreached(page: Any) -> list[str]:
    """Walks the page with Tab from its top; returns what that misses, and stops at which nobody sees the focus."""
    page.evaluate("checks.start()")
    for i in range(_MOST_STOPS):
        page.keyboard.press("Tab")
        if i % 20 == 19 and page.evaluate("checks.isRound()"):
            return page.evaluate("checks.unreached()")
    return [f"Tab does not come round within {_MOST_STOPS} stops"]


def violations(page: Any, rules: list[str] | None = None) -> list[str]:
    """Returns what axe finds, with the elements in which it does.

    Args:
        page: Playwright's.
        rules: of axe; by default those of WCAG at level AA, and those about headings.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(_axe())
    chosen = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": _TAGS}
    more = {} if rules else {rule: {"enabled": True} for rule in _HEADINGS}
    # Without `preload` axe requests nothing, which would count as a request of the page.
    options = {"runOnly": chosen, "rules": more, "resultTypes": ["violations"], "preload": False}
    shown = "x => [x.id, x.nodes.slice(0, 4).map(n => n.html.slice(0, 160) + ' ' + (n.any[0]?.message ?? ''))]"
    found = page.evaluate(f"options => axe.run(document, options).then(r => r.violations.map({shown}))", options)
    return [f"axe: {rule}: {element}" for rule, elements in found for element in elements]


@functools.cache
def _axe() -> str:
    import axe_playwright_python

    return (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def dead_links(page: Any) -> list[str]:
    """Returns the links to files and sections that do not exist; those that lead away are not followed."""
    return [f"dead link: {link}" for link in dict.fromkeys(page.evaluate("checks.links()")) if not _leads(link)]


@functools.cache
def _leads(link: str) -> bool:
    parts = urllib.parse.urlsplit(link)
    if parts.scheme in ("http", "https", "mailto"):
        return True
    path = pathlib.Path(urllib.parse.unquote(parts.path))
    if parts.scheme != "file" or not path.is_file():
        return False
    return not parts.fragment or urllib.parse.unquote(parts.fragment) in _anchors(path)


@functools.cache
def _anchors(path: pathlib.Path) -> set[str]:
    found = re.findall(r"""\b(?:id|name)=["']([^"']+)["']""", path.read_text(encoding="utf-8"))
    return {html.unescape(anchor) for anchor in found}
