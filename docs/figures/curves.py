"""Draws the reference curves of each system and task: curve_NAME.svg, here. Example: python docs/figures/curves.py

The data are those of benchmarks/reference. Like layouts.py it writes SVG itself, so that a picture follows the reader's
light or dark and its words are the browser's.
"""

import html
import itertools
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import numpy as np  # noqa: E402

from jaxrl_dist.analysis import curves, reference  # noqa: E402
from jaxrl_dist.runs import display  # noqa: E402

FOLDER = HERE.parents[1] / "benchmarks" / "reference"
_WIDTH, _HEIGHT = 300, 224
# The panel: left, top, right, bottom.
_PANEL = (46, 44, 286, 180)
_STYLE = """
.paper { fill: #ffffff } .rule { stroke: #d9dde3 }
text { fill: #1f2328; font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
.name { font-weight: 600 } .soft { fill: #57606a } .end { text-anchor: end } .middle { text-anchor: middle }
.line { fill: none; stroke-width: 2 } .seed { fill: none; stroke-width: 0.7; opacity: 0.45 } .band { opacity: 0.2 }
.line0, .seed0 { stroke: #0969da } .band0, .word0 { fill: #0969da }
.line1, .seed1 { stroke: #b35900 } .band1, .word1 { fill: #b35900 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #131416 } .rule { stroke: #3d444d } text { fill: #f0f6fc } .soft { fill: #c9d1d9 }
  .line0, .seed0 { stroke: #58a6ff } .band0, .word0 { fill: #58a6ff }
  .line1, .seed1 { stroke: #f0a050 } .band1, .word1 { fill: #f0a050 }
}
"""


class Picture(NamedTuple):
    """The curves of one system on one task.

    Attributes:
        name: of the picture.
        system: name of the system.
        task: as the picture calls it.
        curves: label -> reference; the label of a single one is "".
    """

    name: str
    system: str
    task: str
    curves: dict[str, reference.Reference]

    @property
    def file(self) -> str:
        """The picture's file."""
        return f"curve_{self.name}.svg"

    @property
    def description(self) -> str:
        """Tells those who do not see it what it shows."""
        ends = [f"{label or 'the mean'} ends at {_short(_centre(one)[-1])}" for label, one in self.curves.items()]
        one = next(iter(self.curves.values()))
        steps = display.count(one.facts["env_steps"])
        return f"{self.task}: return of {one.returns.shape[1]} seeds over {steps} steps; {', '.join(ends)}"


def pictures() -> list[Picture]:
    """Returns the pictures of all references; those of one system and task are one picture."""

    def key(one: reference.Reference) -> tuple[str, str]:
        return one.facts["system"], _task(one)

    found = []
    for (system, task), group in itertools.groupby(sorted(reference.read_all(FOLDER), key=key), key):
        references = list(group)
        names = [one.name for one in references]
        shared = os.path.commonprefix(names).rstrip("_")
        labels = [name.removeprefix(shared).strip("_").replace("_", "-") for name in names]
        labels = [label.upper() if label == "lstm" else label for label in labels]
        found.append(Picture(shared, system, task, dict(zip(labels, references, strict=True))))
    return found


def _task(one: reference.Reference) -> str:
    """Returns the task's name, with what of it was set."""
    name = one.facts["env"].partition(":")[2]
    params = reference.task_params(one.facts["settings"])
    told = [f"{key}={value}" for key, value in sorted(params.items()) if key != "backend"]
    return ", ".join([name, *told])


def draw(picture: Picture) -> str:
    """Returns a picture as SVG."""
    left, top, right, bottom = _PANEL
    references = list(picture.curves.values())
    steps = max(one.env_steps[-1] for one in references)
    low, high = _bounds(np.concatenate([one.returns.reshape(-1) for one in references]))

    def points(x: Sequence[float], y: Sequence[float]) -> str:
        across = left + (right - left) * np.asarray(x) / steps
        down = bottom - (bottom - top) * (np.asarray(y) - low) / (high - low)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))

    parts = [f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>']
    parts.append(f'<text class="name" x="14" y="20">{html.escape(picture.task)}</text>')
    parts += _frame(low, high, steps)
    for number, (label, one) in enumerate(picture.curves.items()):
        centre, *ends = curves.band(one.returns)
        area = points([*one.env_steps, *one.env_steps[::-1]], [*ends[0], *ends[1][::-1]])
        parts.append(f'<polygon class="band band{number}" points="{area}"/>')
        parts += [
            f'<polyline class="seed seed{number}" points="{points(one.env_steps, seed)}"/>' for seed in one.returns.T
        ]
        parts.append(f'<polyline class="line line{number}" points="{points(one.env_steps, centre)}"/>')
        if label:
            x = right - 110 * (len(picture.curves) - 1 - number)
            parts.append(f'<text class="end word{number}" x="{x}" y="38">{html.escape(label)}</text>')
    body = "\n".join(parts)
    about = html.escape(picture.description)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="{about}">\n<title>{about}</title>\n<style>{_STYLE}</style>\n'
        f"{body}\n</svg>\n"
    )


def _frame(low: float, high: float, steps: float) -> Iterator[str]:
    """Yields rules with the returns, and the steps below them."""
    left, top, right, bottom = _PANEL
    for share in (0.0, 0.5, 1.0):
        y = bottom - (bottom - top) * share
        yield f'<line class="rule" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        value = _short(low + share * (high - low))
        yield f'<text class="soft end" x="{left - 6}" y="{y + 4:.1f}">{value}</text>'
    for share, anchor in ((0.0, ""), (0.5, " middle"), (1.0, " end")):
        x, value = left + share * (right - left), display.count(share * steps) if share else "0"
        yield f'<text class="soft{anchor}" x="{x:.0f}" y="{bottom + 18}">{value}</text>'
    yield f'<text class="soft middle" x="{(left + right) / 2:.0f}" y="{bottom + 36}">environment steps</text>'


def _bounds(returns: np.ndarray) -> tuple[float, float]:
    """Returns two round numbers around all returns, one of which is 0 unless returns have both signs."""
    step = 10.0 ** np.floor(np.log10(np.abs(returns).max())) / 2
    return float(min(np.floor(returns.min() / step), 0.0) * step), float(max(np.ceil(returns.max() / step), 0.0) * step)


def _centre(one: reference.Reference) -> np.ndarray:
    return curves.band(one.returns)[0]


def _short(value: float) -> str:
    return f"{value:.3g}".replace("-", "−") if abs(value) < 1000 else f"{value:.0f}".replace("-", "−")


def main() -> None:
    """Writes every picture beside this file, and removes those of references that are no more."""
    drawn = pictures()
    for old in set(HERE.glob("curve_*.svg")) - {HERE / one.file for one in drawn}:
        old.unlink()
    for one in drawn:
        (HERE / one.file).write_text(draw(one), encoding="utf-8")


if __name__ == "__main__":
    main()
