"""A room imports only what stands above it; rooms of one line do not know each other."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "jaxrl_dist"
ORDER = (
    {"errors", "simulator", "types"},
    {"settings", "numeric", "processes"},
    {"networks", "replay", "envs", "runs"},
    {"agents"},
    {"learning"},
    {"parallel"},
    {"systems"},
    {"analysis"},
    {"training"},
    {"export"},
    {"commands"},
    {"__init__", "__main__"},
)
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: pathlib.Path) -> set[str]:
    """Returns the project's modules that a file imports, wherever in it, such as "agents.shared.sequences"."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxrl_dist":
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("jaxrl_dist.")}
    return {name.removeprefix("jaxrl_dist.") for name in found}


@pytest.mark.parametrize("room", sorted(RANK))
def test_a_room_imports_only_what_stands_above_it(room: str) -> None:
    wrong = {
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in FILES
        if room_of(path) == room
        for module in imported(path)
        if room != module.split(".")[0] and RANK.get(module.split(".")[0], len(ORDER)) >= RANK[room]
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_every_module_is_in_a_room() -> None:
    assert {room_of(path) for path in FILES} <= set(RANK)


def test_learning_and_layouts_know_of_agents_the_interface_alone() -> None:
    for room in ("learning", "parallel"):
        modules = {module for path in (PACKAGE / room).rglob("*.py") for module in imported(path)}
        assert not [module for module in modules if module.startswith("agents.") and module.count(".") > 1]
        # How an agent lies inside another is part of the interface.
        files = {path.stem for path in (PACKAGE / "agents").rglob("*.py")} - {"wrapping"} | {"shared"}
        assert not [module for module in modules if module.partition("agents.")[2].split(".")[0] in files]


def test_oracles_know_nothing_of_the_package() -> None:
    """They are the papers' equations in NumPy; `call.py` alone is their bridge."""
    folder = PACKAGE.parent / "tests" / "oracles"
    files = [path for path in sorted(folder.glob("*.py")) if path.name != "call.py"]
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert names <= {"math", "fractions", "numpy", "typing", "collections.abc", "oracles"}, path.name
    assert len(files) > 10
