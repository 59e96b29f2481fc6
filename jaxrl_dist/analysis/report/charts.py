"""Line charts as inline SVG, whose colours are those of the page: curves, bands, areas, levels and published points."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_dist.analysis.report.markup import Markup, element, joined
from jaxrl_dist.runs import display

NUM_COLOURS = 7
_WIDTH, _HEIGHT = 400.0, 262.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 384.0, 10.0, 222.0
_LARGEST_POINTS = 300
_LARGEST_MARKS = 8
# Width of a letter in the axes' text, about.
_LETTER = 6.2


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        x: f64 [n].
        y: f64 [n]; NaN leaves a gap.
        class_: class of the page's style, such as "c0".
        title: text that the browser shows under the pointer.
        band: two ends f64 [2, n] of a shaded band around it, or of a filled area.
        has_points: whether every point is marked.
    """

    x: np.ndarray
    y: np.ndarray
    class_: str
    title: str
    band: np.ndarray | None = None
    has_points: bool = False


class Scale(NamedTuple):
    """A horizontal axis: its two ends, and the texts on it with their places."""

    low: float
    high: float
    marks: list[tuple[float, str]]


class Axis(NamedTuple):
    """Maps numbers to the pixels between two ends."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Returns pixels."""
        return self.start + (np.asarray(values, np.float64) - self.low) / (self.high - self.low) * (
            self.end - self.start
        )


def colour(number: int) -> str:
    """Returns the style class of run number `number`: its colour, with dashes from the eighth run on."""
    return f"c{number % NUM_COLOURS}" + f" d{number // NUM_COLOURS % 4}" * (number >= NUM_COLOURS)


def chart(
    title: str,
    x_label: str,
    lines: Sequence[Line],
    levels: Sequence[tuple[str, float]] = (),
    y_range: tuple[float, float] | None = None,
    published: Sequence[Line] = (),
    scale: Scale | None = None,
) -> Markup:
    """Draws one chart with its caption.

    Args:
        title: label of the vertical axis, with its unit.
        x_label: label of the horizontal axis.
        lines: lines of the runs.
        levels: name and height of horizontal lines.
        y_range: range of the vertical axis; by default that of the lines.
        published: published lines, which do not make the chart wider.
        scale: scale of the horizontal axis; by default from 0 to the end of the lines.
    """
    known = [line for line in lines if np.isfinite(line.y).any()]
    if not known:
        return figure(title, element("p", "nothing recorded", class_="none"))
    inside = [line._replace(y=np.where(line.x <= _largest(known), line.y, np.nan)) for line in published]
    heights = [line.y for line in (*known, *inside)] + [line.band.ravel() for line in known if line.band is not None]
    values = np.concatenate([*heights, np.array([height for _, height in levels])])
    low, high = y_range or padded(float(np.nanmin(values)), float(np.nanmax(values)))
    scale = scale or Scale(0.0, _largest(known), _numbers(0.0, _largest(known)))
    across, up = Axis(scale.low, scale.high, _LEFT, _RIGHT), Axis(low, high, _BOTTOM, _TOP)
    parts = [_axes(across, up, scale.marks, x_label)]
    for name, height in levels:
        y = float(up(np.array(height)))
        parts.append(element("line", x1=_LEFT, x2=_RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="level"))
        parts.append(element("text", name, x=_RIGHT, y=f"{y - 3:.1f}", class_="name", text_anchor="end"))
    parts += [_area(line, across, up) for line in known if line.band is not None]
    parts += [_path(line, across, up) for line in (*inside, *known)]
    label = f"{title} over {x_label.lower()}: " + "; ".join(
        f"{line.title} ends at {_last(line.y):.4g}" for line in known
    )
    return figure(title, element("svg", *parts, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img", aria_label=label))


def figure(title: str, *children: str) -> Markup:
    """Frames a chart."""
    return element("figure", element("figcaption", title), *children)


def strip(
    scores: Sequence[float], centre: float, interval: Sequence[float], ends: tuple[float, float], class_: str
) -> Markup:
    """Draws seeds as dots, with their interval and centre, on a scale from one end to the other."""
    axis = Axis(*padded(*ends), 4.0, 156.0)
    low, middle, high = (f"{float(axis(np.array(value))):.1f}" for value in (interval[0], centre, interval[1]))
    dots = [
        element("circle", cx=f"{float(axis(np.array(score))):.1f}", cy=12, r=3, class_=f"dot {class_}")
        for score in scores
    ]
    bar = element("line", x1=low, x2=high, y1=12, y2=12, class_=f"interval {class_}")
    mark = element("line", x1=middle, x2=middle, y1=4, y2=20, class_=f"centre {class_}")
    label = f"{len(scores)} seeds on a scale from {ends[0]:.4g} to {ends[1]:.4g}"
    return element("svg", bar, *dots, mark, viewBox="0 0 160 24", class_="strip", role="img", aria_label=label)


def named(label: str, number: int) -> Markup:
    """Returns the label of run number `number`, with its line in the charts."""
    return joined([swatch(colour(number)), label])


def swatch(class_: str) -> Markup:
    """Draws a run's line in a legend."""
    line = element("line", x1=1, x2=27, y1=6, y2=6, class_=f"line {class_}")
    return element("svg", line, viewBox="0 0 28 12", class_="swatch", aria_hidden="true")


def ticks(low: float, high: float) -> list[float]:
    """Returns about five round numbers between two ends."""
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def linear(values: Sequence[float]) -> Scale:
    """Returns the scale on which numbers lie, which need not begin at 0."""
    low, high = padded(min(values), max(values))
    return Scale(low, high, _numbers(low, high))


def logarithmic(values: Sequence[float]) -> Scale:
    """Returns the scale on which the decimal logarithms of numbers above 0 lie."""
    ends = min(values), max(values)
    low, high = padded(*(math.log10(end) for end in ends))
    powers = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1,), (1, 2, 5)):
        round_ones = [factor * 10.0**power for power in powers for factor in factors]
        inside = [value for value in round_ones if low <= math.log10(value) <= high]
        if len(inside) > 2:
            break
    else:
        inside = [value for value in ticks(10.0**low, 10.0**high) if value > 0]
    stride = -(-len(inside) // _LARGEST_MARKS)
    return Scale(low, high, [(math.log10(value), _short(value)) for value in inside[::stride]])


def named_places(names: Sequence[str]) -> Scale:
    """Returns the scale with name i at place i; cuts names that are too long for their place."""
    letters = max(3, int((_RIGHT - _LEFT) / len(names) / _LETTER))
    cut = [name if len(name) <= letters else name[: letters - 1] + "…" for name in names]
    return Scale(-0.5, len(names) - 0.5, list(enumerate(cut)))


def _axes(across: Axis, up: Axis, marks: Sequence[tuple[float, str]], x_label: str) -> Markup:
    """Draws grid, numbers and the horizontal label."""
    parts = []
    for value in ticks(up.low, up.high):
        y = f"{float(up(np.array(value))):.1f}"
        parts.append(element("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(element("text", _short(value), x=_LEFT - 5, y=y, dy="0.35em", text_anchor="end"))
    for value, text in marks:
        x = f"{float(across(np.array(value))):.1f}"
        parts.append(element("text", text, x=x, y=_BOTTOM + 16, text_anchor="middle"))
    parts.append(element("line", x1=_LEFT, x2=_RIGHT, y1=_BOTTOM, y2=_BOTTOM, class_="axis"))
    middle = (_LEFT + _RIGHT) / 2
    parts.append(element("text", x_label, x=middle, y=_HEIGHT - 6, text_anchor="middle", class_="label"))
    return joined(parts)


def _path(line: Line, across: Axis, up: Axis) -> Markup:
    """Draws a line with its gaps; points without a neighbour are marked."""
    keep = _thinned(len(line.x))
    x, y = across(line.x[keep]), up(line.y[keep])
    known = np.isfinite(y)
    steps, pen = [], "M"
    for i in np.flatnonzero(known):
        steps.append(f"{pen if i == 0 or known[i - 1] else 'M'}{x[i]:.1f} {y[i]:.1f}")
        pen = "L"
    before, after = np.append(False, known[:-1]), np.append(known[1:], False)
    marked = known if line.has_points else known & ~before & ~after
    dots = [
        element("circle", cx=f"{x[i]:.1f}", cy=f"{y[i]:.1f}", r=3, class_=f"dot {line.class_}")
        for i in np.flatnonzero(marked)
    ]
    path = element("path", element("title", line.title), d=" ".join(steps), class_=f"line {line.class_}")
    return joined([path, *dots])


def _area(line: Line, across: Axis, up: Axis) -> Markup:
    """Shades the area between the two ends of a band, in pieces if some numbers are missing."""
    assert line.band is not None
    keep = _thinned(len(line.x))
    x, (low, high) = across(line.x[keep]), up(line.band[:, keep])
    known = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    pieces = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)

    def corners(index: np.ndarray, y: np.ndarray) -> str:
        return " ".join(f"{x[i]:.1f},{y[i]:.1f}" for i in index)

    return joined(
        element("polygon", points=f"{corners(piece, high)} {corners(piece[::-1], low)}", class_=f"area {line.class_}")
        for piece in pieces
        if len(piece) > 1
    )


def _thinned(count: int) -> np.ndarray:
    """Returns the indices of the points to draw, of `count`; the last is always among them."""
    stride = -(-count // _LARGEST_POINTS) or 1
    return np.unique(np.append(np.arange(0, count, stride), max(count - 1, 0)))[: count or None]


def padded(low: float, high: float) -> tuple[float, float]:
    """Widens a range, for room around the lines."""
    room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    return (low if low == 0 else low - room), high + room


def _largest(lines: Sequence[Line]) -> float:
    return max(float(line.x[np.isfinite(line.y)].max()) for line in lines) or 1.0


def _last(values: np.ndarray) -> float:
    return float(values[np.isfinite(values)][-1])


def _numbers(low: float, high: float) -> list[tuple[float, str]]:
    """Returns round numbers in a range, with their texts."""
    return [(value, _short(value)) for value in ticks(low, high)]


def _short(value: float) -> str:
    return display.count(value) if value >= 1000 else f"{value:g}".replace("e-0", "e-").replace("-", "−")
