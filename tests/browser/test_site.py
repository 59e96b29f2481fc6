"""Every page of the site, opened from disk in a browser."""

import pathlib
from typing import Any

import pytest
from browser import checks

pytestmark = pytest.mark.slow

_SOURCES = ("docs/*.md", "docs/api/*.md", "docs/systems/*.md", "notebooks/*.ipynb", "benchmarks/reference/README.md")
_GENERATED = ("genindex", "py-modindex", "search", "_modules/index", "_modules/jaxrl_dist/types")
_FILES = [path.relative_to(checks.ROOT).with_suffix("") for glob in _SOURCES for path in checks.ROOT.glob(glob)]
PAGES = [*sorted(map(str, _FILES)), *_GENERATED]


def test_all_pages_are_examined(site: pathlib.Path) -> None:
    made = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
    # The pages of the sources of code differ in their code alone; one is examined.
    assert {name for name in made if not name.startswith("_modules/")} <= set(PAGES) <= made


@pytest.mark.parametrize("name", PAGES)
def test_a_page_serves_everyone(chromium: Any, site: pathlib.Path, name: str) -> None:
    found = checks.examine(chromium, site / f"{name}.html", f"site/{name.replace('/', '-')}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("size", [checks.DESK, checks.PHONE])
def test_the_search_answers_from_disk(chromium: Any, site: pathlib.Path, size: tuple[int, int]) -> None:
    with checks.visit(chromium, (site / "docs" / "metrics.html").as_uri(), size) as visited:
        page = visited.page
        if size == checks.PHONE:
            page.click("label[for=__navigation]:visible")
        page.fill("input[name=q]", "policy_lag")
        page.press("input[name=q]", "Enter")
        # What is found is shown one by one, and counted at the end.
        page.wait_for_selector("#search-results p.search-summary:not(:empty)")
        links = page.eval_on_selector_all("ul.search li a", "links => links.map(link => link.pathname)")
        assert {"flags", "metrics"} <= {pathlib.PurePath(link).stem for link in links}
        page.click("ul.search li a[href*='metrics.html'] >> nth=0")
        page.wait_for_selector("h1:has-text('Metrics')")
        assert not visited.faults


def test_the_search_says_that_nothing_is_found(chromium: Any, site: pathlib.Path) -> None:
    with checks.visit(chromium, (site / "search.html").as_uri() + "?q=nosuchwordanywhere", checks.DESK) as visited:
        visited.page.wait_for_selector("#search-results p.search-summary:not(:empty)")
        assert visited.page.query_selector_all("ul.search li a") == [] and not visited.faults


@pytest.mark.parametrize(
    ("size", "toggle", "drawer"),
    [
        (checks.PHONE, "__navigation", ".sidebar-drawer"),
        (checks.PHONE, "__toc", ".toc-drawer"),
        (checks.DESK, "__toc", ".toc-drawer"),
    ],
)
def test_drawers_open_and_are_walked_by_keyboard(
    chromium: Any, site: pathlib.Path, size: tuple[int, int], toggle: str, drawer: str
) -> None:
    with checks.visit(chromium, (site / "docs" / "training.html").as_uri(), size) as visited:
        page = visited.page
        link = page.locator(f"{drawer} a[href]").last
        assert not link.is_visible()
        tabs_until(page, f"#{toggle}")
        page.keyboard.press("Space")
        assert link.is_visible()
        assert not checks.unreached(page)
        tabs_until(page, f"#{toggle}")
        page.keyboard.press("Space")
        assert not link.is_visible() and not visited.faults


def test_the_tree_of_pages_unfolds_by_keyboard(chromium: Any, site: pathlib.Path) -> None:
    with checks.visit(chromium, (site / "docs" / "index.html").as_uri(), checks.DESK) as visited:
        inner = visited.page.locator(".sidebar-tree li.has-children ul a").first
        assert not inner.is_visible()
        tabs_until(visited.page, ".toctree-checkbox")
        visited.page.keyboard.press("Space")
        assert inner.is_visible() and not checks.unreached(visited.page)


def tabs_until(page: Any, selector: str) -> None:
    """Presses Tab until an element has the focus."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.activeElement.matches('{selector}')"):
            return
    raise AssertionError(f"Tab does not come to {selector}")
