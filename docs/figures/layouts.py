"""Draws how data flows in each layout: layout_NAME.svg, here. Example: python docs/figures/layouts.py

It writes SVG itself, as text that a reader's browser sets, so that a picture follows the reader's light or dark and is
the same from whichever version of whichever library.
"""

import html
import pathlib
import sys
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
_WIDTH, _HEIGHT = 270, 246
_LEFT, _INNER, _SHIFT = 20, 230, 4
# Where the flow goes down and where it comes back, and the line of its words.
_DOWN, _UP, _BETWEEN = 40, 222, 146
_STYLE = """
.card { fill: #ffffff; stroke: #d0d7de } .group { fill: none; stroke: #6e7781; stroke-dasharray: 4 3 }
.play { fill: #ddf0ff; stroke: #0969da } .learn { fill: #fff1d6; stroke: #9a6700 }
.line { fill: none; stroke: #424a53; stroke-width: 1.5 } .head { fill: #424a53 }
text { fill: #1f2328; font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
.name { font-weight: 600 } .small { font-size: 12px; fill: #424a53 } .middle { text-anchor: middle }
.end { text-anchor: end }
@media (prefers-color-scheme: dark) {
  .card { fill: #161b22; stroke: #30363d } .group { stroke: #8b949e }
  .play { fill: #0c2d4d; stroke: #58a6ff } .learn { fill: #3d2b06; stroke: #d29922 }
  .line { stroke: #c9d1d9 } .head { fill: #c9d1d9 } text { fill: #f0f6fc } .small { fill: #c9d1d9 }
}
"""


class Layout(NamedTuple):
    """A picture in words.

    Attributes:
        name: of the layout.
        about: where it is at home.
        description: of the whole picture, for those who do not see it.
        play: title and text of the upper box.
        learn: title and text of the lower box.
        sent: from the upper box to the lower one.
        returned: from the lower box to the upper one.
        frames: top and bottom of each frame around what runs in one place.
        notes: in these frames, with their heights.
        copies: of the upper box, one behind the other.
    """

    name: str
    about: str
    description: str
    play: tuple[str, str]
    learn: tuple[str, str]
    sent: tuple[str, str]
    returned: str
    frames: tuple[tuple[int, int], ...]
    notes: tuple[tuple[str, int], ...]
    copies: int = 1


LAYOUTS = (
    Layout(
        "anakin",
        "environments written in JAX",
        "Each device runs one compiled program: environments and agent play, their unrolls go to the learner, and its "
        "parameters come back. Gradients are summed over devices.",
        ("play", "environments ⇄ agent"),
        ("learn", "replay → loss → optimiser"),
        ("unrolls", ""),
        "parameters",
        ((40, 238),),
        (("each device: one compiled program", 55), ("gradients are summed over devices", 230)),
    ),
    Layout(
        "sebulba",
        "environments on the CPU",
        "Actor threads play environments on the CPU. Their unrolls wait in a queue for the learner on the "
        "accelerators, whose parameters come back, a version at a time.",
        ("play", "CPU environments ⇄ agent"),
        ("learn", "replay → loss → optimiser"),
        ("unrolls,", "queued"),
        "parameters",
        ((40, 124), (160, 238)),
        (("actor threads", 55), ("accelerators: one program", 230)),
        copies=3,
    ),
    Layout(
        "async_gradient",
        "delayed gradients",
        "Workers play and take gradients. A server applies these one after the other, and each worker gets the new "
        "parameters.",
        ("play and take gradients", "environments ⇄ agent → loss"),
        ("apply", "optimiser, one gradient at a time"),
        ("gradients", ""),
        "parameters",
        ((40, 124), (160, 238)),
        (("workers", 55), ("parameter server", 230)),
        copies=3,
    ),
)


def draw(layout: Layout) -> str:
    """Returns the picture of a layout as SVG."""
    top, bottom = 68, 168
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'role="img" aria-labelledby="title about"><title id="title">{layout.name}: how data flows</title>',
        f'<desc id="about">{layout.description}</desc><style>{_STYLE}</style>',
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8"/>',
        f'<text x="10" y="24"><tspan class="name">{layout.name}</tspan> '
        f'<tspan class="small">{layout.about}</tspan></text>',
    ]
    for start, end in layout.frames:
        parts.append(f'<rect class="group" x="10" y="{start}" width="{_WIDTH - 20}" height="{end - start}" rx="6"/>')
    parts += [_text(18, height, note, "small") for note, height in layout.notes]
    width = _INNER - _SHIFT * (layout.copies - 1)
    for i in reversed(range(layout.copies)):
        parts.append(_box(_LEFT + _SHIFT * i, top - 3 * i, width, "play"))
    parts += [*_words(_LEFT + width // 2, top, layout.play), _box(_LEFT, bottom, _INNER, "learn")]
    parts += [*_words(_LEFT + _INNER // 2, bottom, layout.learn), _arrow(_DOWN, top + 47, bottom - 1)]
    parts += [_arrow(_UP, bottom - 1, top + 47), _text(_UP - 8, _BETWEEN, layout.returned, "end")]
    lines = [line for line in layout.sent if line]
    for i, line in enumerate(lines):
        parts.append(_text(_DOWN + 8, _BETWEEN + 15 * i - 7 * (len(lines) - 1), line))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(x: int, y: int, width: int, kind: str) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="46" rx="5"/>'


def _words(middle: int, y: int, words: tuple[str, str]) -> list[str]:
    name, text = words
    return [_text(middle, y + 19, name, "name middle"), _text(middle, y + 37, text, "small middle")]


def _text(x: int, y: int, text: str, kind: str = "flow") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{html.escape(text)}</text>'


def _arrow(x: int, start: int, end: int) -> str:
    back = 8 if end > start else -8
    line = f'<path class="line" d="M{x} {start} V{end - back}"/>'
    return f'{line}<path class="head" d="M{x - 5} {end - back} H{x + 5} L{x} {end} Z"/>'


def main() -> int:
    """Writes all pictures; returns the exit code."""
    for layout in LAYOUTS:
        (HERE / f"layout_{layout.name}.svg").write_text(draw(layout), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
