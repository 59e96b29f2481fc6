"""The notebooks: their saved outputs are whole, and each runs from its first cell to its last with small settings."""

import os
import pathlib
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST_BYTES = 300_000

# In place of what the cell with the parameters chose.
SMALL = {
    "anakin_ppo": "STEPS, NUM_SEEDS = 4_096, 2",
    "own_agent": "ITERATIONS, NUM_ENVS, UNROLL_LENGTH = 24, 8, 8",
    "own_environment": "JAX_STEPS, GYMNASIUM_STEPS, NUM_ENVS, NUM_WORKERS = 4_096, 2_048, 8, 1",
    "r2d2_memory": "MEMORY_LENGTH, STEPS, NUM_SEEDS, MIN_SIZE = 3, 4_096, 1, 640",
    "sebulba_atari": "WARM_UP_STEPS, STEPS, NUM_ENVS = 4_096, 2_048, 8",
}


def read(path: pathlib.Path) -> Any:
    return nbformat.read(path, as_version=4)


def tagged(notebook: Any, tag: str) -> list[Any]:
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def test_every_notebook_is_run_here() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SMALL)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_outputs_are_whole(path: pathlib.Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST_BYTES
    assert "has not yet run on a TPU" in notebook.cells[0].source
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "not run in order"
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    pictures = {kind for output in outputs for kind in output.get("data", {}) if kind.startswith("image/")}
    assert "image/png" in pictures
    assert str(ROOT) not in path.read_text(encoding="utf-8"), "a path of this machine"


def test_all_install_in_the_same_way() -> None:
    cells = [tagged(read(path), "install") for path in NOTEBOOKS]
    assert all(len(found) == 1 for found in cells)
    lines = [[line for line in found[0].source.splitlines() if "EXTRAS =" not in line] for found in cells]
    assert all(other == lines[0] for other in lines)
    assert all('\nREPOSITORY = ""' in found[0].source for found in cells), "no address but the reader's own"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_the_first_cell_to_the_last(
    path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # EnvPool's pictures of Jumanji set it for the whole process, and a kernel with it shows none.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = read(path)
    (parameters,) = tagged(notebook, "parameters")
    parameters.source += f"\n{SMALL[path.stem]}"
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "image/png" in str(output)]
    assert pictures
