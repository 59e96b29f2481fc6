"""Draws every picture with matplotlib: into PNG, PDF and SVG files, and as SVG into pages, panel by panel.

Matplotlib is imported where something is drawn, and of it the objects alone: no global figure, no window. Names come
from run folders of others, so that no text is taken for a formula.
"""

import contextlib
import functools
import io
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.analysis import curves as numbers
from jaxrl_dist.analysis import published
from jaxrl_dist.runs import aggregate, display, metrics
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import resolve, sweep

# Okabe and Ito 2008: colour-blind readers can tell them apart; yellow is left out, since it is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, SOFT, RULE = "#1B1F24", "#5A6270", "#D9DDE3"
_LINE_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("s", "^", "D", "v", "P")
# Lighter than the lines, since they fill areas.
AREAS = {"environment": "#58B4E8", "inference": "#E8A010", "transfer": "#CE7CAA"}
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.parse_math", "text.usetex"), False),
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxrl_dist",
    "font.family": "DejaVu Sans",
    "text.color": INK,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), SOFT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "xtick.minor.size", "ytick.minor.size"), 0),
    **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": RULE, "grid.linewidth": 0.7},
}

RETURNS = ("steps", "minutes")
PANELS = (*RETURNS, *numbers.GAUGES, "shares")
FORMATS = (".png", ".pdf", ".svg")
TIME_UNITS = ((2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_RETURN, _STEPS = "Evaluation return", "Environment steps per seed"
SEARCH_NOTE = "Large: interquartile mean of a trial's seeds; small: single seeds"
_TITLE = "title "
_PAGE_PIXELS = (400.0, 262.0)
_DPI, _ROW_INCHES, _INCHES_PER_LETTER = 120, 0.28, 0.075
# Of the time axis, at most.
_COMPILING_SHARE = 0.1
_LARGEST_POINTS, _MOST_SEEDS, _MOST_OTHERS, _LARGEST_MARKS, _LETTERS, _NAMES_LETTERS = 300, 20, 50, 8, 60, 54


class Entry(NamedTuple):
    """A line of a legend: its text, the page's classes of its swatch, colour, line style and marker."""

    label: str
    swatch: str
    colour: str
    line_style: str = "-"
    marker: str = ""


class Drawn(NamedTuple):
    """Evaluations that are drawn in one colour.

    Attributes:
        number: of the colour.
        label: of the run or setting.
        curve: its evaluations.
        band: as `curves.band` returns it.
    """

    number: int
    label: str
    curve: numbers.Curve
    band: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def entry(self) -> Entry:
        """Its line of the legend."""
        count = self.curve.returns.shape[1]
        return entry(self.number, f"{self.label} ({count} seeds)" if count > 1 else self.label)


class Panel(NamedTuple):
    """One chart.

    Attributes:
        title: what is on the vertical axis, with its unit.
        x_label: what is on the horizontal one.
        draw: draws it on axes.
        ends: name and numbers of each line.
        note: says what lines are, where that is needed.
        legend: of its own.
        pixels: its size on a page.
        told: what it shows, where lines and their ends do not say that.
    """

    title: str
    x_label: str
    draw: Callable[[Any], None]
    ends: Sequence[tuple[str, np.ndarray]] = ()
    note: str = ""
    legend: Sequence[Entry] = ()
    pixels: tuple[float, float] = _PAGE_PIXELS
    told: str = ""

    @property
    def words(self) -> str:
        """Says what it shows, for those who cannot see it; "" where nothing is known."""
        known = [(name, values[np.isfinite(values)]) for name, values in self.ends]
        ends = "; ".join(f"{name} ends at {values[-1]:.4g}" for name, values in known if len(values))
        return self.told or (f"{self.title} over {self.x_label.lower()}: {ends}" if ends else "")


class Setting(NamedTuple):
    """One setting of a search.

    Attributes:
        name: of the setting.
        values: one for each trial.
        is_log: whether its axis is logarithmic.
        names: its choices, each with a place of its own, where values are no numbers.
    """

    name: str
    values: Sequence[Any]
    is_log: bool
    names: Sequence[str] = ()

    @property
    def places(self) -> list[float]:
        """Returns the place of each trial on its axis."""
        return [float(self.names.index(str(value)) if self.names else value) for value in self.values]


class Trial(NamedTuple):
    """A trial of a search: its label, the returns f64 [S] of its seeds, their centre, and whether it is the best."""

    label: str
    returns: np.ndarray
    centre: float
    is_best: bool


def drawn(curves: Mapping[str, numbers.Curve]) -> list[Drawn]:
    """Gives each curve, by its label, the next colour."""
    return [Drawn(i, label, one, numbers.band(one.returns)) for i, (label, one) in enumerate(curves.items())]


def style(number: int) -> tuple[str, Any]:
    """Returns colour and line style of the run of a number."""
    return COLOURS[number % len(COLOURS)], _LINE_STYLES[number // len(COLOURS) % len(_LINE_STYLES)]


def entry(number: int, label: str) -> Entry:
    """Returns the line of a legend of the run of a number."""
    dashes = f" d{number // len(COLOURS) % len(_LINE_STYLES)}" * (number >= len(COLOURS))
    return Entry(label, f"c{number % len(COLOURS)}{dashes}", *style(number))


def plain(text: str, letters: int = _LETTERS) -> str:
    """Returns text on one line, without what is not printed, and with its middle left out where it is long."""
    line = errors.printable(text)
    return line if len(line) <= letters else f"{line[: letters // 2]}…{line[len(line) - letters // 2 + 1 :]}"


def short(value: float) -> str:
    """Writes a number of an axis."""
    return display.count(value) if value >= 1000 else f"{value:g}".replace("e-0", "e-").replace("-", "−")


def learning_curve(
    runs: Mapping[str, numbers.Records],
    path: str | os.PathLike[str],
    title: str = "",
    names: Sequence[str] = RETURNS,
    marks: published.Marks = published.NO_MARKS,
) -> None:
    """Draws one curve per run, from its records by its label, as `draw` does."""
    draw({label: numbers.curve([records]) for label, records in runs.items()}, path, title, names, marks, runs)


def draw(
    curves: Mapping[str, numbers.Curve],
    path: str | os.PathLike[str],
    title: str = "",
    names: Sequence[str] = RETURNS,
    marks: published.Marks = published.NO_MARKS,
    runs: Mapping[str, numbers.Records] | None = None,
) -> None:
    """Draws curves with their intervals: the interquartile mean over seeds, its 95 % interval, and each seed thinly.

    Args:
        curves: label -> curve; there is no interval for a single seed, nor a mean where a seed is missing, and of more
            curves than there are colours the means alone are drawn.
        path: PNG, PDF or SVG file to write.
        title: above the panels.
        names: of the panels, of `PANELS`; `shares` is one panel for each run that records them.
        marks: what others have measured, in the panels of returns.
        runs: label -> records of the same runs, for the panels that are not of returns.
    """
    numbered, runs = drawn(curves), runs or {}
    known = dict(zip(RETURNS, returns(numbered, marks), strict=True))
    timed = [label for label, records in runs.items() if numbers.has_shares(records)] or list(runs)[:1]
    recorded = [(i, label, records) for i, (label, records) in enumerate(runs.items())]
    panels: list[Panel] = []
    for name in names:
        if name == "shares":
            panels += [shares(label, runs[label]) for label in timed]
        else:
            panels.append(known[name] if name in known else gauge(name, recorded))
    if not set(names) & set(RETURNS):
        marks = published.NO_MARKS
    write(path, panels, title, note_of(numbered), [one.entry for one in numbered] + works(marks), marks.sources)


def draw_run(folder: pathlib.Path, settings: resolve.Resolved) -> None:
    """Draws the learning curve of a run into its folder, a line for each combination of a sweep."""
    whole = numbers.curve([metrics.read(folder)])
    grouped = sweep.by_combination(settings, list(whole.returns.T))
    curves = {
        sweep.label(settings.settings, values) or settings["system"]: whole._replace(returns=np.stack(members, axis=1))
        for values, members in grouped
    }
    params = resolve.task_params(settings.settings)
    marks = published.marks(settings["system"], settings["env"], params)._replace(curves=())
    title = f"{settings['system']} on {settings['env']}"
    draw(curves, folder / "learning_curve.png", title, RETURNS, marks)


def draw_scores(curves: Mapping[str, numbers.Curve], path: str | os.PathLike[str]) -> None:
    """Draws a row for each setting, and two columns: at steps that all seeds came to, and at the time that half took.

    Seeds that were done by then stand in the second column with their ends.

    Args:
        curves: label -> curve, from the top down.
        path: PNG file to write.
    """
    shown = {label: curve for label, curve in curves.items() if numbers.common_steps(curve)}
    steps = min(map(numbers.common_steps, shown.values()), default=0.0)
    seconds = float(np.median([curve.wall_s[-1] for curve in shown.values()] or [0.0]))
    unit_s, unit = _unit(seconds)
    by_time = f"after {seconds / unit_s:.3g} {unit}, or at the end"
    panels = [
        _scores(f"after {steps:,.0f} steps", {name: numbers.at_steps(one, steps) for name, one in shown.items()}),
        _scores(by_time, {" " * i: numbers.at_seconds(one, seconds) for i, one in enumerate(shown.values())}),
    ]
    note = "Evaluation return: interquartile mean, 95 % interval, single seeds"
    write(path, panels, note=note, row_inches=0.6 + _ROW_INCHES * max(len(shown), 1))


def draw_search(
    settings: Sequence[Setting],
    returns: Sequence[np.ndarray],
    finished: Sequence[bool],
    path: str | os.PathLike[str],
    title: str = "",
) -> None:
    """Draws return against each setting that was searched, one panel for each.

    Args:
        settings: their values, one for each trial.
        returns: of each trial, f64 [S], one of each seed; empty where it has none.
        finished: whether all seeds of a trial have finished; another one is never the best.
        path: PNG file to write.
        title: above the panels.
    """
    found = trials([f"trial {i}" for i in range(len(returns))], returns, finished)
    legend = [entry(1, "the best trial"), entry(0, "the other trials")] if any(one.is_best for one in found) else []
    write(path, [against(one, found) for one in settings], title, SEARCH_NOTE, legend, columns=3)


def returns(drawn: Sequence[Drawn], marks: published.Marks = published.NO_MARKS) -> tuple[Panel, Panel]:
    """Makes the panels of returns against steps, and against wall time."""
    known = [one for one in drawn if len(one.curve.wall_s)]
    # Where one does not say how long it compiled, all are compared from their start.
    starts = [one.curve.compiling_s for one in known]
    is_after = bool(starts) and all(starts)
    unit_s, unit = _unit(max((one.curve.wall_s.max() - one.curve.compiling_s * is_after for one in known), default=0.0))
    time = f"Wall time{' after compiling' * is_after} ({unit})"
    ends = [(one.label, one.band[0]) for one in drawn]
    return (
        Panel(_RETURN, _STEPS, lambda axes: _draw_returns(axes, drawn, marks, 0.0, []), ends),
        Panel(_RETURN, time, lambda axes: _draw_returns(axes, drawn, marks, unit_s, starts * is_after), ends),
    )


def apart(drawn: Sequence[Drawn]) -> list[Panel]:
    """Makes a panel for each run, on one scale, with the means of the others behind it."""
    values = np.concatenate([np.ravel(values) for one in drawn for values in (one.curve.returns, *one.band)])
    known = values[np.isfinite(values)]
    ends = _padded(float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)

    def draw(axes: Any, one: Drawn) -> None:
        for other in [other for other in drawn if other is not one][:_MOST_OTHERS]:
            _line(axes, other.curve.env_steps, other.band[0], other.label, color=RULE, linewidth=1.2, zorder=0)
        _draw_curve(axes, one.curve.env_steps, one, is_mean_alone=False)
        axes.set_xlim(left=0.0)
        axes.set_ylim(*ends)

    return [
        Panel(one.label, _STEPS, lambda axes, one=one: draw(axes, one), [(one.label, one.band[0])])  # type: ignore[misc]
        for one in drawn[:_MOST_OTHERS]
    ]


def note_of(drawn: Sequence[Drawn]) -> str:
    """Says what the lines of `returns` are, "" where that needs no words."""
    if all(one.curve.returns.shape[1] == 1 for one in drawn):
        return ""
    where = " in the charts of single runs" if len(drawn) > len(COLOURS) else ""
    return f"Line: interquartile mean; shaded{where}: its 95 % bootstrap interval; thin: single seeds"


def works(marks: published.Marks) -> list[Entry]:
    """Makes the legend of published runs, with the last return that they came to."""
    return [
        Entry(f"{work.name}: {work.returns[-1]:.4g} at {display.count(work.env_steps[-1])} steps", "works", SOFT, ":",
              _MARKERS[i % len(_MARKERS)])
        for i, work in enumerate(marks.curves)
    ]  # fmt: skip


def is_recorded(name: str, records: numbers.Records) -> bool:
    """Says whether a run records the numbers of a panel; those of returns need an evaluation only."""
    if name in numbers.GAUGES:
        return bool(len(numbers.series(records, numbers.GAUGES[name].names)[0]))
    return name != "shares" or numbers.has_shares(records)


def gauge(name: str, runs: Sequence[tuple[int, str, numbers.Records]]) -> Panel:
    """Makes the panel of a gauge, of runs with the numbers of their colours."""
    title, names, note = numbers.GAUGES[name]
    found = [(i, label, *numbers.series(records, names)) for i, label, records in runs]

    def draw(axes: Any) -> None:
        for i, label, steps, values in found:
            colour, line_style = style(i)
            for place, (name, column) in enumerate(zip(names, values.T, strict=True)):
                # The first is thick, and above the others.
                look = {"linewidth": 0.8 if place else 2.0, "alpha": 0.7 if place else None, "zorder": 2 - place}
                _line(axes, steps, column, f"{label}, {name}", color=colour, linestyle=line_style, **look)
        axes.set_xlim(left=0.0)
        axes.set_ylim(bottom=0.0)
        if not any(len(steps) for _, _, steps, _ in found):
            _say_empty(axes, "not recorded by these runs")

    ends = [(f"{label}, {name}", values[:, j]) for _, label, _, values in found for j, name in enumerate(names)]
    return Panel(title, _STEPS, draw, ends, note)


def shares(label: str, records: numbers.Records) -> Panel:
    """Makes the panel of where the time of one run goes: its actors' as areas, the learner's as a line."""
    steps, values = numbers.series(records, (*numbers.SHARES, numbers.LEARNING))
    keep, known = _thinned(len(steps)), np.nan_to_num(values)

    def draw(axes: Any) -> None:
        axes.set_xlim(left=0.0)
        axes.set_ylim(0.0, 1.0)
        if not len(steps):
            _say_empty(axes, "not recorded by this run")
            return
        axes.stackplot(steps[keep], known[keep, :-1].T, colors=list(AREAS.values()), alpha=0.85)
        for area, name in zip(axes.collections, AREAS, strict=True):
            area.set_gid(_named(f"{name}, share of the actors' time"))
        _line(axes, steps, known[:, -1], "learning, share of the learner's time", color=INK, linewidth=1.6)
        axes.set_xlim(0.0, steps[-1])

    names = (*AREAS, "learner learns")
    legend = [*(Entry(name, name, colour) for name, colour in AREAS.items()), Entry(names[-1], "ink", INK)]
    note = "areas: time of the actors; line: time of the learner"
    return Panel(f"Share of time, {label}", _STEPS, draw, list(zip(names, values.T, strict=True)), note, legend)


def share_bar(values: Sequence[float]) -> Panel:
    """Makes the panel of mean shares of the actors' time, on one line."""

    def draw(axes: Any) -> None:
        for left, share, colour in zip(np.cumsum([0.0, *values]), values, AREAS.values(), strict=False):
            axes.barh(0.0, share, left=left, height=1.0, color=colour, linewidth=0)
        axes.set_xlim(0.0, sum(values) or 1.0)
        axes.set_ylim(-0.5, 0.5)

    told = ", ".join(f"{name} {share:.0%}" for name, share in zip(AREAS, values, strict=True))
    return Panel("Shares of the actors' time", "", draw, pixels=(160.0, 12.0), told=told)


def strip(
    scores: Sequence[float], centre: float, interval: Sequence[float], ends: tuple[float, float], number: int
) -> Panel:
    """Makes the panel of seeds as dots, with interval and centre, on a scale from one end to the other."""
    colour, room = style(number)[0], 0.05 * (ends[1] - ends[0]) or 1.0

    def draw(axes: Any) -> None:
        axes.plot(interval, [0.0, 0.0], color=colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
        axes.plot(scores, np.zeros(len(scores)), "o", color=colour, alpha=0.55, markersize=6, markeredgewidth=0)
        axes.plot([centre, centre], [-0.65, 0.65], color=colour, linewidth=2.5, solid_capstyle="butt")
        axes.set_xlim(ends[0] - room, ends[1] + room)
        axes.set_ylim(-1.0, 1.0)

    told = f"{len(scores)} seeds on a scale from {ends[0]:.4g} to {ends[1]:.4g}"
    return Panel(_RETURN, "", draw, pixels=(160.0, 24.0), told=told)


def trials(labels: Sequence[str], returns: Sequence[np.ndarray], finished: Sequence[bool]) -> list[Trial]:
    """Sums up trials; the best of those that have finished, with all of their seeds, is marked."""
    centres = [float(aggregate.interquartile_mean(scores)) if len(scores) else -np.inf for scores in returns]
    scores = [centre if whole else -np.inf for centre, whole in zip(centres, finished, strict=True)]
    best = max(scores, default=-np.inf)
    first = scores.index(best) if best > -np.inf else -1
    found = zip(labels, returns, centres, strict=True)
    return [Trial(label, of_seeds, centre, i == first) for i, (label, of_seeds, centre) in enumerate(found)]


def against(setting: Setting, trials: Sequence[Trial]) -> Panel:
    """Makes the panel of return against one setting, the best trial above the others."""
    placed = zip(setting.places, trials, strict=True)
    shown = sorted(((place, one) for place, one in placed if len(one.returns)), key=lambda pair: pair[1].is_best)

    def draw(axes: Any) -> None:
        for place, one in shown:
            look = {"color": style(int(one.is_best))[0], "gid": _named(one.label)}
            seeds = np.sort(one.returns)
            axes.plot([place] * len(seeds), seeds, ".-", alpha=0.4, linewidth=0.7, markersize=5, **look)
            axes.plot(place, one.centre, "o", markersize=7, **look)
        if setting.names:
            letters = max(3, int(_NAMES_LETTERS / len(setting.names)))
            cut = [name if len(name) <= letters else f"{name[: letters - 1]}…" for name in setting.names]
            axes.set_xticks(range(len(cut)), [plain(name) for name in cut])
            axes.set_xlim(-0.5, len(cut) - 0.5)
        else:
            _set_scale(axes, setting.places, is_log=setting.is_log)

    return Panel(_RETURN, setting.name, draw, [(one.label, np.array([one.centre])) for _, one in shown])


def write(
    path: str | os.PathLike[str],
    panels: Sequence[Panel],
    title: str = "",
    note: str = "",
    legend: Sequence[Entry] = (),
    sources: Sequence[str] = (),
    columns: int = 2,
    row_inches: float = 3.6,
) -> None:
    """Writes panels into one picture, whole or not at all; a name that ends in none of `FORMATS` gets a PNG."""
    from matplotlib import figure

    columns = min(len(panels), columns)
    rows = -(-len(panels) // columns)
    with _styled(9.0):
        # A panel alone is wider than one of two.
        size = (2.0 + 4.0 * columns, 0.8 + row_inches * rows)
        picture = figure.Figure(figsize=size, dpi=_DPI, layout="constrained")
        grid = [picture.add_subplot(rows, columns, i + 1) for i in range(len(panels))]
        for i, (panel, axes) in enumerate(zip(panels, grid, strict=True)):
            _draw_panel(axes, panel)
            axes.set_ylabel("" if i % columns and panel.title == panels[i - 1].title else plain(panel.title))
            axes.set_title(panel.note or note * (not i), loc="left", fontsize=8, color=SOFT)
            if panel.legend:
                below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "frameon": False}
                axes.legend(*_handles(panel.legend), ncols=4, fontsize=7, **below)
        for panel in panels:
            alike = [axes for other, axes in zip(panels, grid, strict=True) if other.title == panel.title]
            lows, highs = zip(*(axes.get_ylim() for axes in alike), strict=True)
            for axes in alike:
                axes.set_ylim(min(lows), max(highs))
        picture.suptitle(plain(title, 100), fontsize=11)
        _add_legend(picture, legend, sources)
        suffix = pathlib.PurePath(path).suffix.lower()
        form = suffix[1:] if suffix in FORMATS else "png"
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        save = functools.partial(picture.savefig, format=form, metadata=undated.get(form))
        folders.replace(pathlib.Path(path), lambda scratch: save(str(scratch)))


def svg(panel: Panel) -> bytes:
    """Draws one panel as a whole SVG file, a pixel of the page being a unit of it."""
    from matplotlib import figure

    is_chart, file = panel.pixels == _PAGE_PIXELS, io.BytesIO()
    with _styled(11.0):
        picture = figure.Figure(figsize=(panel.pixels[0] / 72, panel.pixels[1] / 72))
        # Room for numbers of six letters, so that charts beside each other begin at one place.
        axes = picture.add_axes((0.12, 0.16, 0.845, 0.81) if is_chart else (0.0, 0.0, 1.0, 1.0))
        if is_chart:
            _draw_panel(axes, panel)
        else:
            axes.set_axis_off()
            panel.draw(axes)
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        picture.savefig(file, format="svg", transparent=True, metadata=metadata)
    return file.getvalue()


def title_in(name: str) -> str:
    """Returns the title that the name of an element of `svg` holds, "" where it holds none."""
    return name.removeprefix(_TITLE) if name.startswith(_TITLE) else ""


@contextlib.contextmanager
def _styled(font_size: float) -> Iterator[None]:
    """Sets how matplotlib draws, which it looks up while it writes too."""
    import matplotlib

    with matplotlib.rc_context({**_STYLE, "font.size": font_size}), warnings.catch_warnings():
        # A page is shown in other fonts, and a name in another script is its user's own.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def _named(title: str) -> str:
    """Names an element, so that a page shows its title where the pointer rests."""
    return _TITLE + plain(title, 200)


def _unit(seconds: float) -> tuple[float, str]:
    return next((size, name) for least, size, name in TIME_UNITS if seconds >= least)


def _draw_panel(axes: Any, panel: Panel) -> None:
    """Draws a panel with short round numbers on both axes."""
    from matplotlib import ticker

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short(value)))
    axes.set_xlabel(plain(panel.x_label))
    panel.draw(axes)


def _thinned(count: int) -> np.ndarray:
    """Returns the points to draw of so many; the last is always among them."""
    stride = -(-count // _LARGEST_POINTS) or 1
    return np.unique(np.append(np.arange(0, count, stride), max(count - 1, 0)))[:count]


def _room(low: float, high: float) -> float:
    return 0.05 * (high - low) or 0.5 * abs(high) or 1.0


def _padded(low: float, high: float, floor: float = 0.0) -> tuple[float, float]:
    """Makes room around what is drawn, but for below 0 or a floor that it begins at."""
    return (low if low in (0.0, floor) else low - _room(low, high)), high + _room(low, high)


def _line(axes: Any, x: np.ndarray, y: np.ndarray, title: str, **look: Any) -> None:
    """Draws a line, and marks points that have no neighbour to be joined with."""
    keep = _thinned(len(x))
    x, y = x[keep], y[keep]
    known = np.isfinite(np.concatenate([[np.nan], y, [np.nan]]))
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    axes.plot(x, y, gid=_named(title), **look)
    if alone.any():
        axes.plot(x[alone], y[alone], "o", color=look["color"], markersize=2.5 * look.get("linewidth", 2.0) ** 0.5,
                  alpha=look.get("alpha"), gid=_named(title))  # fmt: skip


def _draw_curve(axes: Any, x: np.ndarray, one: Drawn, *, is_mean_alone: bool) -> None:
    """Draws one curve: its mean, and where it has several seeds their interval and each of them thinly."""
    order = np.argsort(x, kind="stable")
    x, seeds = x[order], one.curve.returns[order].T
    centre, low, high = (values[order] for values in one.band)
    colour, line_style = style(one.number)
    if len(seeds) > 1 and not is_mean_alone:
        for i, values in enumerate(seeds[:_MOST_SEEDS]):
            _line(axes, x, values, f"{one.label}, seed {i}", color=colour, linewidth=0.6, alpha=0.4, zorder=2)
        keep = _thinned(len(x))
        axes.fill_between(x[keep], low[keep], high[keep], color=colour, alpha=0.2, linewidth=0, zorder=1)
        known = np.isfinite(centre)
        if known.sum() == 1:
            axes.plot(x[known].repeat(2), [low[known][0], high[known][0]], color=colour, alpha=0.4, linewidth=4)
    _line(axes, x, centre, one.label, color=colour, linestyle=line_style, linewidth=2.0, zorder=3)


def _draw_returns(
    axes: Any, drawn: Sequence[Drawn], marks: published.Marks, unit_s: float, compiling_s: Sequence[float]
) -> None:
    """Draws returns against wall time in units of so many seconds, or against steps where that is 0.

    The time begins after compiling and the evaluation at step 0, if that is known of all runs.
    """
    is_crowded, ends = len(drawn) > len(COLOURS), []
    for one in drawn:
        start_s = one.curve.compiling_s if compiling_s else 0.0
        x = (one.curve.wall_s - start_s) / unit_s if unit_s else one.curve.env_steps
        _draw_curve(axes, x, one, is_mean_alone=is_crowded)
        known = np.isfinite(one.curve.returns).any(1)
        ends += [float(x[known].max())] if known.any() else []
    if not ends:
        _say_empty(axes, "no evaluation yet")
        return
    right = max(ends) or 1.0
    for i, work in enumerate(marks.curves):
        x = work.minutes * 60 / unit_s if unit_s else work.env_steps
        axes.plot(x[x <= right], work.returns[x <= right], color=SOFT, marker=_MARKERS[i % len(_MARKERS)], markersize=4,
                  linewidth=1.0, linestyle=":", zorder=2, gid=_named(work.name))  # fmt: skip
    for i, level in enumerate(marks.levels):
        axes.axhline(level.value, color=SOFT, linestyle=_LINE_STYLES[1 + i % 3], linewidth=0.9, zorder=0)
    axes.set_xlim(0.0, 1.01 * right)
    if compiling_s:
        _draw_compiling(axes, min(compiling_s), max(compiling_s), unit_s, right)
    lowest, highest = map(float, axes.dataLim.intervaly)
    low, high = _padded(lowest, highest, lowest if np.isfinite(marks.random_play) else 0.0)
    axes.set_ylim(low, high)
    for level in marks.levels:
        # Curves mostly begin low and end high.
        is_high = level.value > (low + high) / 2
        place, side = (0.01, "left") if is_high else (0.99, "right")
        axes.annotate(plain(level.name), (place, level.value), (0, 2), xycoords=("axes fraction", "data"),
                      textcoords="offset points", ha=side, va="bottom", color=SOFT)  # fmt: skip


def _draw_compiling(axes: Any, least_s: float, most_s: float, unit_s: float, right: float) -> None:
    """Shades the time before training, to scale where it is short, and says how long it was."""
    from matplotlib import ticker

    left = -min(most_s / unit_s, _COMPILING_SHARE * right)
    axes.set_xlim(left=left)
    axes.axvspan(left, 0.0, color=RULE, alpha=0.5, linewidth=0, zorder=0)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short(value) if value >= 0 else ""))
    times = dict.fromkeys(f"{end:.3g}" for end in (least_s, most_s))
    axes.annotate(f"compiling, evaluating: {' to '.join(times)} s", (left / 2, 0.5), xycoords=("data", "axes fraction"),
                  ha="center", va="center", color=SOFT, rotation=90)  # fmt: skip


def _set_scale(axes: Any, values: Sequence[float], *, is_log: bool) -> None:
    """Gives the horizontal axis room around values, and where it is logarithmic a few round numbers."""
    from matplotlib import ticker

    ends = np.log10([min(values), max(values)]) if is_log else np.array([min(values), max(values)], np.float64)
    ends = ends + _room(*ends) * np.array([-1, 1])
    if not is_log:
        axes.set_xlim(*ends)
        return
    low, high = 10.0**ends
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.minorticks_off()
    powers = 10.0 ** np.arange(np.floor(ends[0]), np.ceil(ends[1]) + 1)
    even = ticker.MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    inside = [[x for x in marks if low <= x <= high] for marks in (powers, np.outer(powers, (1, 2, 5)).ravel(), even)]
    marks = next((marks for marks in inside if len(marks) > 2), inside[-1])
    marks = marks[:: -(-len(marks) // _LARGEST_MARKS)]
    axes.set_xticks(marks, [short(mark) for mark in marks])


def _scores(label: str, scores: Mapping[str, numbers.Score]) -> Panel:
    """Makes the panel of a row for each name, from the top down."""

    def draw(axes: Any) -> None:
        for row, score in enumerate(scores.values()):
            axes.plot(score.returns, np.full(len(score.returns), row), ".", color=COLOURS[0], alpha=0.35, markersize=4)
            axes.plot([score.low, score.high], [row, row], color=COLOURS[0], linewidth=2.0)
            axes.plot(score.centre, row, "o", color=COLOURS[0], markersize=6)
        axes.set_ylim(max(len(scores), 1) - 0.5, -0.5)
        axes.grid(axis="x")
        axes.set_yticks(range(len(scores)), [plain(name) for name in scores])

    return Panel("", label, draw)


def _say_empty(axes: Any, text: str) -> None:
    """Says on axes why there is nothing in them."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=SOFT)


def _handles(legend: Sequence[Entry], letters: int = _LETTERS) -> tuple[list[Any], list[str]]:
    from matplotlib import lines

    handles: list[Any] = []
    for one in legend:
        look: dict[str, Any] = {"color": one.colour, "linestyle": one.line_style, "marker": one.marker}
        handles.append(lines.Line2D([], [], linewidth=2.0, markersize=5, **look))
    return handles, [plain(one.label, letters) for one in legend]


def _add_legend(picture: Any, legend: Sequence[Entry], sources: Sequence[str]) -> None:
    """Names the runs below the panels, in as many columns as their names leave room for."""
    if not legend:
        return
    width_inches = picture.get_figwidth()
    handles, labels = _handles(legend, int((width_inches - 1.0) / _INCHES_PER_LETTER))
    longest_inches = _INCHES_PER_LETTER * max(map(len, labels)) + 0.6
    columns = max(1, min(len(labels), 4, int(width_inches / longest_inches)))
    picture.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9,
                   title="\n".join(plain(one, 160) for one in sources) or None, title_fontsize=6)  # fmt: skip
