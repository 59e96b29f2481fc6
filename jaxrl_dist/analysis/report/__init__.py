"""One self-contained HTML page about a set of runs: no network, no script, and only large videos beside it.

`studies` makes those about a study and about a search.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_dist.analysis.report import measured, pages, settings, tasks, videos
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.runs import view as run_view

_KINDS = {"failed": "bad", "going": "bad", "finished": "good"}


def write(views: Sequence[run_view.View], path: pathlib.Path, title: str = "", refused: Sequence[str] = ()) -> None:
    """Writes the page, whole or not at all.

    Args:
        views: of the runs, in the order in which they get their colours.
        path: of the page.
        title: of the page.
        refused: a line for each run that could not be read.

    Raises:
        OSError: it cannot be written.
    """
    folders.write_text(path, page(views, path.parent, title, refused))


def page(views: Sequence[run_view.View], folder: pathlib.Path, title: str = "", refused: Sequence[str] = ()) -> str:
    """Makes the page; `folder` is where it will lie, for links to what is too large to embed."""
    alone = views[0].settings
    title = title or (f"{alone['system']} on {alone['env']}" if len(views) == 1 else f"{len(views)} runs")
    members = [run_view.members(view) for view in views]
    lines = [line for of_run in members for line in of_run]
    # A program has the colour of its first combination.
    first = np.cumsum([0, *map(len, members)])[:-1].tolist()
    return pages.render(
        "report.html",
        title=title,
        lead="",
        overview=_overview(lines),
        troubles=_troubles(views, refused),
        tasks=tasks.of_views(lines),
        evaluations=tasks.last_evaluations(lines),
        **settings.differences(lines),
        everything=[settings.everything(view) for view in views],
        **measured.parts(list(zip(first, views, strict=True))),
        videos=videos.of(views, folder),
        origins=settings.origins(views),
    )


def _overview(views: Sequence[run_view.View]) -> pages.Table:
    """Makes the table that says of every run what it is, how it ended, and what it came to."""
    head = ("run", "system", "task", "layout", "state", "return", "steps per seed", "steps/s", "time", "bottleneck")
    rows: list[Sequence[Any]] = []
    for i, view in enumerate(views):
        given = [pages.number(str(view.settings.get(name, ""))) for name in ("system", "env", "layout")]
        state = pages.Cell(tasks.state(view), _KINDS.get(view.state, ""))
        steps, time = pages.number(f"{view.env_steps:,}"), pages.number(measured.clock(measured.seconds(view)))
        rows.append((tasks.name(view, i), *given, state, tasks.score(view), steps, measured.speed(view), time,
                     measured.bottleneck(view)))  # fmt: skip
    return pages.Table("What ran, and what came of it", head, rows, "cards")


def _troubles(views: Sequence[run_view.View], refused: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """Lists what went wrong, run by run."""
    found: list[tuple[str, Sequence[str]]] = [("Left out", refused)]
    for view in views:
        lines = list(view.troubles)
        if view.state == "going":
            steps = view.settings.get("steps", 0)
            lines.insert(0, f"no end yet: still going, or killed, at {view.env_steps:,} of {steps:,} steps")
        if not view.evaluation:
            lines.append("no evaluation yet")
        found.append((view.label, lines))
    return [(name, lines) for name, lines in found if lines]
