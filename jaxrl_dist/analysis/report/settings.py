"""The parts of the page about settings: what differs, all values with their origins, commands and versions."""

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl_dist.analysis import plots
from jaxrl_dist.analysis.report import tasks
from jaxrl_dist.analysis.report.pages import Cell, Table
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.settings import fields, resolve

# The folder does not tell runs apart.
_PLACES = {"out"}
# Of more settings a row each reads better than a column each.
_MOST_COLUMNS = 6


class Origin(NamedTuple):
    """A run or setting by its name, the command that makes it again, and lines about commits and versions."""

    name: str
    command: str
    lines: Sequence[str]


def differences(lines: Sequence[run_view.View]) -> dict[str, Any]:
    """Makes the tables of the differences between runs, or between the combinations of one."""
    names = list(dict.fromkeys(name for line in lines for name in line.settings))
    different = [name for name in names if name not in _PLACES and len({_text(line, name) for line in lines}) > 1]
    of_all = [name for name in different if all(name in line.settings for line in lines)]
    of_some = [name for name in different if name not in of_all]
    return {
        "same": len(lines) > 1 and not different,
        "of_all": [_table("Settings that differ, with the origin of each value", of_all, lines)] if of_all else [],
        "of_some": [_by_setting("Settings that some of the runs do not have", of_some, lines)] if of_some else [],
    }


def everything(view: run_view.View) -> tuple[str, Table]:
    """Makes the table of all settings of a run, and its summary."""
    given = sum(origin == "flag" for origin in view.origins.values())
    rows = [_row(view, name) for name in view.settings]
    label = plots.plain(view.label, tasks.LETTERS)
    table = Table(f"Settings of {label}", ("setting", "value", "origin"), rows)
    return f"All {len(rows)} settings of {label}, {given} given by flags", table


def origins(views: Sequence[run_view.View]) -> list[Origin]:
    """Names the command that repeats each run, with its commit and versions."""
    made = []
    for view in views:
        lines = []
        for number, session in enumerate(view.software):
            versions = ", ".join(session.get("versions", ())) or "versions unknown"
            which = f"session {number + 1}: " if len(view.software) > 1 else ""
            lines.append(f"{which}commit {session.get('commit', 'unknown')}; {versions}")
        made.append(Origin(view.label, command(view), lines))
    return made


def command(view: run_view.View) -> str:
    """Returns the command that trains the run."""
    # What --layout=auto measured is given too, so that the run made again is that one.
    named = [name for name, origin in view.origins.items() if origin == "flag" or origin.startswith(resolve.AUTO)]
    words = [f"--{name}={fields.shown(view.settings[name])}" for name in named]
    return shlex.join(["python", "scripts/train.py", *words])


def _table(caption: str, names: Sequence[str], views: Sequence[run_view.View]) -> Table:
    """Makes a table of runs × settings, or of settings × runs where there are many."""
    if len(names) > _MOST_COLUMNS:
        return _by_setting(caption, names, views)
    rows = [(tasks.name(view, i), *(_cell(view, name) for name in names)) for i, view in enumerate(views)]
    return Table(caption, ("run", *names), rows, "cards")


def _by_setting(caption: str, names: Sequence[str], views: Sequence[run_view.View]) -> Table:
    """Makes a table of settings × runs."""
    rows = [(_named(name), *(_cell(view, name) for view in views)) for name in names]
    return Table(caption, ("setting", *(plots.plain(view.label) for view in views)), rows)


def _named(name: str) -> Cell:
    """Writes the name of a setting, which a narrow column may break after its owner."""
    return Cell(name, "name", is_code=True)


def _row(view: run_view.View, name: str) -> tuple[Cell, Cell, Cell]:
    """Makes the row of a setting, in bold letters where a flag gave it."""
    origin = view.origins[name]
    kind = "given" if origin == "flag" else ""
    return _named(name), Cell(_text(view, name), kind, is_code=True), Cell(origin, kind)


def _cell(view: run_view.View, name: str) -> Cell:
    """Returns a value with its origin below it."""
    if name not in view.settings:
        return Cell("–", "soft")
    return Cell(_text(view, name), small=view.origins[name], is_code=True)


def _text(view: run_view.View, name: str) -> str:
    return fields.shown(view.settings[name]) if name in view.settings else "–"
