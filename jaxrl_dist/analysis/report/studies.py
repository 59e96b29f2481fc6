"""The pages of a study and of a search: their tables with the scores of every seed, charts, failures and commands."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_dist.analysis import curves, plots, published, study_table
from jaxrl_dist.analysis.report import pages, settings, tasks
from jaxrl_dist.runs import folder as folders

Rows = Sequence[study_table.Row]

_NAME = "page.html"
_STATES = {"finished": "good", "failed": "bad"}


def write_study(
    folder: pathlib.Path,
    title: str,
    rows: Rows,
    drawn: Mapping[str, curves.Curve],
    marks: Mapping[str, published.Marks],
) -> None:
    """Writes the page of a study, whole or not at all.

    Args:
        folder: of the study.
        title: of the page.
        rows: of its table.
        drawn: label -> curve.
        marks: label -> what others have measured on its task.

    Raises:
        OSError: it cannot be written.
    """
    text, numbers = study_table.table(rows), {row["setting"]: i for i, row in enumerate(rows)}
    tables, learning = [], []
    for task, members in _by_task(rows).items():
        tables.append((task, _table("Settings, by their last evaluation", text, members, numbers)))
        lines = [(numbers[row["setting"]], row["setting"], drawn[row["setting"]]) for row in members]
        evaluated = [line for line in lines if len(line[-1].env_steps)]
        known = published.of_all([marks[row["setting"]] for row in members])
        learning += [tasks.of_curves(task, evaluated, known)] if evaluated else []
    made = pages.render(
        "study.html",
        title=title,
        lead=f"Study {folder}: {_finished(rows)} of {len(rows)} settings finished.",
        tables=tables,
        note=_note(text),
        failures=_failures(rows),
        tasks=learning,
        origins=[_origin(row) for row in rows],
    )
    folders.write_text(folder / _NAME, made)


def write_search(
    folder: pathlib.Path,
    title: str,
    rows: Rows,
    text: study_table.Table,
    searched: Sequence[plots.Setting],
    asked: int,
) -> None:
    """Writes the page of a search, whole or not at all.

    Args:
        folder: of the search.
        title: of the page.
        rows: of its trials.
        text: the table, the best trial first.
        searched: settings, with the values of the trials in the order of `rows`.
        asked: number of trials.

    Raises:
        OSError: it cannot be written.
    """
    labels = [row["setting"] for row in rows]
    returns = [np.array(row["eval_return_per_seed"], np.float64) for row in rows]
    trials = plots.trials(labels, returns, [row["state"] == "finished" for row in rows])
    best = next((row for row, trial in zip(rows, trials, strict=True) if trial.is_best), None)
    named = f"the best, {best['setting']}" if best else ""
    made = pages.render(
        "search.html",
        title=title,
        lead=f"Search {folder}: {_finished(rows)} of {asked} trials finished.",
        shown=_table("Trials, the best first", text, rows, {one.label: int(one.is_best) for one in trials}),
        note=_note(text),
        best=_origin(best) if best else None,
        failures=_failures(rows),
        legend=[plots.entry(1, named), plots.entry(0, "the other trials")],
        panels=[plots.against(setting, trials) for setting in searched],
        key=plots.SEARCH_NOTE,
    )
    folders.write_text(folder / _NAME, made)


def _finished(rows: Rows) -> int:
    return sum(row["state"] == "finished" for row in rows)


def _table(caption: str, text: study_table.Table, rows: Rows, numbers: Mapping[str, int]) -> pages.Table:
    """Makes the table of some rows in the order of the text, with the scores of the seeds as dots on one scale."""
    by_label = {row["setting"]: row for row in rows}
    values = [value for row in rows for value in (*row["eval_return_per_seed"], *(row["eval_return_ci95"] or ()))]
    scale = (min(values, default=0.0), max(values, default=1.0))
    made: list[Sequence[str | pages.Cell | plots.Panel]] = []
    for label, *cells, state in text.rows:
        if label in by_label:
            strip = _strip(by_label[label], scale, numbers[label])
            how = pages.Cell(state, _STATES.get(state, ""))
            made.append((pages.Cell(label, number=numbers[label]), how, strip, *map(_cell, cells)))
    ends = f"from {scale[0]:.4g} to {scale[1]:.4g}" if values else "scores"
    # The names of settings are long: a line may end behind their dot.
    head = (text.head[0], text.head[-1], ends, *(name.replace(".", ".\u200b") for name in text.head[1:-1]))
    return pages.Table(caption, head, made, "cards wide")


def _cell(text: str) -> pages.Cell:
    """Writes numbers and names so that a line may break between, but not within them."""
    return pages.Cell(text.replace(", ", ",\u00a0"), "numbers")


def _note(text: study_table.Table) -> str:
    """Makes the note below a table that explains its numbers."""
    return " ".join(text.note).replace(" %", "\u00a0%")


def _strip(row: study_table.Row, scale: tuple[float, float], number: int) -> str | plots.Panel:
    """Draws the scores of a row's seeds, "" where it has none."""
    scores, centre = row["eval_return_per_seed"], row["eval_return_iqm"]
    interval = row["eval_return_ci95"] or (centre, centre)
    return plots.strip(scores, centre, interval, scale, number) if scores else ""


def _failures(rows: Rows) -> list[str]:
    """Lists what went wrong."""
    return [f"{row['setting']}: {failure}" for row in rows for failure in row["failures"]]


def _origin(row: study_table.Row) -> settings.Origin:
    """Says by which command a setting is trained again, with environments, devices, commits and versions."""
    lines = [f"{name}: {', '.join(row[name])}" for name in study_table.LISTED if row[name]]
    return settings.Origin(row["setting"], row["command"], lines)


def _by_task(rows: Rows) -> dict[str, list[study_table.Row]]:
    """Groups the rows by environment; those of which nothing is finished are apart where there are several."""
    names = [", ".join(row["environments"]) for row in rows]
    known = list(dict.fromkeys(name for name in names if name))
    rest = known[0] if len(known) == 1 else "Nothing finished yet"
    groups: dict[str, list[study_table.Row]] = {name: [] for name in (*known, rest)}
    for name, row in zip(names, rows, strict=True):
        groups[name or rest].append(row)
    return {name: members for name, members in groups.items() if members}
