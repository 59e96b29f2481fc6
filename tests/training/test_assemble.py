"""The choice of devices: accelerators all, CPU devices as many as the work keeps busy; every system's settings fit."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator

import conftest
import jax
import marks
import pytest

from jaxrl_dist import envs, errors, systems
from jaxrl_dist.learning import learner
from jaxrl_dist.systems import catalogue
from jaxrl_dist.training import assemble

LARGE = {"env.num_envs": 2048, "layout.unroll_length": 32, "learner.minibatches": 32}
TASKS = {
    "classic": "gymnax:CartPole-v1",
    "minatar": "gymnax:Breakout-MinAtar",
    "continuous": "gymnax:Pendulum-v1",
    "physics": "brax:inverted_pendulum",
}
OWN = [
    (system.name, layout, family)
    for system in systems.SYSTEMS.values()
    for layout in system.layout_names
    for family in TASKS
    if family in system.families and (family != "physics" or layout == system.layout_names[0])
]
# In the second synchronous layout the parts are those of the first.
SECOND = {"-".join(own) for own in OWN if own[1] not in (systems.SYSTEMS[own[0]].layout_names[0], "async_gradient")}
# A simulated body takes seconds to make.
SLOW = SECOND | {"-".join(own) for own in OWN if own[2] == "physics" and own[0] != "ppo"}
# The atoms of a task whose rewards have no bounds.
NEEDED = {("d4pg", "physics"): {"agent.value_low": 0.0, "agent.value_high": 1000.0}}
ANT = {"env.num_envs": 256, "layout.unroll_length": 40, "learner.minibatches": 32}


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("classic", {}, 1),
        ("classic", LARGE, 2),
        ("classic", {**LARGE, "learner.minibatches": 64}, 1),
        ("classic", {**LARGE, "env.num_envs": 2049}, 1),
        ("classic", {"num_seeds": 10}, 2),
        ("classic", {"num_seeds": 3}, 1),
        ("classic", {"layout.num_devices": 2}, 2),
        ("physics", ANT, 2),
        ("classic", ANT, 1),
        ("physics", {**ANT, "learner.minibatches": 128}, 1),
        ("physics", {**ANT, "layout.num_devices": 1}, 1),
    ],
)
def test_seeds_and_long_minibatches_are_spread_over_two_cores(family, settings, expected):
    resolved = catalogue.resolved({"system": "ppo", **settings}, family)
    assert len(assemble.choose_devices(resolved, jax.devices()[:2])) == expected


def test_replays_keep_to_one_core():
    resolved = catalogue.resolved({"system": "dqn", "replay.batch_size": 65536}, "physics")
    assert len(assemble.choose_devices(resolved, jax.devices()[:2])) == 1


def test_a_family_that_there_is_not_is_refused(monkeypatch):
    environment = envs.make("toy:walk")
    made = environment._replace(spec=environment.spec._replace(family="minatari"))
    monkeypatch.setattr(envs, "make", lambda name, params=None: made)
    with conftest.refused("--env=toy:walk", "minatari", "classic, long, grid, minatar, board, atari", " minatar?"):
        assemble.resolve({"system": "ppo", "env": "toy:walk"})


@pytest.mark.parametrize(("system", "taught"), [("r2d2", 6), ("dreamer", 8)])
def test_an_unroll_that_is_longer_than_what_a_window_teaches_is_refused(system, taught):
    """Its last rows would be in no window."""
    flags = {"env": TASKS["classic"], **conftest.SMALL[system], "system": system, "replay.capacity": 960}
    settings, environment = assemble.resolve(flags | {"layout.unroll_length": taught})
    assert assemble.assemble(settings, environment, jax.devices()[:1])
    settings, environment = assemble.resolve(flags | {"layout.unroll_length": taught + 2})
    with conftest.refused(f"--layout.unroll_length={taught + 2}", f"1 to {taught}"):
        assemble.assemble(settings, environment, jax.devices()[:1])


def test_dreamer_refuses_several_agents():
    """The rows of one that is gone would be taught."""
    settings, environment = assemble.resolve({**conftest.SMALL["dreamer"], "system": "dreamer", "env": "toy:team"})
    with conftest.refused("--env=toy:team", "3 agents", "--system=ippo"):
        assemble.make_agent(settings, environment.spec)


def test_more_devices_than_there_are_is_refused():
    resolved = catalogue.resolved({"system": "ppo", "layout.num_devices": 3}, "classic")
    with conftest.refused("--layout.num_devices=3: ", " 2;", "0 to 2"):
        assemble.choose_devices(resolved, jax.devices()[:2])


@pytest.fixture(scope="module")
def made_once() -> Iterator[None]:
    """Makes each task of these tests once: one of physics takes longer than the parts of a system."""
    with pytest.MonkeyPatch.context() as patch:
        make = functools.cache(envs.make)
        patch.setattr(envs, "make", lambda name, params: make(name))
        yield


@pytest.mark.usefixtures("made_once")
@pytest.mark.parametrize(("system", "layout", "family"), marks.some(OWN, slow=SLOW))
def test_a_system_s_own_settings_fit_together(system, layout, family):
    settings, environment = assemble.resolve(
        {"system": system, "layout": layout, "env": TASKS[family], **NEEDED.get((system, family), {})}
    )
    layout = assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices())).layout
    try:
        assert layout.rows_per_iteration % settings["layout.unroll_length"] == 0
    finally:
        layout.close()


@pytest.mark.parametrize("preset", [name for name in catalogue.preset_names() if name.endswith("/paper")])
def test_a_paper_s_values_fit_where_a_family_has_others(preset):
    system = preset.partition("/")[0]
    family = next(family for family in TASKS if family in systems.SYSTEMS[system].families)
    settings, environment = assemble.resolve({"preset": preset, "env": TASKS[family]})
    assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices())).layout.close()


@pytest.mark.parametrize(
    "system", [one.name for one in systems.SYSTEMS.values() if "async_gradient" in one.layout_names]
)
def test_workers_take_long_tasks_by_the_values_that_they_have_for_these(system, monkeypatch):
    """Those of DQN were refused: ten gradients for each of a worker's unrolls."""
    task = TASKS["classic"] if "discrete" in systems.SYSTEMS[system].actions else TASKS["continuous"]
    environment = envs.make(task, {})
    made = environment._replace(spec=environment.spec._replace(family="long"))
    monkeypatch.setattr(envs, "make", lambda name, params=None: made)
    settings, environment = assemble.resolve({"system": system, "layout": "async_gradient", "env": "mine:long"})
    assert settings.family == "long"
    assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices())).layout.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d4pg", "gorila", "impala_replay", "pqn", "r2d2"])
def test_the_outermost_values_of_a_setting_are_taken_or_refused_in_one_line(name):
    system = systems.SYSTEMS[name]
    task = next(task for family, task in TASKS.items() if family in system.families)
    given = {"system": name, "layout": system.layout_names[0], "env": task}
    for flag, field in catalogue.declared(system, system.layout_names[0]).items():
        for value in {field.low, field.high, *(field.choices or ())} - {None}:
            try:
                settings, environment = assemble.resolve({flag: value, **given})
                devices = assemble.choose_devices(settings, jax.devices())
                assemble.assemble(settings, environment, devices).layout.close()
            except errors.UsageError as error:
                assert "\n" not in str(error), (flag, value)
            except Exception as error:
                error.add_note(f"--{flag}={value}")
                raise


@pytest.mark.parametrize(("name", "has_priorities"), [("dqn", False), ("td3", False), ("apex_dqn", True)])
def test_errors_of_actors_need_priorities(name: str, has_priorities: bool) -> None:
    env = "gymnax:Pendulum-v1" if name == "td3" else "toy:walk"
    found, task = assemble.resolve({"system": name, "env": env, "layout": "anakin", "agent.actor_errors": True})
    made = assemble.make_agent(found, task.spec)
    with contextlib.nullcontext() if has_priorities else conftest.refused("--agent.actor_errors=true", name):
        assemble.make_replay(found, made, found.group("learner", learner.Config))


def test_an_age_that_there_is_not_is_refused():
    found, task = assemble.resolve({"system": "ppo", "env": "toy:walk"})
    row = found.row
    made = dataclasses.replace(row, agent=lambda *given: row.agent(*given)._replace(staleness="onpolicy"))
    with conftest.refused("staleness='onpolicy'", "own"):
        assemble.make_agent(dataclasses.replace(found, row=made), task.spec)
