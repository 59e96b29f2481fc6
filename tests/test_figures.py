"""The pictures of the documents are what their scripts make, and light enough to be loaded on the way."""

import importlib.util
import pathlib
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import PIL.Image
import pytest

from jaxrl_dist import systems

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FIGURES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layouts = script("layouts")


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
