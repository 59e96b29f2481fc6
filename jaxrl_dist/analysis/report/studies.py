"""The pages of a study and of a search: their tables with the scores of every seed, charts, failures and commands."""

import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_dist.analysis import plots, search_plots, study_table
from jaxrl_dist.analysis.report import charts, curves, document
from jaxrl_dist.analysis.report.markup import Markup, element, joined, table
from jaxrl_dist.runs import folder as folders

Rows = Sequence[study_table.Row]

_NAME = "page.html"
_STATES = {"finished": "good", "failed": "bad"}


def write_study(folder: pathlib.Path, title: str, rows: Rows, drawn: Mapping[str, plots.Curve]) -> None:
    """Writes the page of a study, whole or not at all.

    Args:
        folder: folder of the study.
        title: title of the page.
        rows: rows of its table.
        drawn: label -> curve.

    Raises:
        OSError: it cannot be written.
    """
    text, numbers = study_table.table(rows), {row["setting"]: i for i, row in enumerate(rows)}
    results, learning = [], []
    for task, members in _by_task(rows).items():
        results += [element("h3", task), _table("Settings, by their last evaluation", text, members, numbers)]
        lines = [curves.Drawn(numbers[row["setting"]], row["setting"], drawn[row["setting"]]) for row in members]
        evaluated = [one for one in lines if len(one.curve.env_steps)]
        learning += [curves.task(task, evaluated)] if evaluated else []
    lead = f"Study {folder}: {_finished(rows)} of {len(rows)} settings finished."
    sections = {
        "Results": joined([*results, _note(text)]),
        "Failures": _failures(rows),
        "Learning curves": joined(learning),
        "Commands and versions": _commands(rows),
    }
    folders.write_text(folder / _NAME, document.page(title, lead, sections))


def write_search(
    folder: pathlib.Path,
    title: str,
    rows: Rows,
    text: study_table.Table,
    settings: Sequence[search_plots.Setting],
    trials: int,
) -> None:
    """Writes the page of a search, whole or not at all.

    Args:
        folder: folder of the search.
        title: title of the page.
        rows: rows of its trials.
        text: the table, the best trial first.
        settings: searched settings, with the values of the trials in the order of `rows`.
        trials: number of trials that the search is to have.

    Raises:
        OSError: it cannot be written.
    """
    best = next(row for row in rows if row["setting"] == text.rows[0][0])
    numbers = {row["setting"]: int(row is best) for row in rows}
    shown = any(row["eval_return_per_seed"] for row in rows)
    legend = [charts.named(f"the best, {best['setting']}", 1), charts.named("the other trials", 0)]
    lead = f"Search {folder}: {_finished(rows)} of {trials} trials finished."
    sections = {
        "Trials": joined([_table("Trials, the best first", text, rows, numbers), _note(text)]),
        "The best": element("pre", element("code", best["command"])) if shown else None,
        "Failures": _failures(rows),
        "Return against each setting": joined([
            element("ul", *(element("li", name) for name in legend), class_="legend"),
            element("div", *(_against(one, rows, numbers) for one in settings), class_="charts"),
            element("p", element("small", "Large: interquartile mean of a trial's seeds; small: single seeds.")),
        ]) if shown else None,
        "Versions": _origins(best) if shown else None,
    }  # fmt: skip
    folders.write_text(folder / _NAME, document.page(title, lead, sections))


def _finished(rows: Rows) -> int:
    return sum(row["state"] == "finished" for row in rows)


def _table(caption: str, text: study_table.Table, rows: Rows, numbers: Mapping[str, int]) -> Markup:
    """Makes the table of some rows in the order of the text, with the scores of the seeds as dots on one scale."""
    by_label = {row["setting"]: row for row in rows}
    values = [value for row in rows for value in (*row["eval_return_per_seed"], *(row["eval_return_ci95"] or ()))]
    scale = (min(values, default=0.0), max(values, default=1.0))
    made = []
    for label, *cells, state in text.rows:
        if label in by_label:
            strip = _strip(by_label[label], scale, numbers[label])
            how = element("span", state, class_=_STATES.get(state, ""))
            made.append((charts.named(label, numbers[label]), how, strip, *map(_cell, cells)))
    ends = f"from {scale[0]:.4g} to {scale[1]:.4g}" if values else "scores"
    # Names of settings are long, so a line may break behind their dot.
    head = (text.head[0], text.head[-1], ends, *(name.replace(".", ".\u200b") for name in text.head[1:-1]))
    return table(caption, head, made, "cards wide")


def _cell(text: str) -> Markup:
    """Writes numbers and names so that a line may break between, but not within them."""
    words = text.replace(", ", ",\u00a0").split(" ")
    return element("span", joined([element("span", word, class_="number") for word in words], " "))


def _note(text: study_table.Table) -> Markup:
    """Makes the note below a table that explains its numbers."""
    return element("p", " ".join(text.note).replace(" %", "\u00a0%"), class_="soft")


def _strip(row: study_table.Row, scale: tuple[float, float], number: int) -> str:
    """Draws the scores of a row's seeds, "" without any."""
    scores, centre = row["eval_return_per_seed"], row["eval_return_iqm"]
    interval = row["eval_return_ci95"] or (centre, centre)
    return charts.strip(scores, centre, interval, scale, charts.colour(number)) if scores else ""


def _against(setting: search_plots.Setting, rows: Rows, numbers: Mapping[str, int]) -> Markup:
    """Draws the return of each trial against one setting, the best trial above the others."""
    places = setting.places
    if setting.names:
        scale = charts.named_places(setting.names)
    elif setting.is_log:
        scale, places = charts.logarithmic(places), [math.log10(place) for place in places]
    else:
        scale = charts.linear(places)
    lines = []
    for row, place in sorted(zip(rows, places, strict=True), key=lambda pair: numbers[pair[0]["setting"]]):
        scores, label = np.sort(row["eval_return_per_seed"]), row["setting"]
        class_ = charts.colour(numbers[label])
        if len(scores) > 1:
            seeds = np.full(len(scores), place)
            lines.append(charts.Line(seeds, scores, f"seed {class_}", f"{label}, single seeds", has_points=True))
        if len(scores):
            lines.append(charts.Line(np.array([place]), np.array([row["eval_return_iqm"]]), class_, label))
    return charts.chart("Evaluation return", setting.name, lines, scale=scale)


def _failures(rows: Rows) -> Markup | None:
    """Lists what went wrong."""
    lines = [element("li", f"{row['setting']}: {failure}") for row in rows for failure in row["failures"]]
    return element("ul", *lines) if lines else None


def _commands(rows: Rows) -> Markup:
    """Shows the command that repeats each setting, and its environment, device and versions."""
    return joined(
        part
        for row in rows
        for part in (element("h3", row["setting"]), element("pre", element("code", row["command"])), _origins(row))
    )


def _origins(row: study_table.Row) -> Markup:
    """Lists environments, devices, commits and versions of a row."""
    lines = [f"{name}: {', '.join(row[name])}" for name in study_table.LISTED if row[name]]
    return joined(element("p", element("small", line)) for line in lines)


def _by_task(rows: Rows) -> dict[str, list[study_table.Row]]:
    """Groups the rows by environment; if there are several, rows without a finished run are a group of their own."""
    names = [", ".join(row["environments"]) for row in rows]
    known = list(dict.fromkeys(name for name in names if name))
    rest = known[0] if len(known) == 1 else "Nothing finished yet"
    groups: dict[str, list[study_table.Row]] = {name: [] for name in (*known, rest)}
    for name, row in zip(names, rows, strict=True):
        groups[name or rest].append(row)
    return {name: members for name, members in groups.items() if members}
