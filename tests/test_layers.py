"""Imports go down only: types, numeric functions, replay and agents, learner, parallel, the run, scripts."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "jaxrl_dist"
LAYERS = (
    {"types", "errors"},
    {"settings"},
    {"returns", "values", "distributions", "statistics", "permutations", "precision", "custom", "storage", "events"},
    {"optimizers"},
    {"torsos", "lstm", "noisy"},
    {"networks", "priorities", "blocks"},
    {"q_values", "replay"},
    {"ring", "agents"},
    {"learner", "mixed"},
    {"learn", "memory", "swept"},
    {"envs"},
    {"parallel"},
    {"manifest", "aggregate", "display", "faults", "evaluation", "software", "metrics"},
    {"trackers"},
    {"checkpoint", "loggers", "runs"},
    {"systems"},
    {"published", "band"},
    {"panels"},
    {"plots"},
    {"scores", "search_plots", "training"},
    {"assemble", "study_table", "run_view"},
    {"report", "reference"},
    {"comparison"},
    {"study"},
    {"search"},
    {"records", "saving"},
    {"guard"},
    {"session"},
    {"startup", "probe"},
    {"run_folder", "policy", "auto"},
    {"runner", "histories", "video"},
    {"dry_run"},
    {"commands"},
    {"__init__", "__main__"},
)
FORBIDDEN = {
    "agents": {"parallel", "envs", "replay", "ring", "mixed"},
    "envs": set().union(*LAYERS[3:10]),
    "parallel": {"agents"},
}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in PACKAGE.rglob("*.py"))


def _layer(path: pathlib.Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def _imports(path: pathlib.Path) -> set[tuple[str, ...]]:
    """Returns the project's modules that a file imports, such as ("agents", "base")."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxrl_dist":
            parents = tuple((node.module or "").split(".")[1:])
            names = [alias.name for alias in node.names]
            found |= {(*parents, name) for name in names} if len(parents) < 2 else {parents}
        elif isinstance(node, ast.Import):
            found |= {tuple(a.name.split(".")[1:]) for a in node.names if a.name.startswith("jaxrl_dist.")}
    return {module for module in found if (PACKAGE / module[0]).is_dir() or (PACKAGE / f"{module[0]}.py").exists()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    layer = _layer(path)
    assert layer in RANK, f"{layer} has no layer: add it to this test"
    for module in _imports(path):
        allowed = RANK[module[0]] < RANK[layer] or module[0] == layer
        assert allowed, f"{path.name} ({layer}) imports {'.'.join(module)}"
        if module[0] in FORBIDDEN.get(layer, set()):
            assert module == ("agents", "base"), f"{path.name} ({layer}) must not import {'.'.join(module)}"
