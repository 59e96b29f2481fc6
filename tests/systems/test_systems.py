"""The table of systems: its rows name what exists, and its values are those that were published."""

import inspect
import re

import conftest
import jax
import numpy as np
import pytest

from jaxrl_dist import errors, systems, types
from jaxrl_dist.settings import fields, resolve
from jaxrl_dist.systems import catalogue, families
from jaxrl_dist.training import assemble

ROWS = [(system, family) for system in systems.SYSTEMS.values() for family in (None, *system.families)]


@pytest.mark.parametrize("system", systems.SYSTEMS.values(), ids=lambda system: system.name)
def test_a_row_names_its_agent_s_own_settings_and_actions(system: systems.System) -> None:
    assert systems.SYSTEMS[system.name] is system
    agent = inspect.getmodule(system.agent)
    assert agent is not None and system.config is agent.Config and system.actions == agent.ACTIONS
    assert len(set(system.layout_names)) == len(system.layout_names)
    assert set(system.families) <= set(families.FAMILIES)
    assert system.summary.endswith(".")


@pytest.mark.parametrize(("system", "family"), ROWS, ids=lambda value: getattr(value, "name", value))
def test_every_value_fits_its_declaration_and_is_cited(system: systems.System, family: str | None) -> None:
    assert set(system.by_layout) <= set(system.layout_names)
    for layout in system.layout_names:
        settings = {**(system.families[family] if family else system.settings), **system.settings_in(layout, family)}
        known = catalogue.declared(system, layout)
        for name, (value, source) in settings.items():
            parsed = fields.parse(known[name], value)
            assert parsed == value and type(parsed) is type(value), name
            assert source, name
        resolved = catalogue.resolved({"system": system.name, "layout": layout}, family)
        assert all(resolved[name] == value for name, (value, _) in settings.items())


@pytest.mark.parametrize(
    ("system", "family", "published"),
    [
        (
            "ppo",
            "classic",
            {
                "env.num_envs": 4,
                "layout.unroll_length": 128,
                "learner.learning_rate": 2.5e-4,
                "agent.clip_epsilon": 0.2,
            },
        ),
        (
            "ppo",
            "minatar",
            {"env.num_envs": 64, "learner.minibatches": 8, "learner.learning_rate": 5e-3, "network.activation": "relu"},
        ),
        (
            "ppo",
            "atari",
            {"env.num_envs": 8, "layout.unroll_length": 128, "agent.clip_epsilon": 0.1, "network.core": "frame_stack"},
        ),
        (
            "ppo",
            "continuous",
            {"layout.unroll_length": 2048, "learner.minibatches": 32, "learner.epochs": 10, "agent.entropy_cost": 0.0},
        ),
        (
            "ppo",
            "physics",
            {"env.num_envs": 4096, "layout.unroll_length": 80, "agent.discount": 0.97, "agent.clip_epsilon": 0.3},
        ),
        (
            "a2c",
            "classic",
            {"env.num_envs": 8, "layout.unroll_length": 5, "learner.learning_rate": 7e-4, "agent.entropy_cost": 0.0},
        ),
        (
            "a2c",
            "atari",
            {
                "env.num_envs": 16,
                "layout.unroll_length": 5,
                "learner.optimizer": "rmsprop",
                "learner.learning_rate": 7e-4,
                "learner.decay": 0.99,
                "learner.epsilon": 1e-5,
                "learner.max_grad_norm": 0.5,
                "agent.gae_lambda": 1.0,
                "agent.entropy_cost": 0.01,
                "agent.value_cost": 0.5,
                "agent.clip_rewards": 1.0,
                "network.core": "frame_stack",
            },
        ),
        (
            "pqn",
            "classic",
            {
                "env.num_envs": 32,
                "layout.unroll_length": 64,
                "learner.minibatches": 16,
                "learner.epochs": 4,
                "learner.optimizer": "radam",
                "agent.trace_decay": 0.95,
                "network.layer_norm": True,
            },
        ),
        (
            "pqn",
            "minatar",
            {"env.num_envs": 128, "layout.unroll_length": 32, "agent.trace_decay": 0.65, "agent.epsilon_end": 0.05},
        ),
        (
            "pqn",
            "atari",
            {
                "learner.minibatches": 32,
                "learner.learning_rate": 2.5e-4,
                "learner.max_grad_norm": 10.0,
                "learner.anneal": False,
                "agent.epsilon_end": 0.001,
                "network.core": "frame_stack",
            },
        ),
        (
            "dqn",
            "classic",
            {
                "replay.samples_per_insert": 12.8,
                "learner.learning_rate": 1e-4,
                "learner.target_period": 100,
                "agent.epsilon_end": 0.1,
                "agent.epsilon_fraction": 0.5,
            },
        ),
        (
            "iqn",
            "classic",
            {"learner.learning_rate": 2.5e-4, "learner.target_period": 50, "agent.epsilon_end": 0.05},
        ),
        (
            "dqn",
            "minatar",
            {"replay.capacity": 100_000, "learner.target_period": 1_000, "replay.samples_per_insert": 32.0},
        ),
        (
            "dqn",
            "atari",
            {"replay.capacity": 1_000_000, "replay.min_size": 50_000, "learner.decay": 0.95, "learner.anneal": False},
        ),
    ],
)
def test_published_settings_are_reached(system: str, family: str, published: dict[str, object]) -> None:
    resolved = catalogue.resolved({"system": system}, family)
    assert {name: resolved[name] for name in published} == published


def test_pqn_s_code_has_smaller_steps_and_rewards_for_cartpole_than_small_tasks_have() -> None:
    names = ("learner.learning_rate", "agent.reward_scale")
    published, own = (catalogue.resolved(given, "classic") for given in ({"preset": "pqn/cartpole"}, {"system": "pqn"}))
    assert [published[name] for name in names] == [1e-4, 0.1]
    assert [own[name] for name in names] == [2.5e-4, 1.0]


def test_what_a_layout_needs_is_above_the_family_and_below_flags() -> None:
    given = {"system": "dqn", "layout": "async_gradient"}
    shown = {
        family: catalogue.resolved(given, family)["layout.unroll_length"] for family in (None, "classic", "minatar")
    }
    assert shown == {None: 4, "classic": 5, "minatar": 1}
    resolved = catalogue.resolved({**given, "env.num_envs": 16}, "classic")
    assert (resolved["env.num_envs"], resolved.origins["env.num_envs"]) == (16, "flag")
    assert resolved.origins["layout.unroll_length"] == "this project: one gradient per unroll, at the system's own pace"


def test_adam_of_dqn_families_keeps_none_of_rmsprops_constants() -> None:
    for family in ("classic", "minatar"):
        resolved = catalogue.resolved({"system": "dqn"}, family)
        assert (resolved["learner.optimizer"], resolved["learner.decay"]) == ("adam", 0.999)
        assert resolved["learner.epsilon"] != catalogue.resolved({"system": "dqn"})["learner.epsilon"]


@pytest.mark.parametrize("system", systems.SYSTEMS)
def test_an_agent_takes_the_actions_that_it_declares(system: str) -> None:
    observation = jax.ShapeDtypeStruct((4,), np.float32)
    spaces = (types.DiscreteSpace(3), types.BoxSpace((2,), -1.0, 1.0), types.BoxSpace((2,), -np.inf, np.inf))
    # Dreamer's networks are its own, and take no torso.
    torso = {} if system == "dreamer" else {"network.torso": "mlp"}
    settings = catalogue.resolved({"system": system, "env": "toy:walk", **torso})
    for space in spaces:
        try:
            spec = types.EnvironmentSpec("toy:walk", observation, space, "classic", (0, 1))
            # Only acting takes the step.
            assemble.make_agent(settings, spec, lambda state, action: (state, ()))
            takes = True
        except errors.UsageError as error:
            takes = False
            assert system not in str(error).partition(" system=")[2].split(", ")
        assert takes == (system in catalogue.systems_for(space.kind).split(", ")), space


def test_the_changes_list_what_was_renamed() -> None:
    text = (conftest.PACKAGE.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `train.py` \| `--(\S+)` \| `--(\S+)` \|$", text, re.MULTILINE)
    assert dict(rows) == resolve.RENAMED


@pytest.mark.parametrize(
    ("system", "env", "kept"), [("td3", "gymnax:Pendulum-v1", {"agent.policy_period": 2}), ("ppo", "toy:walk", {})]
)
def test_settings_of_an_older_run_are_read_by_their_names_of_today(system: str, env: str, kept: dict[str, int]) -> None:
    settings, _ = assemble.resolve({"system": system, "env": env})
    contents = settings.as_json()
    older = {now: then for then, now in resolve.RENAMED.items()}
    entries = {older.get(name, name): entry for name, entry in contents["settings"].items()}
    # All agents had them.
    entries.setdefault("learner.policy_period", {"value": 1, "origin": "default"})
    entries.setdefault("learner.policy_learning_rate", {"value": 0.0, "origin": "default"})
    contents = {**contents, "settings": entries}
    assert catalogue.restored(contents).settings == settings.settings
    found = settings.difference(contents)
    assert not found.identity and not found.tunable
    assert {name: settings[name] for name in kept} == kept


def test_a_family_stands_above_the_one_that_it_starts_from() -> None:
    """Some systems have values of their own for long tasks, and the rest of classic control; Rainbow has it whole."""
    for system, activation in {"ppo": "tanh", "a2c": "tanh", "impala": "tanh", "dqn": "relu"}.items():
        long, classic = (catalogue.resolved({"system": system}, family) for family in ("long", "classic"))
        for name, (value, _) in systems.SYSTEMS[system].families["long"].items():
            assert long[name] == value and long.origins[name].startswith("family long: ")
        assert long["network.activation"] == classic["network.activation"] == activation
        assert long.origins["network.activation"].startswith("family classic: ")
    for system in ("ppo", "a2c", "impala", "impala_replay", "seed_impala", "ga3c", "rnd", "gpu_sim"):
        grid, classic = (catalogue.resolved({"system": system}, family) for family in ("grid", "classic"))
        assert {name for name, value in grid.settings.items() if value != classic[name]} == {
            "agent.normalise_observations",
            "agent.clip_observations",
            "agent.evaluation_action",
        }
    # Of a room a part is seen, so that a likeliest action may go in circles.
    for system in ("vmpo", "discrete_sac", "ppo", "a3c"):
        found = [catalogue.resolved({"system": system}, family) for family in ("classic", "grid")]
        assert [one["agent.evaluation_action"] for one in found] == ["mode", "sample"]
    # Cells that are not normalised are not clipped.
    for system in ("ppo", "a3c", "impala", "impala_replay"):
        found = catalogue.resolved({"system": system, "layout": "async_gradient"}, "grid")
        assert (found["agent.normalise_observations"], found["agent.clip_observations"]) == (False, 0.0)
    long, classic = (catalogue.resolved({"system": "rainbow"}, family) for family in ("long", "classic"))
    assert "long" not in systems.SYSTEMS["rainbow"].families and dict(long.settings) == dict(classic.settings)
    for name in ("alphazero", "muzero"):
        board, images = (catalogue.resolved({"system": name}, family) for family in ("board", "minatar"))
        assert (board["agent.rescale_values"], board["agent.value_bound"], board["agent.discount"]) == (False, 0.5, 1.0)
        assert images["agent.rescale_values"] and board["replay.capacity"] == images["replay.capacity"]
        # Behind a time limit the value counts, so that nothing else bounds it.
        assert images["agent.discount"] == 0.997
    waits = systems.SYSTEMS["apex_dqn"].settings_in("async_gradient", "classic")
    assert waits and systems.SYSTEMS["apex_dqn"].settings_in("async_gradient", "long") == waits


@pytest.mark.parametrize("family", ["classic", "long", "grid", "minatar", "continuous", "physics"])
def test_a_worker_s_unroll_of_ppo_is_a_minibatch_of_its_own_layout(family: str) -> None:
    """It gives one gradient. Of unrolls for 256 of them, LunarLander had 244 in a million steps."""
    own, worker = (catalogue.resolved({"system": "ppo", "layout": one}, family) for one in ("anakin", "async_gradient"))
    rows = worker["env.num_envs"] // worker["layout.num_workers"] * worker["layout.unroll_length"]
    assert rows == own["env.num_envs"] * own["layout.unroll_length"] // own["learner.minibatches"]


# Settings of a paper's rule, which families of small tasks have values of their own for.
OF_PAPERS = (
    *("learner.optimizer", "learner.learning_rate", "learner.epsilon", "learner.decay", "learner.momentum"),
    *("learner.max_grad_norm", "learner.anneal", "learner.reduction", "learner.epochs", "learner.target_period"),
    *("agent.discount", "agent.entropy_cost", "agent.reward_scale", "network.layer_norm"),
    *("agent.normalise_observations", "agent.scale_rewards", "agent.clip_value"),
)


@pytest.mark.parametrize("name", [name for name in catalogue.preset_names() if name.endswith("/paper")])
def test_no_family_changes_a_paper_s_rule(name: str) -> None:
    system = name.partition("/")[0]
    paper = catalogue.resolved({"system": system}, "")
    real = ("continuous", "physics") if "bounded" in systems.SYSTEMS[system].actions else ()
    discrete = ("classic", "long", "grid", "minatar") if "discrete" in systems.SYSTEMS[system].actions else ()
    for family in (*discrete, *real):
        found = catalogue.resolved({"system": system, "preset": name}, family)
        for rule in OF_PAPERS:
            is_of_preset = found.origins.get(rule, "").startswith("preset ")
            # The paper's own, of MuJoCo's bodies.
            is_of_preset |= (system, rule) == ("es", "agent.normalise_observations")
            assert is_of_preset or found.settings.get(rule) == paper.settings.get(rule), (family, rule)


# Two play on the device alone, where no task of Atari is; Dreamer's own values are those that its paper has there, too.
WITHOUT_ATARI = {"alphazero", "es", "dreamer"}


@pytest.mark.parametrize("system", systems.SYSTEMS.values(), ids=lambda system: system.name)
def test_there_are_values_for_each_kind_of_task_that_a_system_takes(system: systems.System) -> None:
    """Without, a task of that kind has the values that Atari's papers give."""
    wanted = {"classic", "minatar"} if "discrete" in system.actions else set()
    wanted |= {"atari"} if "discrete" in system.actions and system.name not in WITHOUT_ATARI else set()
    wanted |= {"continuous", "physics"} if "bounded" in system.actions else set()
    assert wanted <= set(system.families)


@pytest.mark.parametrize("system", ["ppo", "ippo", "mappo", "rnd"])
def test_ppo_learns_from_rows_of_its_own_policy_but_on_atari(system: str) -> None:
    for family in families.FAMILIES:
        found = catalogue.resolved({"system": system, "layout": "sebulba"}, family)
        assert found["layout.policy_lag"] == ("1" if family == "atari" else "0")
