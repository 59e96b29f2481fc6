"""Presets: every file parses, cites its settings and trains; flags are above them, families below."""

import json
import pathlib
import re
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import pytest

import jaxrl_dist
from jaxrl_dist import envs, errors, systems, types
from jaxrl_dist.learning import learner
from jaxrl_dist.settings import fields, presets, resolve
from jaxrl_dist.systems import catalogue, training_flags
from jaxrl_dist.training import assemble

NAMES = catalogue.preset_names()
# Without a task: what a system's paper has published.
PAPERS = [name for name in NAMES if name.endswith(f"/{presets.PAPER}")]
TASKS = [name for name in NAMES if name not in PAPERS]
# Whose schedules and target networks are for runs of Atari's length.
LONG = ("dqn", "iqn", "qr_dqn", "gorila", "rainbow", "apex_dqn", "r2d2", "seed_r2d2")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def arguments(name: str) -> list[str]:
    """Returns the flags by which a preset trains, with a task if it has none."""
    if name in TASKS:
        return [f"--preset={name}"]
    is_discrete = "discrete" in systems.SYSTEMS[name.partition("/")[0]].actions
    steps = ["--steps=50_000_000"] if name.partition("/")[0] in LONG else []
    return [f"--preset={name}", f"--env=gymnax:{'CartPole' if is_discrete else 'Pendulum'}-v1", *steps]


def parsed(*arguments: str) -> resolve.Resolved:
    settings = training_flags.parse(arguments).settings
    assert settings is not None
    return settings


def test_every_system_has_a_preset() -> None:
    assert {name.partition("/")[0] for name in TASKS} == set(systems.SYSTEMS)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_whole_and_says_where_its_settings_are_from(name: str) -> None:
    preset = presets.load(name, catalogue.PRESETS)
    settings = parsed(f"--preset={name}")
    assert preset.settings["system"].value == name.partition("/")[0]
    sentence, command, result = preset.head
    assert sentence.endswith(".") and command == " ".join(["Command: python scripts/train.py", *arguments(name)])
    assert ("env" in preset.settings) == (name in TASKS)
    assert result.startswith("Result: ") and "\n" not in sentence
    if study := re.search(r"docs/results\.md, (\w+)", result):
        text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").replace("−", "-")
        assert f"`{study[1]}`" in text
        assert all(interval in text for interval in re.findall(r"\[[^\]]+\]", result))
    for flag, (value, source) in preset.settings.items():
        assert settings.origins[flag] == f"preset {name}: {source}"
        if flag in settings.fields:
            assert settings[flag] == fields.parse(settings.fields[flag], value)


def test_a_preset_file_is_also_a_flag_file() -> None:
    file = catalogue.PRESETS / "r2d2" / "memory_chain.flags"
    by_file, by_name = parsed(f"--flagfile={file}"), parsed("--preset=r2d2/memory_chain")
    assert {**by_file.settings, "preset": "r2d2/memory_chain"} == by_name.settings
    assert by_file.origins["agent.burn_in"] == "flag"


def test_a_preset_is_above_the_family_and_below_flags() -> None:
    given = {"preset": "r2d2/memory_chain"}
    assert catalogue.resolved({"system": "r2d2"}, "classic")["agent.burn_in"] == 10
    resolved = catalogue.resolved(given, "classic")
    assert (resolved["system"], resolved["agent.burn_in"], resolved["network.core_size"]) == ("r2d2", 20, 64)
    above = catalogue.resolved({**given, "agent.burn_in": "5", "env": "gymnax:CartPole-v1"}, "classic")
    assert (above["agent.burn_in"], above.origins["agent.burn_in"], above["env"]) == (5, "flag", "gymnax:CartPole-v1")


def test_what_a_preset_says_of_its_environment_is_not_said_of_others() -> None:
    own = catalogue.resolved({"preset": "ppo/hidden_velocities"}, "classic")
    assert own.env_params == {"observe": "0,2"}
    # The numbers of another observation are others.
    assert not catalogue.resolved({"preset": "ppo/hidden_velocities", "env": "gymnax:Acrobot-v1"}, "classic").env_params
    given = {"preset": "ppo/hidden_velocities", "env": "gymnax:Acrobot-v1", "env.params.observe": "1"}
    assert catalogue.resolved(given, "classic").env_params == {"observe": "1"}
    games = catalogue.resolved({"preset": "dreamer/pong", "env": "envpool:Breakout-v5"}, "atari").env_params
    assert games == catalogue.resolved({"preset": "dreamer/pong"}, "atari").env_params and "protocol" in games
    assert not catalogue.resolved({"preset": "dreamer/pong", "env": "gymnax:Breakout-MinAtar"}, "minatar").env_params


def test_in_another_layout_the_settings_of_the_first_are_left_out() -> None:
    assert catalogue.resolved({"preset": "impala/cartpole", "layout": "sebulba"}).origins["layout"] == "flag"
    # In the preset's own layout this environment cannot be played at all.
    on_the_cpu = {"preset": "impala/catch", "env": "envpool:CartPole-v1", "layout": "sebulba"}
    assert catalogue.resolved(on_the_cpu).origins["layout"] == "flag"
    made = presets.Preset("x/y", (), {n: fields.Cited(v, "s") for n, v in OTHER.items()})
    assert catalogue.resolved({}, preset=made)["layout.num_actors"] == 4
    other = catalogue.resolved({"layout": "anakin"}, preset=made)
    assert "layout.num_actors" not in other.settings and other["layout.unroll_length"] == 7
    by_workers = catalogue.resolved({"preset": "impala/breakout", "layout": "async_gradient"}, "minatar")
    assert by_workers["learner.minibatches"] == 1 and "one gradient per unroll" in by_workers.origins["learner.epochs"]
    assert catalogue.resolved({"preset": "impala/breakout"}, "minatar")["learner.minibatches"] == 4


OTHER = {
    "system": "impala",
    "env": "gymnax:CartPole-v1",
    "layout": "sebulba",
    "layout.num_actors": "4",
    "layout.unroll_length": "7",
}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--preset=impala/pogn"], ["--preset=impala/pogn: ", " impala/pong?"]),
        (["--preset=ppo"], ["--preset=ppo: ", " ppo/"]),
        (["--preset=pqn/paper"], ["--preset=pqn/paper: expected one of pqn/acrobot, pqn/asterix"]),
        (["--preset=pqo/cartpole"], ["--preset=pqo/cartpole: ", " a2c/..., ", " pqn/cartpole?"]),
        (["--preset=a2c/papper"], ["--preset=a2c/papper: ", " a2c/paper?"]),
        (["--preset=ppo/cartpole", "--system=dqn"], ["--system=dqn: ", "--preset=ppo/cartpole "]),
    ],
)
def test_a_wrong_preset_is_refused_in_one_line(arguments: list[str], named: list[str]) -> None:
    with conftest.refused(*named):
        training_flags.parse(arguments)


@pytest.mark.parametrize("name", ["pqn/paper", "ppo", "zzz/zzz"])
def test_no_preset_is_meant_where_no_task_of_its_system_is_like_it(name: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        training_flags.parse([f"--preset={name}"])
    assert "did you mean" not in errors.as_typed(caught.value)


def test_a_name_that_is_part_of_several_flags_names_them_all() -> None:
    with conftest.refused(" --learner.epsilon, --agent.epsilon_start, ", " or --agent.epsilon_fraction?"):
        training_flags.parse(["--system=dqn", "--epsilon=0.1"])


@pytest.mark.parametrize(
    "text",
    ["# head\n\n--system=ppo\n--env=gymnax:CartPole-v1", "# head\n\n# s\n--system=ppo", "# head\n\n# s\nsystem=ppo"],
    ids=["no source", "no environment", "no flag"],
)
def test_a_broken_file_is_refused(text: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"broken\.flags"):
        written(tmp_path, "broken", text)


def written(folder: pathlib.Path, name: str, text: str) -> presets.Preset:
    path = folder / "ppo" / f"{name}.flags"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return presets.load(f"ppo/{name}", folder)


def test_a_preset_without_a_task_is_named_after_its_paper(tmp_path: pathlib.Path) -> None:
    text = "# head\n\n# s\n--system=ppo"
    assert set(written(tmp_path, "paper", text).settings) == {"system"}
    with pytest.raises(ValueError, match=r"paper\.flags"):
        written(tmp_path / "other", "paper", f"{text}\n--env=gymnax:CartPole-v1")


def specs_of(row: systems.System) -> list[types.EnvironmentSpec]:
    """Returns a spec for each family that a system has settings for, and each kind of actions there is in it."""
    shapes = {
        "minatar": ((10, 10, 4), jnp.float32),
        "atari": ((84, 84, 1), jnp.uint8),
        "classic": ((4,), jnp.float32),
        "long": ((4,), jnp.float32),
        "grid": ((7, 7, 3), jnp.int16),
        "board": ((6, 7, 2), jnp.bool_),
    }
    found = []
    for family in row.families:
        observation = jax.ShapeDtypeStruct(*shapes.get(family, ((17,), jnp.float32)))
        space = types.DiscreteSpace(6) if family in shapes else types.BoxSpace((6,), -1.0, 1.0)
        found.append(types.EnvironmentSpec("mine:task", observation, space, family, (-1.0, 1.0), 1000))
    return found


@pytest.mark.parametrize("name", PAPERS)
def test_the_paper_s_values_fit_each_kind_of_task(name: str) -> None:
    row = systems.SYSTEMS[name.partition("/")[0]]
    given = {flag: one for flag, one in catalogue.find_preset(name).settings.items() if flag != "system"}
    differing = set()
    for spec in specs_of(row):
        settings, own = (catalogue.resolved(flags, spec.family) for flags in ({"preset": name}, {"system": row.name}))
        assert {flag: settings.origins[flag] for flag in given} == {
            flag: f"preset {name}: {one.source}" for flag, one in given.items()
        }
        fitted = {flag for flag, origin in settings.origins.items() if "fitted" in origin}
        assert fitted <= {"agent.clip_observations", "agent.clip_rewards", "agent.epsilon_wait"}
        differing |= {flag for flag in given if settings[flag] != own[flag]}
        agent = assemble.make_agent(settings, spec, step=envs.make("toy:walk").step if row.model else None)
        config = settings.group("learner", learner.Config)
        learner.make(config, agent, types.LOCAL)
        assemble.make_replay(settings, agent, config)
    assert differing == set(given), "a value that every family of tasks has already"


def test_a_task_is_given_beside_a_paper_s_values() -> None:
    chosen = {"preset": "a2c/paper", "env": "gymnax:Acrobot-v1"}
    settings = catalogue.resolved(chosen, "classic")
    assert (settings["system"], settings["env"], settings["agent.entropy_cost"]) == ("a2c", "gymnax:Acrobot-v1", 0.01)
    assert catalogue.resolved({**chosen, "agent.entropy_cost": 0.0}, "classic")["agent.entropy_cost"] == 0.0
    assert catalogue.resolved({"preset": "a2c/cartpole"}, "classic")["agent.entropy_cost"] == 0.0


def test_a_run_keeps_what_its_preset_said(tmp_path: pathlib.Path) -> None:
    saved = json.loads(json.dumps(parsed("--preset=r2d2/memory_chain").as_json()))
    saved["settings"]["preset"]["value"] = "r2d2/gone"
    restored = catalogue.restored(saved)
    assert restored["agent.burn_in"] == 20 and restored.origins["agent.burn_in"].startswith("preset r2d2/memory_chain")


def test_list_and_help_show_presets_and_layouts() -> None:
    listed = training_flags.parse(["--list"]).text
    assert all(f"\n      {name}: " in listed for name in NAMES)
    assert all(f"\n      {name}: " in listed for name in ("anakin", "sebulba", "async_gradient", "auto"))
    assert (
        "preset r2d2/memory_chain: 20 (this project"
        in training_flags.parse(["--preset=r2d2/memory_chain", "--help"]).text
    )


def tiny(system: str, settings: resolve.Resolved) -> dict[str, Any]:
    """Returns flags that make a preset small, without touching what it is."""
    like = {"seed_impala": "impala", "seed_r2d2": "r2d2", "a3c": "a2c", "ga3c": "a2c", "gpu_sim": "ppo"}
    small = {k: v for k, v in conftest.SMALL[like.get(system, system)].items() if k not in ("network.torso", "layout")}
    small |= {"network.core_size": 8, "network.head_size": 8, "steps": 2 * 8 * small["layout.unroll_length"]}
    if "replay.min_size" in small:
        small |= {"replay.min_size": 32, "steps": 3 * 8 * small["layout.unroll_length"]}
    if system == "gorila":
        # For as many workers one gradient per unroll is four rows for each that came.
        small["layout.num_workers"] = 4
    # Dreamer's networks are its own, so it takes no sizes of others.
    return {k: v for k, v in small.items() if k in settings.fields and not (system == "dreamer" and "network" in k)}


@pytest.mark.parametrize("name", [name for name in NAMES if re.search("brax_|cheetah_run", name)])
def test_published_settings_of_robots_fit_together(name: str) -> None:
    """Sizes, optimiser and agent, without the environment, which is large, or whose package may be missing."""
    settings = catalogue.resolved({"preset": name}, "physics")
    observation = jax.ShapeDtypeStruct((17,), jnp.float32)
    action = types.BoxSpace((6,), -1.0, 1.0)
    spec = types.EnvironmentSpec(settings["env"], observation, action, "physics", time_limit=1000)
    agent, config = assemble.make_agent(settings, spec), settings.group("learner", learner.Config)
    learner.make(config, agent, types.LOCAL)
    rows = assemble.make_replay(settings, agent, config)
    numerator, denominator = rows.updates
    assert (numerator / denominator, rows.min_rows) == PUBLISHED[name]
    assert settings["agent.reward_scale"] == {"ant": 10, "humanoid": 0.1, "hopper": 30, "walker2d": 5}.get(
        settings["env"].partition(":")[2], 1
    )


# Updates of the learner per iteration, and rows of each environment before the first.
PUBLISHED = {
    "ppo/brax_ant": (1, 0),
    "ppo/brax_halfcheetah": (1, 0),
    "ppo/brax_humanoid": (1, 0),
    "sac/brax_hopper": (64, 64),
    "sac/brax_walker2d": (32, 64),
    "td3/cheetah_run": (2, 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_preset_trains(name: str, tmp_path: pathlib.Path) -> None:
    system = name.partition("/")[0]
    settings = parsed(*arguments(name))
    package = {"playground": "mujoco_playground", "jaxmarl": "jaxmarl", "navix": "navix", "pgx": "pgx"}
    if (suite := settings["env"].partition(":")[0]) in package:
        pytest.importorskip(package[suite], reason=f"needs {package[suite]}")
    few = {"evaluation.episodes": 1, "evaluation.max_steps": 8, "log.tensorboard": False, **tiny(system, settings)}
    if settings["env"].startswith("envpool:"):
        few["env.params.max_episode_steps"] = 16
    run = jaxrl_dist.train(
        system, settings["env"], devices=jax.devices()[:1], settings=few | {"preset": name}, out=str(tmp_path)
    )
    assert run.reason == "finished" and run.summary["learner_steps"] > 0
    origin = json.loads((tmp_path / "config.json").read_text())["settings"]["preset"]
    assert origin == {"value": name, "origin": "flag", "tag": "tunable", "default": ""}
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert not {metric for record in records for metric in record if f"`{metric}`" not in text} - {"kind"}
