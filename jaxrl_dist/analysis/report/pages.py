"""Fills the templates of pages: self-contained, no script, and all that a run folder says is text, never markup."""

import datetime
import functools
import itertools
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from jaxrl_dist.analysis import plots

TEMPLATES = pathlib.Path(__file__).with_name("templates")
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
# What matplotlib draws in is called by the name that the page's style has for it, in light and in dark.
_COLOURS = {
    **{colour.lower(): f"var(--c{i})" for i, colour in enumerate(plots.COLOURS)},
    **{plots.INK.lower(): "var(--ink)", plots.SOFT.lower(): "var(--soft)", plots.RULE.lower(): "var(--rule)"},
    **{colour.lower(): f"var(--{name})" for name, colour in plots.AREAS.items()},
}


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: of it.
        kind: class of the page's style, "" for none.
        small: further text, in small letters.
        number: of the colour of the run that it names.
        is_code: whether it is written as code.
    """

    text: str
    kind: str = ""
    small: str = ""
    number: int | None = None
    is_code: bool = False

    @property
    def swatch(self) -> str:
        """The page's classes of its run's line."""
        return "" if self.number is None else plots.entry(self.number, "").swatch


class Table(NamedTuple):
    """A table: what it shows, a heading per column, rows of cells, and `cards` where a row is one on a phone."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell | plots.Panel]]
    kind: str = ""


def number(text: str, small: str = "") -> Cell:
    """Makes the cell of a number, which no line ends in."""
    return Cell(text, "number", small)


def render(template: str, **values: Any) -> str:
    """Fills a template; its pictures are drawn where they stand, with names of their own."""
    numbers = itertools.count()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")

    def draw(panel: plots.Panel, kind: str = "chart") -> Any:
        import markupsafe

        # The only text that is taken for markup.
        return markupsafe.Markup(embedded(panel, f"p{next(numbers)}-", kind))

    return _environment().get_template(template).render(**values, draw=draw, now=now) + "\n"


def embedded(panel: plots.Panel, prefix: str, kind: str) -> str:
    """Draws a panel as an element of a page, in its colours and fonts, with words; a prefix keeps its names apart."""
    root = ElementTree.fromstring(plots.svg(panel))
    used = {name for element in root.iter() for value in element.attrib.values() for name in _names(value)}
    for parent in [*root.iter()]:
        for child in [*parent]:
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        given, title = dict(element.attrib), plots.title_in(element.get("id", ""))
        element.attrib.clear()
        for name, value in given.items():
            if name == "id" and value not in used:
                continue
            element.set("href" if name == _LINK else name, _attribute(name, value, prefix))
        if title:
            named = ElementTree.Element("title")
            named.text = title
            element.insert(0, named)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "class": kind, "role": "img", "aria-label": panel.words})
    title_of_all = ElementTree.Element("title")
    title_of_all.text = panel.title
    root.insert(0, title_of_all)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _names(value: str) -> list[str]:
    """Lists what an attribute refers to."""
    return ["".join(found) for found in re.findall(r"^#(.+)$|url\(#(.+?)\)", value)]


def _attribute(name: str, value: str, prefix: str) -> str:
    """Writes an attribute as the page has it."""
    if name == "id":
        return prefix + value
    if name == "style":
        kept = [part for part in value.split("; ") if not part.startswith("font-family")]
        value = re.sub("#[0-9a-f]{6}", lambda found: _COLOURS.get(found[0], found[0]), "; ".join(kept))
    elif name not in ("href", _LINK, "clip-path"):
        value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.5g}", " ".join(value.split()))
    return re.sub(r"(^|url\()#", rf"\1#{prefix}", value)


@functools.cache
def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
