"""Settings: declarations read without importing, values in rising rank with their origins, comparison of runs."""

import ast
import dataclasses
import importlib
import json
import math
import pathlib

import pytest

from jaxrl_dist import config, declarations, differences, resolution, systems
from jaxrl_dist.presets import base as presets

CONFIG_FILES = sorted(
    (path, node.name)
    for path in config.PACKAGE.rglob("*.py")
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.ClassDef) and node.name.endswith("Config")
)

DECLARATION = '''
from jaxrl_dist.config import setting

class {name}:
    """Settings."""
{body}
'''

SOURCES = {
    "runner.py": """
    system: str = setting("toy", "System.")
    env: str = setting("", "Environment.")
    layout: str = setting("", "Layout.")
    steps: int = setting(1_000, "Steps.", low=1, tag="tunable")
    stop_at_return: float = setting(float("inf"), "Return.", tag="tunable")
    seed: int = setting(0, "Seed.", low=0)
    out: str = setting("", "Folder.", tag="tunable")
""",
    "agents/toy.py": """
    discount: float = setting(0.9, "Discount.", low=0.0, high=1.0, source="Toy 2001")
    double: bool = setting(False, "Switch.")
    scale: float = setting(1.0, "Scale.", above=0.0)
""",
    "networks.py": """
    torso: str = setting("mlp", "Torso.", choices=("mlp", "cnn", "module:Class"))
    hidden_sizes: tuple[int, ...] = setting((64, 64), "Widths.", low=1)
""",
    "envs/base.py": """
    num_envs: int = setting(2, "Environments.", low=1)
""",
}
EMPTY = ("learner.py", "parallel/here.py", "parallel/there.py", "evaluation.py", "checkpoint.py", "loggers.py")

TOY = systems.System(
    name="toy",
    agent="toy",
    replay="latest",
    layouts=("here", "there"),
    settings={"agent.discount": systems.Setting(0.8, "Toy 2002")},
    families={"classic": {"agent.discount": systems.Setting(0.7, "Toy 2003")}},
    summary="A toy.",
)


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A package of a few declarations, with one system."""
    for name in (*SOURCES, *EMPTY):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(DECLARATION.format(name="Config", body=SOURCES.get(name, "")))
    (tmp_path / "replay.py").write_text(DECLARATION.format(name="LatestConfig", body=""))
    monkeypatch.setattr(systems, "SYSTEMS", {"toy": TOY})
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "12", 12),
        ("int", "1e6", 1_000_000),
        ("int", "1_000_000", 1_000_000),
        ("int", "2.0", 2),
        ("int", "123456789012345678", 123456789012345678),
        ("int", 7, 7),
        ("int", "-3", -3),
        ("float", "2.5e-4", 2.5e-4),
        ("float", "3", 3.0),
        ("float", 1, 1.0),
        ("bool", "true", True),
        ("bool", "False", False),
        ("bool", "1", True),
        ("bool", "0", False),
        ("bool", True, True),
        ("str", "a=b", "a=b"),
        ("str", "", ""),
        ("tuple[int, ...]", "64,64", (64, 64)),
        ("tuple[int, ...]", "(64, 32)", (64, 32)),
        ("tuple[int, ...]", "64", (64,)),
        ("tuple[int, ...]", "", ()),
        ("tuple[int, ...]", [64, 64], (64, 64)),
        ("tuple[str, ...]", "a,b", ("a", "b")),
    ],
)
def test_parse_gives_the_value_of_the_type(kind: str, text: object, value: object) -> None:
    parsed = declarations.parse(declarations.Field("x", kind, None, ""), text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "1.5"),
        ("int", "x"),
        ("int", ""),
        ("int", "1e400000000"),
        ("int", "9" * 5000),
        ("int", "inf"),
        ("int", "nan"),
        ("int", True),
        ("int", None),
        ("float", "nan"),
        ("float", "inf"),
        ("float", "1e999"),
        ("float", "0x10"),
        ("float", False),
        ("bool", "maybe"),
        ("bool", "2"),
        ("bool", ""),
        ("str", 3),
        ("tuple[int, ...]", "64,x"),
        ("tuple[int, ...]", 64),
        ("tuple[int, ...]", "64 64"),
    ],
)
def test_parse_refuses_another_type(kind: str, text: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        declarations.parse(declarations.Field("x", kind, None, ""), text)


def test_bounds_are_inclusive_but_for_above_and_below() -> None:
    field = declarations.Field("x", "float", 0.5, "", low=0.0, high=1.0)
    assert [declarations.parse(field, text) for text in ("0", "1")] == [0.0, 1.0]
    for text in ("-0.001", "1.001"):
        with pytest.raises(ValueError, match="a number >= 0 and <= 1"):
            declarations.parse(field, text)
    with pytest.raises(ValueError, match="a number > 0"):
        declarations.parse(declarations.Field("x", "float", 1.0, "", above=0.0), "0")
    within = declarations.Field("x", "float", 0.5, "", low=0.0, below=1.0)
    assert declarations.parse(within, "0.999") == 0.999
    with pytest.raises(ValueError, match="a number >= 0 and < 1"):
        declarations.parse(within, "1")
    with pytest.raises(ValueError, match="each >= 1"):
        declarations.parse(declarations.Field("x", "tuple[int, ...]", (), "", low=1), "4,0")


def test_infinity_is_valid_only_where_it_is_the_default() -> None:
    assert declarations.parse(declarations.Field("x", "float", math.inf, ""), "inf") == math.inf
    with pytest.raises(ValueError, match="expected"):
        declarations.parse(declarations.Field("x", "float", math.inf, ""), "-inf")


def test_choices_name_the_nearest_and_admit_classes_of_the_users() -> None:
    field = declarations.Field("x", "str", "mlp", "", choices=("mlp", "nature_cnn", "module:Class"))
    assert declarations.parse(field, "my_module.sub:MyNet") == "my_module.sub:MyNet"
    for text in ("Nature-CNN", "my_module", ":MyNet", "my module:Net"):
        with pytest.raises(ValueError, match="one of mlp, nature_cnn, module:Class"):
            declarations.parse(field, text)
    with pytest.raises(ValueError, match=r"did you mean nature_cnn\?"):
        declarations.parse(field, "Nature-CNN")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    x: int = 3", "declared with config.setting"),
        ("    x: int = setting(2 * n, 'X.')", "must consist of literals"),
        ("    x: dict = setting({}, 'X.')", "declared with config.setting"),
    ],
)
def test_declarations_that_cannot_be_read_are_refused(tmp_path: pathlib.Path, body: str, message: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(DECLARATION.format(name="Config", body=body))
    with pytest.raises(ValueError, match=message):
        declarations.read(path)
    with pytest.raises(ValueError, match="no class Other"):
        declarations.read(path, "Other")


@pytest.mark.parametrize(("path", "name"), CONFIG_FILES, ids=lambda value: getattr(value, "stem", value))
def test_what_is_read_equals_what_is_imported(path: pathlib.Path, name: str) -> None:
    parts = path.relative_to(config.PACKAGE.parent).with_suffix("").parts
    imported = dataclasses.fields(getattr(importlib.import_module(".".join(parts)), name))
    read = declarations.read(path, name)
    assert [field.name for field in read] == [field.name for field in imported]
    for ours, theirs in zip(read, imported, strict=True):
        assert ours.default == theirs.default and type(ours.default) is type(theirs.default)
        assert {key: getattr(ours, key) for key in theirs.metadata} == dict(theirs.metadata)
        kind = theirs.type if isinstance(theirs.type, str) else getattr(theirs.type, "__name__", str(theirs.type))
        assert ours.kind == (str(theirs.type) if kind == "tuple" else kind)
        assert declarations.parse(ours, ours.default) == ours.default
        assert ours.help.endswith(".") and ours.tag in ("identity", "tunable")


def test_values_rise_in_rank_and_name_their_origin(root: pathlib.Path) -> None:
    def discount(flags: dict[str, str], **layers: object) -> tuple[float, str]:
        resolved = resolution.resolve(flags, root=root, **layers)  # type: ignore[arg-type]
        return resolved["agent.discount"], resolved.origins["agent.discount"]

    preset = presets.Preset("toy/fast", (), {"agent.discount": systems.Setting(0.6, "Toy 2004")})
    assert discount({}) == (0.8, "paper: Toy 2002")
    assert discount({}, family="atari") == (0.8, "paper: Toy 2002")
    assert discount({}, family="classic") == (0.7, "family classic: Toy 2003")
    assert discount({}, family="classic", preset=preset) == (0.6, "preset toy/fast: Toy 2004")
    assert discount({"agent.discount": "0.5"}, family="classic", preset=preset) == (0.5, "flag")
    resolved = resolution.resolve({}, root=root)
    assert (resolved["agent.scale"], resolved.origins["agent.scale"]) == (1.0, "default")
    assert (resolved["layout"], resolved.origins["layout"]) == ("here", "system toy")
    assert (resolved["system"], resolved.origins["system"]) == ("toy", "default")
    assert resolution.resolve({"layout": "there"}, root=root).origins["layout"] == "flag"


def test_groups_build_config_instances(root: pathlib.Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Agent:
        discount: float
        double: bool
        scale: float

    @dataclasses.dataclass(frozen=True)
    class Run:
        seed: int
        steps: int

    resolved = resolution.resolve({"agent.double": "true", "steps": "2e3"}, root=root)
    assert resolved.group("agent", Agent) == Agent(0.8, True, 1.0)
    assert resolved.group("", Run) == Run(0, 2_000)


def test_parameters_of_the_environment_pass_through_as_text(root: pathlib.Path) -> None:
    resolved = resolution.resolve({"env.params.max_steps": "200", "env.params.slip": 0.5}, root=root)
    assert resolved.env_params == {"max_steps": "200", "slip": "0.5"}
    with pytest.raises(config.UsageError, match="no such flag"):
        resolution.resolve({"env.params.max-steps": "1"}, root=root)


def test_short_names_stand_for_the_full_ones(root: pathlib.Path) -> None:
    assert resolution.resolve({"network": "cnn"}, root=root)["network.torso"] == "cnn"
    with pytest.raises(config.UsageError, match=r"--network is short for --network\.torso"):
        resolution.resolve({"network": "cnn", "network.torso": "mlp"}, root=root)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"agent.discont": "1"}, r"--agent\.discont: toy has no such flag; did you mean --agent\.discount\?"),
        ({"discount": "1"}, r"did you mean --agent\.discount\?"),
        ({"learner.discount": "1"}, r"did you mean --agent\.discount\?"),
        ({"agent.discount": "2"}, r"--agent\.discount=2: expected a number >= 0 and <= 1"),
        ({"system": "toi"}, r"--system=toi: expected one of toy; did you mean toy\?"),
        ({"layout": "their"}, r"--layout=their: toy runs in here, there or auto; did you mean there\?"),
    ],
)
def test_errors_are_one_line_with_the_nearest(root: pathlib.Path, flags: dict[str, str], message: str) -> None:
    with pytest.raises(config.UsageError, match=message) as error:
        resolution.resolve(flags, root=root)
    assert "\n" not in str(error.value)


def test_restore_reads_back_what_as_json_wrote(root: pathlib.Path) -> None:
    resolved = resolution.resolve(
        {"network.hidden_sizes": "8,8", "env.params.a": "1", "layout": "there"}, "classic", root=root
    )
    text = json.dumps(resolved.as_json(), allow_nan=False)
    assert resolution.restore(json.loads(text), root=root) == resolved


@pytest.mark.parametrize("contents", [{}, [], {"settings": 3}, {"settings": {"seed": 1}}, None])
def test_contents_of_another_file_are_refused(root: pathlib.Path, contents: object) -> None:
    with pytest.raises(config.UsageError, match=r"config\.json"):
        resolution.restore(contents, root=root)  # type: ignore[arg-type]


def test_difference_splits_identity_from_tunable(root: pathlib.Path) -> None:
    old = resolution.resolve({"env.params.a": "1", "network.hidden_sizes": "8"}, root=root).as_json()
    assert resolution.resolve({"env.params.a": "1", "network.hidden_sizes": "8"}, root=root).difference(old) == ((), ())
    new = resolution.resolve({"seed": "1", "steps": "2e3", "out": "elsewhere"}, root=root).difference(old)
    assert new.identity == (
        ("seed", 0, 1),
        ("network.hidden_sizes", [8], [64, 64]),
        ("env.params.a", "1", None),
    )
    assert new.tunable == (("steps", 1_000, 2_000), ("out", "", "elsewhere"))
    assert differences.describe(new.identity, limit=1) == "seed 0 -> 1, and 2 more"


def test_a_setting_newer_than_the_file_had_its_default(root: pathlib.Path) -> None:
    old = resolution.resolve({}, root=root).as_json()
    del old["settings"]["agent.scale"]
    assert resolution.resolve({}, root=root).difference(old).identity == ()
    changed = resolution.resolve({"agent.scale": "2"}, root=root).difference(old)
    assert changed.identity == (("agent.scale", 1.0, 2.0),)


def test_every_setting_changed_once_is_identity_or_tunable(root: pathlib.Path) -> None:
    base = resolution.resolve({}, root=root)
    others = {"bool": "true", "int": "77", "float": "0.25", "tuple[int, ...]": "3"}
    for name, field in base.fields.items():
        if name not in ("system", "layout", "network.torso"):
            changed = resolution.resolve({name: others.get(field.kind, "text")}, root=root).difference(base.as_json())
            assert [change.name for change in getattr(changed, field.tag)] == [name]
            assert len(changed.identity) + len(changed.tunable) == 1
