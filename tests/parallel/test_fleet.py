"""Actors on other machines: the same parameters as with threads, each fault made to happen, and what is refused."""

import collections
import functools
import importlib.util
import os
import pathlib
import signal
from typing import Any

import conftest
import numpy as np
import pytest
from fakes import fleet as fleet_fakes
from fakes import host
from test_sebulba_faults import check_ring

from jaxrl_dist import envs, errors
from jaxrl_dist.parallel.sebulba import fleet, tiers
from jaxrl_dist.parallel.sebulba import layout as layouts
from jaxrl_dist.training import assemble

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: make test-fleet installs requirements-fleet.lock"
)
TWO = {"layout": "sebulba", "layout.num_actors": 2}


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a fleet on this machine, whose Ray has a token as long as this process lives."""
    fleet._draw_token()
    # The players import the fakes, too.
    path = [str(pathlib.Path(host.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    return {**TWO, "layout.fleet": "local"}


@pytest.fixture
def walks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every environment a counting one; returns a function that has one player commit a fault."""
    folder = str(tmp_path)
    monkeypatch.setattr(envs, "make", lambda name, params=None: host.task())
    monkeypatch.setattr(assemble, "acting_parts", functools.partial(fleet_fakes.acting_parts, folder))
    return lambda fault: (tmp_path / f"fault-{fault}").touch()


@pytest.fixture
def last_state(monkeypatch: pytest.MonkeyPatch) -> list[tiers.State]:
    """A list that always holds the state after the newest iteration."""
    states: list[tiers.State] = []
    iterate = layouts.Sebulba._iterate

    def spied(*args: Any) -> tiers.State:
        states[:] = [iterate(*args)]
        return states[0]

    monkeypatch.setattr(layouts.Sebulba, "_iterate", spied)
    return states


@needs_ray
@pytest.mark.fleet
def test_players_teach_what_threads_teach_and_a_killed_one_is_replaced_without_joining_two_lives(
    local: dict[str, Any], train: conftest.Train, walks: Any, last_state: list[tiers.State], tmp_path: pathlib.Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    by_threads = train("ppo", "fake:walk", folder="threads", **TWO)
    by_players = train("ppo", "fake:walk", folder="players", **local)
    assert by_players.summary["params_sha256"] == by_threads.summary["params_sha256"]
    assert by_players.summary["env_steps"] == by_threads.summary["env_steps"]
    assert signal.getsignal(signal.SIGTERM) == before
    walks("killed")
    settings = {"layout.max_actor_restarts": 1, "replay.capacity": 4096}
    with pytest.warns(RuntimeWarning, match=r"actor \d is started anew \(1 of 1\) after .*its player is lost: \w"):
        run = train("dqn", "fake:walk", folder="killed", steps=1600, **{**local, **settings})
    assert run.reason == "finished"
    check_ring(last_state[0].replay, lost=4)
    assert not list(tmp_path.glob("fault-*"))


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "system, env, settings",
    [
        ("impala", "toy:walk", {"layout.policy_lag": "3"}),
        ("d4pg", "gymnasium:Pendulum-v1", {"agent.value_low": -100.0, "agent.value_high": 0.0}),
    ],
)
def test_players_teach_what_threads_teach(
    system: str,
    env: str,
    settings: dict[str, Any],
    local: dict[str, Any],
    train: conftest.Train,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    put, play, answer = ray.put, fleet.Remote.play, fleet.Remote.answer
    puts, asked, most = [0], collections.Counter[Any](), [0]

    def counted_put(tree: Any) -> Any:
        puts[0] += 1
        return put(tree)

    def counted_play(self: fleet.Remote, *arguments: Any) -> Any:
        asked[self] += 1
        most[0] = max(most[0], asked[self])
        return play(self, *arguments)

    def counted_answer(self: fleet.Remote, *arguments: Any) -> Any:
        asked[self] -= 1
        return answer(self, *arguments)

    by_threads = train(system, env, folder="threads", **TWO, **settings)
    monkeypatch.setattr(ray, "put", counted_put)
    monkeypatch.setattr(fleet.Remote, "play", counted_play)
    monkeypatch.setattr(fleet.Remote, "answer", counted_answer)
    by_players = train(system, env, folder="players", **local, **settings)
    assert by_players.summary["params_sha256"] == by_threads.summary["params_sha256"]
    # Both players take the same versions, and each is put once; the first is put once more, to warm up with.
    assert puts[0] <= by_players.summary["param_versions_published"] + 1
    # `begin` is answered, too, before anything is played.
    assert most[0] + 1 == min(int(settings.get("layout.policy_lag", "1")) + 1, fleet._MOST_AHEAD)


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, words",
    [
        ("stopped", "gave no answer for 6 s"),
        ("sleeping", "EnvironmentFault: fake:walk gave nothing for 6 s"),
        ("raising", "raised Broken: the simulator fell over"),
    ],
)
def test_a_player_that_fails_costs_one_restart_and_no_sequence_joins_two_lives(
    fault: str,
    words: str,
    local: dict[str, Any],
    train: conftest.Train,
    walks: Any,
    last_state: list[tiers.State],
) -> None:
    walks(fault)
    settings = {"layout.max_actor_restarts": 1, "layout.timeout_s": 6.0, "replay.capacity": 4096}
    with pytest.warns(RuntimeWarning, match=rf"actor \d is started anew \(1 of 1\) after .*{words}"):
        run = train("dqn", "fake:walk", steps=1600, **{**local, **settings})
    assert run.reason == "finished"
    check_ring(last_state[0].replay, lost=4)


def test_an_actor_takes_no_version_sooner_than_it_may(small: type[conftest.Small]) -> None:
    oldest = {}
    for refresh_s in (0.0, 1000.0):
        free = {"layout.policy_lag": "free", "layout.refresh_s": refresh_s}
        run = small("impala", "toy:walk", 1, {**TWO, **free}).run(12)
        oldest[refresh_s] = int(np.flatnonzero(run.metrics.layout["lag_counts"][0])[-1])
        run.layout.close()
    assert oldest[1000.0] == 11 > oldest[0.0]


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"layout.fleet": "ray://head:10001"}, ["--layout.fleet=ray://head:10001", "proxy", "HOST:PORT"]),
        ({"layout.fleet": "locale"}, ["--layout.fleet=locale", "HOST:PORT", "did you mean local?"]),
        ({"layout.inference": "central"}, ["--layout.fleet=local", "--layout.inference=per_actor"]),
        ({"layout.ready_envs": 2}, ["--layout.fleet=local", "--layout.ready_envs=2"]),
        ({"layout.actor_devices": "cpu:0"}, ["--layout.fleet=local", "--layout.actor_devices=cpu:0"]),
        ({"layout.fleet": "", "layout.refresh_s": 1.0}, ["--layout.refresh_s=1.0", "--layout.policy_lag=free"]),
        ({"layout.fleet": "", "layout.fleet_cpus": 2}, ["--layout.fleet_cpus=2", "--layout.fleet=local"]),
        ({"layout.fleet": "", "layout.fleet_spares": 0}, ["--layout.fleet_spares=0", "--layout.fleet=local"]),
    ],
)
def test_what_needs_the_actors_here_is_refused_in_a_line_that_names_both_flags(
    settings: dict[str, Any], words: list[str], small: type[conftest.Small]
) -> None:
    free = {"layout.policy_lag": "free"} if {"layout.inference", "layout.ready_envs"} & set(settings) else {}
    one = {"layout.num_actors": 1} if "layout.inference" in settings else {}
    system = "impala" if free else "ppo"
    with conftest.refused(*words):
        small(system, "toy:walk", 1, {**TWO, "layout.fleet": "local", **settings, **free, **one})


def test_simulators_of_a_user_stay_with_the_learner(small: type[conftest.Small]) -> None:
    simulator = {"env.params.listen": 7777, "env.params.observation": "float32[4]", "env.params.actions": 2}
    with conftest.refused("--layout.fleet=local", "--env=external:mine"):
        small("ppo", "external:mine", 1, {**TWO, "layout.fleet": "local", **simulator})


def test_without_ray_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, small: type[conftest.Small]) -> None:
    monkeypatch.setattr(fleet.software, "is_installed", lambda package: package != "ray")
    with conftest.refused("--layout.fleet=local", "needs the package ray", "pip install"):
        small("ppo", "toy:walk", 1, {**TWO, "layout.fleet": "local"})


def test_versions_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet.software, "versions", lambda: ["jax 0.10.2", "numpy 2.4.0", "brax not installed"])
    fleet._check_versions(["jax 0.10.2", "numpy 2.4.0", "brax 0.14.2"])
    with pytest.raises(errors.EnvironmentFault, match="jax 0.9.0 there, jax 0.10.2 here$"):
        fleet._check_versions(["jax 0.9.0", "numpy 2.4.0", "brax 0.14.2"])


def test_an_unroll_of_other_environments_than_the_last_is_refused() -> None:
    closing, opened = (np.arange(4.0), np.ones(2)), (np.arange(8.0).reshape(2, 4), np.ones((2, 2)))
    fleet._check_joined((), opened)
    fleet._check_joined(closing, opened)
    opened[1][0, 1] = 0
    with pytest.raises(errors.EnvironmentFault, match="does not open with the row"):
        fleet._check_joined(closing, opened)
