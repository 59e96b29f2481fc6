"""Settings: declared as fields, values in rising rank with their origins, comparison of runs."""

import dataclasses
import importlib
import json
import math
import pkgutil
from typing import Any

import conftest
import jax
import pytest

import jaxrl_dist
from jaxrl_dist import parallel, systems, types
from jaxrl_dist.replay import latest
from jaxrl_dist.settings import Cited, fields, presets, resolve, setting
from jaxrl_dist.systems import catalogue


def config_classes() -> list[type]:
    """Returns every Config of the package."""
    names = [module.name for module in pkgutil.walk_packages(jaxrl_dist.__path__, "jaxrl_dist.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    found = {
        value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and name.endswith("Config") and value.__module__.startswith("jaxrl_dist.")
    }
    return sorted(found, key=lambda one: (one.__module__, one.__name__))


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    """Settings of a toy."""

    discount: float = setting(0.9, "Discount.", low=0.0, high=1.0, source="Toy 2001")
    double: bool = setting(False, "Switch.")
    scale: float = setting(1.0, "Scale.", above=0.0)


@dataclasses.dataclass(frozen=True)
class NoConfig:
    """No settings."""


def layout(name: str) -> parallel.LayoutSpec:
    """Returns a layout that is never made."""

    def choose_devices(settings: Any, devices: Any) -> list[jax.Device]:
        raise NotImplementedError

    return parallel.LayoutSpec(
        name=name,
        summary="A layout.",
        config=NoConfig,
        make=lambda *_: None,  # type: ignore[arg-type,return-value]
        serves=("device",),
        seeds_together=True,
        axis=types.LOCAL,
        choose_devices=choose_devices,
    )


TOY = systems.System(
    name="toy",
    agent=lambda config, spec, network: None,  # type: ignore[arg-type,return-value]
    config=ToyConfig,
    replay=latest.LATEST,
    layouts=(layout("here"), layout("there")),
    actions=("discrete",),
    settings={"agent.discount": Cited(0.8, "Toy 2002")},
    families={"classic": {"agent.discount": Cited(0.7, "Toy 2003")}},
    summary="A toy.",
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a toy the only system."""

    @dataclasses.dataclass(frozen=True)
    class RunConfig(catalogue.RunConfig):
        system: str = setting("toy", "System.")

    monkeypatch.setattr(systems, "SYSTEMS", {"toy": TOY})
    monkeypatch.setattr(catalogue, "RunConfig", RunConfig)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "12", 12),
        ("int", "1e6", 1_000_000),
        ("int", "1_000_000", 1_000_000),
        ("int", "2.0", 2),
        ("int", "2147483647", 2147483647),
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
    parsed = fields.parse(fields.Field("x", kind, None, ""), text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "1.5"),
        ("int", "2147483648"),
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
    with pytest.raises(ValueError):
        fields.parse(fields.Field("x", kind, None, ""), text)


def test_bounds_are_inclusive_but_for_above_and_below() -> None:
    field = fields.Field("x", "float", 0.5, "", low=0.0, high=1.0)
    assert [fields.parse(field, text) for text in ("0", "1")] == [0.0, 1.0]
    for text in ("-0.001", "1.001"):
        with pytest.raises(ValueError, match=">= 0 .*<= 1"):
            fields.parse(field, text)
    with pytest.raises(ValueError, match="> 0"):
        fields.parse(fields.Field("x", "float", 1.0, "", above=0.0), "0")
    within = fields.Field("x", "float", 0.5, "", low=0.0, below=1.0)
    assert fields.parse(within, "0.999") == 0.999
    with pytest.raises(ValueError, match=">= 0 .*< 1"):
        fields.parse(within, "1")
    with pytest.raises(ValueError, match=">= 1"):
        fields.parse(fields.Field("x", "tuple[int, ...]", (), "", low=1), "4,0")


def test_a_number_that_no_program_counts_keeps_its_eighteen_digits() -> None:
    many = fields.Field("x", "int", 0, "", high=fields.MANY)
    assert fields.parse(many, "123456789012345678") == 123456789012345678
    with pytest.raises(ValueError, match=f"<= {fields.MANY}"):
        fields.parse(many, "1000000000000000000")
    assert fields.valid_values(many) == "a whole number"


def test_infinity_is_valid_only_where_it_is_the_default() -> None:
    assert fields.parse(fields.Field("x", "float", math.inf, ""), "inf") == math.inf
    with pytest.raises(ValueError):
        fields.parse(fields.Field("x", "float", math.inf, ""), "-inf")


def test_choices_name_the_nearest_and_admit_classes_of_the_users() -> None:
    field = fields.Field("x", "str", "mlp", "", choices=("mlp", "nature_cnn", "module:Class"))
    assert fields.parse(field, "my_module.sub:MyNet") == "my_module.sub:MyNet"
    for text in ("Nature-CNN", "my_module", ":MyNet", "my module:Net"):
        with pytest.raises(ValueError, match="mlp, nature_cnn, module:Class"):
            fields.parse(field, text)
    with pytest.raises(ValueError, match=r" nature_cnn\?"):
        fields.parse(field, "Nature-CNN")


def test_fields_that_are_not_declared_are_refused() -> None:
    undeclared = dataclasses.make_dataclass("Undeclared", [("x", int, 3)])
    other = dataclasses.make_dataclass("Other", [("x", dict, setting(0, "X."))])
    for config in (undeclared, other):
        with pytest.raises(TypeError, match=r"\.x "):
            fields.of(config)


@pytest.mark.parametrize("config", config_classes(), ids=lambda one: f"{one.__module__}.{one.__name__}")
def test_every_setting_is_declared_in_full(config: type) -> None:
    made = config()
    for field in fields.of(config):
        value = getattr(made, field.name)
        assert field.default == value and type(field.default) is type(value)
        assert fields.parse(field, field.default) == field.default
        assert field.help.endswith(".") and field.tag in ("identity", "tunable")
        assert not field.sweep or (field.kind == "float" and field.tag == "identity")


def test_a_field_of_another_module_may_have_its_annotation_as_text() -> None:
    config = dataclasses.make_dataclass("Config", [("x", "tuple[int, ...]", setting((1,), "X.", low=1, sweep=False))])
    assert fields.of(config)[0].kind == "tuple[int, ...]"


def test_values_rise_in_rank_and_name_their_origin(toy: None) -> None:
    def discount(flags: dict[str, str], **layers: object) -> tuple[float, str]:
        resolved = catalogue.resolved(flags, **layers)  # type: ignore[arg-type]
        return resolved["agent.discount"], resolved.origins["agent.discount"]

    preset = presets.Preset("toy/fast", (), {"agent.discount": fields.Cited(0.6, "Toy 2004")})
    assert discount({}) == (0.8, "paper: Toy 2002")
    assert discount({}, family="atari") == (0.8, "paper: Toy 2002")
    assert discount({}, family="classic") == (0.7, "family classic: Toy 2003")
    assert discount({}, family="classic", preset=preset) == (0.6, "preset toy/fast: Toy 2004")
    assert discount({"agent.discount": "0.5"}, family="classic", preset=preset) == (0.5, "flag")
    resolved = catalogue.resolved({})
    assert (resolved["agent.scale"], resolved.origins["agent.scale"]) == (1.0, "default")
    assert (resolved["layout"], resolved.origins["layout"]) == ("here", "system toy")
    assert (resolved["system"], resolved.origins["system"]) == ("toy", "default")
    assert catalogue.resolved({"layout": "there"}).origins["layout"] == "flag"


def test_groups_build_config_instances(toy: None) -> None:
    @dataclasses.dataclass(frozen=True)
    class Agent:
        discount: float
        double: bool
        scale: float

    @dataclasses.dataclass(frozen=True)
    class Run:
        seed: int
        steps: int

    resolved = catalogue.resolved({"agent.double": "true", "steps": "2e3"})
    assert resolved.group("agent", Agent) == Agent(0.8, True, 1.0)
    assert resolved.group("", Run) == Run(0, 2_000)


def test_parameters_of_the_environment_pass_through_as_text(toy: None) -> None:
    resolved = catalogue.resolved({"env.params.max_steps": "200", "env.params.slip": 0.5})
    assert resolved.env_params == {"max_steps": "200", "slip": "0.5"}
    with conftest.refused("--env.params.max-steps: "):
        catalogue.resolved({"env.params.max-steps": "1"})


def test_short_names_stand_for_the_full_ones(toy: None) -> None:
    assert catalogue.resolved({"network": "minatar_cnn"})["network.torso"] == "minatar_cnn"
    with conftest.refused("--network ", "--network.torso"):
        catalogue.resolved({"network": "minatar_cnn", "network.torso": "mlp"})


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"agent.discont": "1"}, ["--agent.discont: ", " --agent.discount?"]),
        ({"discount": "1"}, ["--discount: ", " --agent.discount?"]),
        ({"learner.discount": "1"}, ["--learner.discount: ", " --agent.discount?"]),
        ({"seeds": "3"}, ["--seeds: ", " --num_seeds?"]),
        ({"epsilon": "1"}, ["--epsilon: ", " --learner.epsilon?"]),
        ({"agent.discount": "2"}, ["--agent.discount=2: ", ">= 0", "<= 1"]),
        ({"system": "toi"}, ["--system=toi: ", "module:SYSTEM", " toy?"]),
        ({"layout": "their"}, ["--layout=their: ", "here, there or auto", " there?"]),
    ],
)
def test_errors_are_one_line_with_the_nearest(toy: None, flags: dict[str, str], named: list[str]) -> None:
    with conftest.refused(*named):
        catalogue.resolved(flags)


def test_restore_reads_back_what_as_json_wrote(toy: None) -> None:
    resolved = catalogue.resolved({"network.hidden_sizes": "8,8", "env.params.a": "1", "layout": "there"}, "classic")
    text = json.dumps(resolved.as_json(), allow_nan=False)
    assert catalogue.restored(json.loads(text)) == resolved


@pytest.mark.parametrize("contents", [{}, [], {"settings": 3}, {"settings": {"seed": 1}}, None])
def test_contents_of_another_file_are_refused(toy: None, contents: object) -> None:
    with conftest.refused("config.json"):
        catalogue.restored(contents)  # type: ignore[arg-type]


def test_difference_splits_identity_from_tunable(toy: None) -> None:
    old = catalogue.resolved({"env.params.a": "1", "network.hidden_sizes": "8"}).as_json()
    assert catalogue.resolved({"env.params.a": "1", "network.hidden_sizes": "8"}).difference(old) == ((), ())
    new = catalogue.resolved({"seed": "1", "steps": "2e3", "out": "elsewhere"}).difference(old)
    assert new.identity == (
        ("seed", 0, 1),
        ("network.hidden_sizes", [8], [64, 64]),
        ("env.params.a", "1", None),
    )
    assert new.tunable == (("steps", 1_000_000, 2_000), ("out", "", "elsewhere"))
    assert resolve.describe(new.identity, limit=1) == "seed 0 -> 1, and 2 more"


def test_a_setting_newer_than_the_file_had_its_default(toy: None) -> None:
    old = catalogue.resolved({}).as_json()
    del old["settings"]["agent.scale"]
    assert catalogue.resolved({}).difference(old).identity == ()
    changed = catalogue.resolved({"agent.scale": "2"}).difference(old)
    assert changed.identity == (("agent.scale", 1.0, 2.0),)
    new, newer = (catalogue.resolved(given).as_json()["settings"] for given in ({}, {"agent.scale": "2"}))
    assert resolve.difference(new, old["settings"]) == ((), ())
    assert resolve.difference(newer, old["settings"]).identity == (("agent.scale", 2.0, 1.0),)


@pytest.mark.parametrize(
    ("name", "tunable"), [("num_threads", True), ("workers", True), ("max_restarts", True), ("frame_skip", False)]
)
def test_a_parameter_of_how_environments_run_may_change(toy: None, name: str, tunable: bool) -> None:
    flag = f"env.params.{name}"
    old, new = (catalogue.resolved({"system": "toy", "env": "envpool:X", flag: value}) for value in ("2", "4"))
    assert old.as_json()["settings"][flag]["tag"] == ("tunable" if tunable else "identity")
    found = new.difference(old.as_json())
    assert found == (((), ((flag, "2", "4"),)) if tunable else (((flag, "2", "4"),), ()))
    left_out = catalogue.resolved({"system": "toy", "env": "envpool:X"})
    assert bool(left_out.difference(old.as_json()).identity) != tunable


def test_every_setting_changed_once_is_identity_or_tunable(toy: None) -> None:
    base = catalogue.resolved({})
    others = {"bool": "true", "int": "77", "float": "0.25", "tuple[int, ...]": "3"}
    for name, field in base.fields.items():
        # A population needs a sweep beside it.
        if name not in ("system", "env", "layout", "preset", "population"):
            named = [one for one in field.choices or () if one != base[name]]
            value = named[0] if named else others.get(field.kind, "text")
            value = "false" if base[name] is True else value
            changed = catalogue.resolved({name: value}).difference(base.as_json())
            assert [change.name for change in getattr(changed, field.tag)] == [name]
            assert len(changed.identity) + len(changed.tunable) == 1
