"""One self-contained HTML page about a set of runs: no network, no script, and only large videos beside it.

`studies` makes those about a study and about a search.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from jaxrl_dist.analysis.report import curves, document, measured, settings, videos
from jaxrl_dist.analysis.report.markup import Markup, details, element, joined, table
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.runs import view as run_view

_BAD = {"failed", "going"}


def write(views: Sequence[run_view.View], path: pathlib.Path, title: str = "", refused: Sequence[str] = ()) -> None:
    """Writes the page, whole or not at all.

    Args:
        views: runs, in the order in which they get their colours.
        path: file of the page.
        title: title of the page.
        refused: a line for each run that could not be read.

    Raises:
        OSError: it cannot be written.
    """
    folders.write_text(path, page(views, path.parent, title, refused))


def page(views: Sequence[run_view.View], folder: pathlib.Path, title: str = "", refused: Sequence[str] = ()) -> str:
    """Makes the page; `folder` is the folder of the page, for links to files that are too large to embed."""
    title = title or (
        f"{views[0].settings['system']} on {views[0].settings['env']}" if len(views) == 1 else f"{len(views)} runs"
    )
    members = [run_view.members(view) for view in views]
    lines = [line for of_run in members for line in of_run]
    # A program has the colour of its first combination.
    first = np.cumsum([0, *map(len, members)])[:-1].tolist()
    sections = {
        "Runs": _overview(lines),
        "Failures and warnings": _troubles(views, refused),
        "Learning curves": curves.section(lines),
        "Final evaluation": curves.evaluation(lines),
        "Settings": settings.section(lines, views),
        "Throughput and placement": measured.section(list(zip(first, views, strict=True))),
        "Videos": videos.section(views, folder),
        "Commands and versions": settings.origins(views),
    }
    return document.page(title, "", sections)


def _overview(views: Sequence[run_view.View]) -> Markup:
    """Makes the table of all runs, with their state and their last return."""
    head = ("run", "system", "task", "layout", "state", "return", "steps per seed", "steps/s", "time", "bottleneck")
    rows = []
    for i, view in enumerate(views):
        settings_, state = view.settings, curves.state(view)
        rows.append((
            curves.name(view, i), settings_["system"], settings_["env"], settings_.get("layout", ""),
            element("span", state, class_="bad" if view.state in _BAD else "good" if view.state == "finished" else ""),
            curves.score(view), element("span", f"{view.env_steps:,}", class_="number"),
            measured.speed(view), measured.clock(measured.seconds(view)), measured.bottleneck(view),
        ))  # fmt: skip
    note = element(
        "p", "The return is the interquartile mean of the last evaluation, with its 95 % interval over seeds, or over "
        "episodes where there is one seed.", class_="soft",
    )  # fmt: skip
    return joined([table("What ran, and what came of it", head, rows, "cards"), note])


def _troubles(views: Sequence[run_view.View], refused: Sequence[str]) -> Markup | None:
    """Lists what went wrong, run by run."""
    lists = [element("h3", "Left out"), element("ul", *(element("li", line) for line in refused))] if refused else []
    for view in views:
        lines = list(view.troubles)
        if view.state == "going":
            lines.insert(
                0,
                f"no end yet: still going, or killed, at {view.env_steps:,} of {view.settings.get('steps', 0):,} steps",
            )
        if not view.evaluation:
            lines.append("no evaluation yet")
        items = element("ul", *(element("li", line) for line in lines))
        long = len(lines) > 12
        body = details(f"{len(lines)} lines", items) if long else items
        lists += [element("h3", view.label), body] if lines else []
    return joined(lists) if lists else None
