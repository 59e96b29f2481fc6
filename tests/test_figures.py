"""The pictures of the documents are what their scripts make, and light enough to be loaded on the way."""

import importlib.util
import pathlib
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import PIL.Image
import pytest

from jaxrl_dist import systems
from jaxrl_dist.analysis import reference

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FIGURES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layouts, curves = script("layouts"), script("curves")


def test_each_layout_has_its_picture() -> None:
    names = {layout.name for row in systems.SYSTEMS.values() for layout in row.layouts}
    assert {layout.name for layout in layouts.LAYOUTS} == names
    assert {path.name for path in FIGURES.glob("layout_*.svg")} == {f"layout_{name}.svg" for name in names}


@pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=lambda layout: layout.name)
def test_the_picture_of_a_layout_is_what_the_script_draws(layout: Any) -> None:
    kept = (FIGURES / f"layout_{layout.name}.svg").read_text(encoding="utf-8")
    assert kept == layouts.draw(layout), "python docs/figures/layouts.py rewrites it"
    tree = ElementTree.fromstring(kept)
    assert layout.description in "".join(tree.itertext())
    # Every colour of light has one of dark.
    light, _, dark = layouts._STYLE.partition("@media (prefers-color-scheme: dark)")
    coloured = re.compile(r"\.?[\w]+(?= \{[^}]*#)")
    assert set(coloured.findall(light)) == set(coloured.findall(dark))


def test_the_film_is_light_and_runs_for_ever() -> None:
    path = FIGURES / "first_run.gif"
    assert path.stat().st_size <= 500_000
    with PIL.Image.open(path) as film:
        assert film.n_frames > 50 and film.info["loop"] == 0


def test_the_pictures_stand_where_a_newcomer_looks() -> None:
    shown = {"first_run.gif", "first_run.png", *(f"layout_{layout.name}.svg" for layout in layouts.LAYOUTS)}
    for page in ("README.md", "docs/index.md"):
        pictures = re.findall(r"!\[([^\]]+)\]\(\S*figures/([\w.]+)\)", (ROOT / page).read_text(encoding="utf-8"))
        assert shown <= {name for _, name in pictures} and all(len(text) > 10 for text, _ in pictures)


def test_the_reference_curves_are_what_the_script_draws() -> None:
    drawn = {one.file: curves.draw(one) for one in curves.pictures()}
    assert {path.name for path in FIGURES.glob("curve_*.svg")} == set(drawn)
    number = re.compile(r"-?\d+(?:\.\d+)?")
    for name, text in drawn.items():
        kept = (FIGURES / name).read_text(encoding="utf-8")
        assert number.sub("", kept) == number.sub("", text), f"{name}: python docs/figures/curves.py rewrites it"
        # A tenth of a pixel may be rounded either way.
        assert np.allclose(*([float(x) for x in number.findall(one)] for one in (kept, text)), rtol=0, atol=0.11), name
        ElementTree.fromstring(kept)


def test_a_picture_of_curves_has_its_numbers_in_place() -> None:
    steps, returns = np.array([0.0, 500.0, 1000.0]), np.array([[0.0, 0.0], [4.0, 6.0], [10.0, 10.0]])
    facts = {"system": "ppo", "env": "mine:task", "settings": {}, "env_steps": 1000, "seeds": [0, 1]}
    picture = curves.Picture("task", "ppo", "task", {"": reference.Reference("task", facts, steps, returns)})
    left, top, right, bottom = curves._PANEL
    middle, height = (left + right) / 2, bottom - top
    lines = {one.get("class"): one.get("points") for one in ElementTree.fromstring(curves.draw(picture)).iter()}
    assert (
        lines["line line0"] == f"{left:.1f},{bottom:.1f} {middle:.1f},{bottom - height / 2:.1f} {right:.1f},{top:.1f}"
    )
    # The last of the seeds.
    assert lines["seed seed0"].split()[1] == f"{middle:.1f},{bottom - 0.6 * height:.1f}"
    assert picture.description.endswith("the mean ends at 10")


def test_colours_of_curves_have_a_light_and_a_dark_form() -> None:
    light, _, dark = curves._STYLE.partition("@media (prefers-color-scheme: dark)")
    assert set(re.findall(r"\.(\w+)(?=[^{}]*\{[^}]*#)", light)) == set(re.findall(r"\.(\w+)(?=[^{}]*\{[^}]*#)", dark))
