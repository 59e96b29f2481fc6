"""Sizes without a flag fit the environments; those with a flag stay, and so does every published setting."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import marks
import pytest

import jaxrl_dist
from jaxrl_dist import errors, systems, types
from jaxrl_dist.learning import learner
from jaxrl_dist.settings.resolve import FLAG
from jaxrl_dist.systems import catalogue, families, fitting
from jaxrl_dist.training import assemble


@pytest.mark.parametrize(
    ("system", "family", "given", "bounds"),
    [
        ("ppo", "continuous", {}, (10.0, 10.0)),
        ("ppo", "continuous", {"agent.scale_rewards": False}, (10.0, 0.0)),
        ("ppo", "continuous", {"agent.normalise_observations": "false"}, (0.0, 10.0)),
        ("ppo", "continuous", {"agent.scale_rewards": False, "agent.clip_rewards": 5}, (10.0, 5.0)),
        ("ppo", "continuous", {"preset": "ppo/paper"}, (0.0, 0.0)),
        ("ppo", "continuous", {"layout": "async_gradient"}, (0.0, 0.0)),
        ("a3c", "continuous", {}, (0.0, 0.0)),
        ("a3c", "grid", {}, (0.0, 0.0)),
        ("impala", "continuous", {"layout": "async_gradient"}, (0.0, 0.0)),
        # Atari's are clipped as they are.
        ("ppo", "atari", {"agent.scale_rewards": False}, (0.0, 1.0)),
        ("a3c", "atari", {}, (0.0, 1.0)),
        ("dppo", "atari", {"agent.scale_rewards": False}, (0.0, 1.0)),
        ("ppo", "grid", {"agent.normalise_observations": False}, (0.0, 0.0)),
    ],
)
def test_bounds_for_normalised_numbers_are_for_these_alone(
    system: str, family: str, given: dict[str, Any], bounds: tuple[float, float]
) -> None:
    """A goal's 100 in MountainCarContinuous, and a fall's -100 in BipedalWalker, would count as 10 otherwise."""
    found = catalogue.resolved({"system": system, **given}, family)
    assert (found["agent.clip_observations"], found["agent.clip_rewards"]) == bounds


@pytest.mark.parametrize(
    ("given", "family", "clip"),
    [
        ({}, "continuous", 0.2),
        ({"agent.scale_rewards": False}, "continuous", 0.0),
        ({"agent.scale_rewards": False, "agent.clip_value": 0.3}, "continuous", 0.3),
        # Of small tasks the range is as good with rewards as they are.
        ({"agent.scale_rewards": False}, "classic", 0.2),
    ],
)
def test_a_value_s_range_of_divided_rewards_is_for_these_alone(given: dict[str, Any], family: str, clip: float) -> None:
    """Pendulum's values are in the hundreds, and 500k steps have 244 updates."""
    assert catalogue.resolved({"system": "ppo", **given}, family)["agent.clip_value"] == clip


@pytest.mark.parametrize(
    ("given", "family", "wait"),
    [
        ({"steps": 1_000_000}, "atari", 0.05),
        ({"steps": 50_000_000}, "atari", 0.0),
        ({"steps": 1_000_000, "agent.epsilon_wait": 0.01}, "atari", 0.01),
        ({"steps": 1_000_000, "agent.epsilon_fraction": 0.06}, "atari", 0.0),
        ({"steps": 100}, "classic", 0.5),
        ({"steps": 3_000}, "classic", 0.0),
        ({"steps": 1_000_000, "preset": "dqn/paper"}, "atari", 0.001),
    ],
)
def test_epsilon_does_not_fall_before_learning_starts(given: dict[str, Any], family: str, wait: float) -> None:
    found = catalogue.resolved({"system": "dqn", **given}, family)
    assert found["agent.epsilon_wait"] == wait
    assert ("fitted to replay.min_size=" in found.origins["agent.epsilon_wait"]) == (wait in (0.05, 0.5))


@pytest.mark.parametrize(
    ("system", "family", "given", "sizes"),
    [
        ("ppo", "continuous", {}, (1, 2048, 32)),
        ("ppo", "continuous", {"network.core": "lstm"}, (16, 128, 16)),
        ("ppo", "continuous", {"network.core": "frame_stack"}, (1, 2048, 32)),
        ("ppo", "long", {"network.core": "gru"}, (128, 128, 128)),
        ("vmpo", "continuous", {"network.core": "gtrxl"}, (16, 128, 16)),
        ("ppo", "continuous", {"network.core": "lstm", "layout.unroll_length": 2048}, (1, 2048, 1)),
        ("ppo", "continuous", {"network.core": "lstm", "env.num_envs": 2}, (2, 2048, 2)),
        ("ppo", "classic", {"network.core": "lstm"}, (4, 128, 4)),
    ],
)
def test_a_memory_is_taught_through_short_unrolls_in_several_minibatches(
    system: str, family: str, given: dict[str, Any], sizes: tuple[int, int, int]
) -> None:
    """Of one environment's 2,048 rows there would be one gradient an epoch, through all of them."""
    found = catalogue.resolved({"system": system, **given}, family)
    assert (found["env.num_envs"], found["layout.unroll_length"], found["learner.minibatches"]) == sizes
    assert found["learner.epochs"] == catalogue.resolved({"system": system}, family)["learner.epochs"]


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_published_sizes_fit_already(name: str) -> None:
    row = systems.SYSTEMS[name]
    for layout in row.layout_names:
        for family in families.FAMILIES:
            # As long as Atari's schedules of ε are meant for.
            flags = {"system": name, "layout": layout, "steps": 50_000_000}
            found = catalogue.resolved(flags, family)
            assert [origin for origin in found.origins.values() if "fitted" in origin] == [], (layout, family)


PRESETS = [name for name in catalogue.preset_names() if not name.endswith("/paper")]
# A simulated body takes seconds to make.
BODIES = [name for name in PRESETS if "brax" in name or name.endswith("/ant")]


@pytest.mark.parametrize("name", marks.some(PRESETS, slow=BODIES))
def test_sizes_of_presets_fit_already(name: str) -> None:
    try:
        found = assemble.resolve({"preset": name})[0]
    except errors.UsageError as error:
        pytest.skip(str(error))
    assert [origin for origin in found.origins.values() if "fitted" in origin] == []


# Settings that are given, and what becomes of others in the family of classic control.
CASES = {
    # 96,000 rows are no multiple of 256 columns × 10 rows.
    "capacity": ("r2d2", "anakin", {"env.num_envs": 256}, {"replay.capacity": 97_280}),
    "capacity of a multiple": ("dqn", "anakin", {"env.num_envs": 50}, {"replay.capacity": 10_000}),
    # A window of one step, the row after it, and the frames of a stack, for each of 8,192 columns of one step.
    "a window each": ("dqn", "anakin", {"env.num_envs": 8192, "agent.n_step": 3}, {"replay.capacity": 8 * 8192}),
    # A window of 65 rows in unrolls of 8.
    "a long sequence": (
        "dreamer",
        "anakin",
        {"env.num_envs": 2048, "agent.length": 64},
        {"replay.capacity": 72 * 2048},
    ),
    "given": ("dqn", "anakin", {"env.num_envs": 7, "replay.capacity": 700}, {"replay.capacity": 700}),
    "learning starts": ("dqn", "anakin", {"env.num_envs": 7, "replay.capacity": 700}, {"replay.min_size": 700}),
    "as it was": ("dqn", "anakin", {"env.num_envs": 7}, {"replay.min_size": 1_000}),
    "local replays": ("gorila", "async_gradient", {"env.num_envs": 12}, {"replay.capacity": 10_020}),
    "rows": ("ppo", "anakin", {"env.num_envs": 3}, {"learner.minibatches": 4}),
    "odd rows": ("ppo", "anakin", {"env.num_envs": 3, "layout.unroll_length": 5}, {"learner.minibatches": 3}),
    "columns": ("ppo", "anakin", {"env.num_envs": 6, "network.core": "lstm"}, {"learner.minibatches": 3}),
    "its own columns": ("ppo", "anakin", {"network.core": "lstm"}, {"learner.minibatches": 4}),
    "minibatches given": (
        "ppo",
        "anakin",
        {"env.num_envs": 6, "network.core": "gru", "learner.minibatches": 2},
        {"learner.minibatches": 2},
    ),
    "actors": ("impala", "sebulba", {"env.num_envs": 7}, {"layout.num_actors": 1}),
    "workers": ("gorila", "async_gradient", {"env.num_envs": 6}, {"layout.num_workers": 3}),
}


@pytest.mark.parametrize(("name", "layout", "given", "expected"), CASES.values(), ids=CASES)
def test_sizes_fit_what_is_given(name: str, layout: str, given: dict[str, object], expected: dict[str, object]) -> None:
    found = catalogue.resolved({"system": name, "layout": layout, **given}, "classic")
    before = catalogue.resolved({"system": name, "layout": layout}, "classic")
    for setting, value in expected.items():
        assert found[setting] == value
        is_fitted = setting not in given and value != before[setting]
        assert ("fitted to env.num_envs" in found.origins[setting]) == is_fitted
    assert all(found.origins[setting] == FLAG for setting in given)


# The number of workers, the age that somebody gives, and the largest age that a gradient may have.
AGES = {
    "as it was": ({}, 16),
    "few": ({"layout.num_workers": 2}, 16),
    "one more": ({"layout.num_workers": 5, "env.num_envs": 5}, 20),
    "many": ({"layout.num_workers": 64, "env.num_envs": 64}, 256),
    "given": ({"layout.num_workers": 64, "env.num_envs": 64, "layout.max_gradient_age": 16}, 16),
    "no limit": ({"layout.num_workers": 64, "env.num_envs": 64, "layout.max_gradient_age": -1}, -1),
}


@pytest.mark.parametrize("case", AGES)
def test_each_worker_has_its_turn_before_its_gradient_is_too_old(case: str) -> None:
    given, age = AGES[case]
    found = catalogue.resolved({"system": "gorila", **given}, "classic")
    assert found["layout.max_gradient_age"] == age
    assert ("fitted to layout.num_workers=" in found.origins["layout.max_gradient_age"]) == (
        age != 16 and "layout.max_gradient_age" not in given
    )
    # A3C has no limit.
    assert catalogue.resolved({"system": "a3c", **given}, "classic").settings["layout.max_gradient_age"] == given.get(
        "layout.max_gradient_age", -1
    )


@pytest.mark.parametrize("name", [name for name in catalogue.preset_names() if "gorila" in name or "a3c" in name])
def test_presets_take_a_gradient_of_each_of_their_workers(name: str) -> None:
    flags = {"preset": name} | ({"env": "toy:walk"} if name.endswith("/paper") else {})
    settings: Any = assemble.resolve(flags)[0].settings
    assert not 0 <= settings.get("layout.max_gradient_age", -1) < settings.get("layout.num_workers", 1) - 1


def test_impalas_minibatches_divide_its_columns() -> None:
    found = catalogue.resolved({"system": "impala", "layout": "anakin", "env.num_envs": 6}, "minatar")
    assert found["learner.minibatches"] == 3


@pytest.mark.parametrize("name", [name for name, row in systems.SYSTEMS.items() if "discrete" in row.actions])
def test_the_table_says_which_agents_learn_from_columns(name: str) -> None:
    if systems.SYSTEMS[name].replay.keeps_rows:
        pytest.skip("batches of a replay have a size of their own")
    found, task = assemble.resolve({"system": name})
    agent = assemble.make_agent(found, task.spec)
    assert systems.SYSTEMS[name].sequences == agent.keeps_sequences


@pytest.mark.parametrize("name", [name for name, row in systems.SYSTEMS.items() if row.replay.keeps_rows])
def test_a_window_that_is_made_is_none_longer_than_is_fitted(name: str) -> None:
    env = "gymnax:CartPole-v1" if "discrete" in systems.SYSTEMS[name].actions else "gymnax:Pendulum-v1"
    found, task = assemble.resolve({"system": name, "env": env})
    agent = assemble.make_agent(found, task.spec, getattr(task, "step", None))
    window = agent.context + agent.taught + agent.lookahead
    assert window <= 1 + sum(found.settings.get(flag, 0) for flag in fitting._WINDOW)


@pytest.mark.parametrize("num_envs", [3, 11, 48, 256])
@pytest.mark.parametrize("name", ["dqn", "r2d2", "ppo", "impala", "rainbow", "impala_replay"])
def test_any_number_of_environments_makes_a_replay(name: str, num_envs: int) -> None:
    flags = {"system": name, "env": "gymnax:CartPole-v1", "layout": "anakin", "env.num_envs": num_envs}
    found, task = assemble.resolve(flags)
    made = assemble.make_replay(found, assemble.make_agent(found, task.spec), found.group("learner", learner.Config))
    assert made.updates > (0, 0)


@pytest.mark.parametrize("name", ["dqn", "rainbow", "discrete_sac"])
def test_each_agent_of_an_environment_adds_rows_to_a_replay(name: str) -> None:
    flags = {"system": name, "env": "toy:team", "layout": "anakin"}
    found, task = assemble.resolve(flags)
    agent = assemble.make_agent(found, task.spec)
    made = assemble.make_replay(found, agent, found.group("learner", learner.Config), num_agents=3)
    assert made.updates > (0, 0)
    block = 3 * found["env.num_envs"] * found["layout.unroll_length"]
    alone = catalogue.resolved(flags, "classic")
    assert (
        alone["replay.capacity"] % block and found["replay.capacity"] == -(-alone["replay.capacity"] // block) * block
    )
    # A run that goes on has the same sizes before its environment is known.
    before = fitting.fit_as_in(alone, found.as_json())
    assert (before.settings, before.origins) == (found.settings, found.origins)
    many = assemble.resolve({**flags, "env.num_envs": 8192, "agent.n_step": 3})[0] if name == "dqn" else None
    # A window of one step, the rows after it, and the frames of a stack, for each column.
    assert many is None or many["replay.capacity"] == 8 * 3 * 8192
    given = assemble.resolve({**flags, "replay.capacity": 2 * block})[0]
    assert given["replay.capacity"] == 2 * block


def test_what_is_given_is_refused_where_it_does_not_fit() -> None:
    with pytest.raises(errors.UsageError, match=r"replay\.capacity=1000 is no multiple of 256"):
        jaxrl_dist.make("dqn", "toy:walk", settings={"env.num_envs": 256, "replay.capacity": 1000})


UNKNOWN, KNOWN = (0.0, float("inf")), (-1.0, 0.0)
QUANTILES: dict[str, float | str] = {"agent.distribution": "quantile", "agent.error_clip": 1.0}
# System, the flags given, the rewards' bounds -> what is fitted to them.
ENDS: dict[str, tuple[str, dict[str, float | str], tuple[float, float], dict[str, float | str]]] = {
    "quantiles": ("rainbow", {}, UNKNOWN, QUANTILES),
    "clip given": ("rainbow", {"agent.error_clip": 0.5}, UNKNOWN, {"agent.distribution": "quantile"}),
    "no quantiles": ("d4pg", {}, UNKNOWN, {"agent.num_atoms": 1}),
    "known": ("rainbow", {}, KNOWN, {}),
    "known, no quantiles": ("d4pg", {}, KNOWN, {}),
    "no lowest": ("rainbow", {}, (-float("inf"), 1.0), QUANTILES),
    "ends given": ("rainbow", {"agent.value_low": -1.0, "agent.value_high": 3.0}, UNKNOWN, {}),
    "atoms given": ("rainbow", {"agent.num_atoms": 11}, UNKNOWN, {}),
    "distribution given": ("rainbow", {"agent.distribution": "categorical"}, UNKNOWN, {}),
    "rewards clipped": ("rainbow", {"agent.clip_rewards": 1.0}, UNKNOWN, {}),
    "quantiles before": ("qr_dqn", {}, UNKNOWN, {}),
    "one atom": ("dqn", {}, UNKNOWN, {}),
    "a policy's distribution": ("ppo", {}, UNKNOWN, {}),
    "support": ("muzero", {}, UNKNOWN, {"agent.value_bound": 300.0, "agent.num_atoms": 601}),
    "a search's": ("alphazero", {}, UNKNOWN, {"agent.value_bound": 300.0, "agent.num_atoms": 601}),
    "support, known": ("muzero", {}, KNOWN, {}),
    "support given": ("muzero", {"agent.value_bound": 40.0}, UNKNOWN, {}),
    "its atoms given": ("muzero", {"agent.num_atoms": 81}, UNKNOWN, {}),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_distribution_needs_no_ends_where_rewards_have_none(case: str) -> None:
    system, flags, reward_range, wanted = ENDS[case]
    found = catalogue.resolved({"system": system, **flags}, "continuous" if system == "d4pg" else "classic")
    spec = types.EnvironmentSpec(
        "mine:task", jax.ShapeDtypeStruct((4,), jnp.float32), types.DiscreteSpace(2), "classic", reward_range
    )
    fitted = fitting.fit_to_task(found, spec)
    assert {name: fitted[name] for name in wanted} == wanted
    assert {name for name in found.settings if fitted[name] != found[name]} == set(wanted)
    assert {name for name in found.origins if fitted.origins[name] != found.origins[name]} == set(wanted)


def test_a_preset_s_support_stays_where_rewards_have_no_ends() -> None:
    found = catalogue.resolved({"system": "muzero"}, "classic")
    found = dataclasses.replace(found, origins={**found.origins, "agent.num_atoms": "preset muzero/mine: ours"})
    spec = types.EnvironmentSpec(
        "mine:task", jax.ShapeDtypeStruct((4,), jnp.float32), types.DiscreteSpace(2), "classic", UNKNOWN
    )
    assert fitting.fit_to_task(found, spec).settings == found.settings


@pytest.mark.parametrize(
    ("system", "env", "setting", "value"),
    [
        ("rainbow", "gymnax:FrozenLake-misc", "agent.distribution", "quantile"),
        ("d4pg", "gymnax:PointRobot-misc", "agent.num_atoms", 1),
    ],
)
def test_defaults_take_a_task_with_unknown_rewards(system: str, env: str, setting: str, value: int | str) -> None:
    assert jaxrl_dist.make(system, env).settings[setting] == value
    with pytest.raises(errors.UsageError, match=r"agent\.value_low"):
        jaxrl_dist.make(system, env, settings={"agent.num_atoms": 21})


@pytest.mark.parametrize(("env", "fitted"), [("gymnax:FrozenLake-misc", True), ("gymnax:FourRooms-misc", False)])
@pytest.mark.parametrize(
    ("system", "setting", "values"),
    [("rainbow", "agent.distribution", ("quantile", "categorical")), ("muzero", "agent.value_bound", (300.0, 20.0))],
)
def test_the_same_flags_give_a_run_s_settings_again_before_its_rewards_are_known(
    system: str, setting: str, values: tuple[Any, Any], env: str, fitted: bool
) -> None:
    flags = {"system": system, "env": env}
    held = assemble.resolve(flags)[0]
    asked = catalogue.resolved(flags)
    assert held[setting] == values[0 if fitted else 1]
    again = catalogue.resolved_as_in(held.as_json(), flags, asked)
    assert again.difference(held.as_json()).identity == again.difference(held.as_json()).tunable == ()
    changed = catalogue.resolved_as_in(held.as_json(), {**flags, "agent.num_atoms": 11}, asked)
    names = {change.name for change in changed.difference(held.as_json()).identity}
    clip = ["agent.error_clip"] if system == "rainbow" else []
    assert names == {"agent.num_atoms", *([setting, *clip] if fitted else [])}


@pytest.mark.parametrize(("steps", "longer"), [(2_000, 4_000), (2_000, 200_000), (200_000, 2_000)])
def test_a_run_that_is_made_longer_or_shorter_is_the_same_though_epsilon_waits_another_share(
    steps: int, longer: int
) -> None:
    flags = {"system": "dqn", "env": "toy:walk", "agent.epsilon_fraction": 0.1}
    held = catalogue.resolved({**flags, "steps": steps}, "classic").as_json()
    named = {**flags, "steps": longer}
    asked = catalogue.resolved(named, "classic")
    assert asked["agent.epsilon_wait"] != held["settings"]["agent.epsilon_wait"]["value"]
    assert catalogue.resolved_as_in(held, named, asked).difference(held).identity == ()
    named["agent.epsilon_wait"] = 0.3
    assert [one.name for one in catalogue.resolved_as_in(held, named, asked).difference(held).identity] == [
        "agent.epsilon_wait"
    ]


PIXELS, REALS = jax.ShapeDtypeStruct((96, 96, 3), jnp.uint8), types.BoxSpace((3,), -1.0, 1.0)
CONVOLUTIONS = {"network.torso": "nature_cnn", "network.hidden_sizes": (512,), "network.activation": "relu"}
# Flags, observation, actions -> what is fitted to them.
PICTURES: dict[str, tuple[dict[str, str], Any, types.ActionSpace, dict[str, Any]]] = {
    "pictures": ({}, PIXELS, REALS, CONVOLUTIONS),
    "beside numbers": ({}, {"eye": PIXELS, "joints": jax.ShapeDtypeStruct((4,), jnp.float32)}, REALS, CONVOLUTIONS),
    "numbers": ({}, jax.ShapeDtypeStruct((4,), jnp.float32), REALS, {}),
    "small pictures": ({}, jax.ShapeDtypeStruct((8, 8, 3), jnp.uint8), REALS, {}),
    "choices": ({}, jax.ShapeDtypeStruct((96, 96, 3), jnp.float32), types.DiscreteSpace(3), CONVOLUTIONS),
    "torso given": ({"network.torso": "mlp"}, PIXELS, REALS, {}),
    "sizes given": ({"network.hidden_sizes": "32"}, PIXELS, REALS, {**CONVOLUTIONS, "network.hidden_sizes": (32,)}),
}


@pytest.mark.parametrize("system", ["ppo", "sac"])
@pytest.mark.parametrize("case", PICTURES)
def test_large_pictures_pass_convolutions(case: str, system: str) -> None:
    flags, observation, action, wanted = PICTURES[case]
    found = catalogue.resolved({"system": system, **flags}, "continuous")
    fitted = fitting.fit_to_task(found, types.EnvironmentSpec("mine:task", observation, action, "continuous"))
    assert {name: fitted[name] for name in wanted} == wanted
    changed = {name for name in found.settings if fitted[name] != found[name]}
    assert changed <= set(wanted) and ("network.torso" in changed) == bool(wanted)
    again = fitting.fit_as_in(found, fitted.as_json())
    assert again.settings == fitted.settings and again.origins == fitted.origins


def test_a_preset_s_torso_stays_with_pictures() -> None:
    found = catalogue.resolved({"system": "ppo"}, "continuous")
    found = dataclasses.replace(found, origins={**found.origins, "network.torso": "preset mine/race: this project"})
    fitted = fitting.fit_to_task(found, types.EnvironmentSpec("mine:task", PIXELS, REALS, "continuous"))
    assert fitted["network.torso"] == found["network.torso"] == "mlp" and fitted.origins == found.origins
