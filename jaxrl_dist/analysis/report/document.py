"""A self-contained page of named sections: no network and no script, its style inside."""

import datetime
import pathlib
from collections.abc import Mapping

from jaxrl_dist.analysis.report.markup import Markup, element

_STYLE = pathlib.Path(__file__).with_name("page.css")


def page(title: str, lead: str, sections: Mapping[str, Markup | None]) -> str:
    """Makes a page.

    Args:
        title: its heading.
        lead: a sentence below the heading, "" for none.
        sections: sections by name; empty ones are left out.
    """
    shown = {name: body for name, body in sections.items() if body}
    links = [element("li", element("a", name, href=f"#part{i}")) for i, name in enumerate(shown)]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = element(
        "body",
        element("header", element("h1", title), element("p", lead) if lead else "",
                element("p", f"Written {now}.", class_="soft"),
                element("nav", element("ul", *links), aria_label="Parts of this page")),
        element("main", *(element("section", element("h2", name, id=f"part{i}"), body)
                          for i, (name, body) in enumerate(shown.items()))),
    )  # fmt: skip
    head = element(
        "head", element("meta", charset="utf-8"), element("title", title),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("style", Markup(_STYLE.read_text(encoding="utf-8"))),
    )  # fmt: skip
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"
