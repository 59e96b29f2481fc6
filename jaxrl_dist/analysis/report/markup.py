"""HTML that is escaped by construction: text becomes markup only through `element`."""

import html
from collections.abc import Iterable, Sequence

_VOID = {"br", "img", "meta", "wbr"}


class Markup(str):
    """Finished HTML; any other text is escaped when it is put in."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float | bool) -> Markup:
    """Makes one element.

    Args:
        name: of the element.
        *children: markup, or text to escape.
        **attributes: by name; a last underscore is dropped, others become dashes, and a false one is left out.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not False
    )
    return Markup(f"<{name}{given}>" + ("" if name in _VOID else f"{joined(children)}</{name}>"))


def joined(parts: Iterable[str], separator: str = "") -> Markup:
    """Puts markup and text one after the other."""
    return Markup(separator.join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], class_: str = "") -> Markup:
    """Makes a table that scrolls sideways in a frame of its own; the first cell of each row is its heading.

    Args:
        caption: description of its contents, also for readers who cannot see it.
        head: one heading per column.
        rows: rows of cells, as long as the head.
        class_: `cards` makes each row a block on narrow screens.
    """
    columns = element("tr", *(element("th", text, scope="col", role="columnheader") for text in head), role="row")
    body = []
    for first, *others in rows:
        cells = [element("th", first, scope="row", role="rowheader")]
        cells += [
            element("td", cell, role="cell", data_label=name) for name, cell in zip(head[1:], others, strict=True)
        ]
        body.append(element("tr", *cells, role="row"))
    inner = element(
        "table", element("caption", caption), element("thead", columns, role="rowgroup"),
        element("tbody", *body, role="rowgroup"), role="table", class_=class_ or False,
    )  # fmt: skip
    return element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def details(summary: str, *children: str) -> Markup:
    """Makes a part that opens and closes."""
    return element("details", element("summary", summary), *children)
