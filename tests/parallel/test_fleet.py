"""Actors on other machines: the same parameters as with threads, each fault made to happen, and what is refused."""

import collections
import contextlib
import functools
import importlib.util
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import conftest
import jax
import numpy as np
import pytest
from fakes import fleet as fleet_fakes
from fakes import host
from test_sebulba_faults import check_ring

from jaxrl_dist import envs, errors
from jaxrl_dist.parallel.sebulba import channels, fleet, tiers, wire
from jaxrl_dist.parallel.sebulba import layout as layouts
from jaxrl_dist.runs import metrics
from jaxrl_dist.training import assemble, policy

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
        ("ppo", "toy:walk", {}),
        ("impala", "toy:walk", {"layout.policy_lag": "3"}),
        ("apex_dqn", "toy:walk", {}),
        ("r2d2", "toy:walk", {}),
        ("d4pg", "gymnasium:Pendulum-v1", {"agent.value_low": -100.0, "agent.value_high": 0.0}),
    ],
)
def test_players_on_two_machines_teach_what_threads_teach(
    system: str,
    env: str,
    settings: dict[str, Any],
    local: dict[str, Any],
    cluster: Any,
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
    there = {**local, "layout.fleet": cluster.address}
    by_players = train(system, env, folder="players", **there, **settings)
    assert by_players.summary["params_sha256"] == by_threads.summary["params_sha256"]
    # Both players take the same versions, and each is put once; the first is put once more, to warm up with.
    assert puts[0] <= by_players.summary["param_versions_published"] + 1
    # `begin` is answered, too, before anything is played.
    assert most[0] + 1 == min(int(settings.get("layout.policy_lag", "1")) + 1, fleet._MOST_AHEAD)


@needs_ray
@pytest.mark.slow
def test_a_run_that_was_cut_goes_on_in_a_fleet_or_without_one(local: dict[str, Any], train: conftest.Train) -> None:
    def cut(record: dict[str, Any]) -> bool:
        return bool(record.get("env_steps", 0) >= 512)

    logs = {"log.interval_steps": 128}
    whole = train("ppo", "toy:walk", folder="whole", **TWO, **logs)
    for name, first, second in (("there", TWO, local), ("back", local, TWO)):
        part = train("ppo", "toy:walk", folder=name, callbacks=[cut], **first, **logs)
        assert part.reason != "finished" and part.summary["env_steps"] < whole.summary["env_steps"]
        resumed = train("ppo", "toy:walk", folder=name, **second, **logs)
        assert resumed.summary["params_sha256"] == whole.summary["params_sha256"]


@needs_ray
@pytest.mark.slow
def test_a_quorum_goes_on_without_a_slow_player(
    local: dict[str, Any], small: type[conftest.Small], walks: Any, tmp_path: pathlib.Path
) -> None:
    walks("slow")
    settings = {"layout.num_actors": 3, "layout.quorum": 2, "env.num_envs": 6}
    run = small("ppo", "fake:walk", 1, {**local, **settings})
    run.total = 200
    run.run(200)
    threads: Any = run.layout._threads  # type: ignore[attr-defined]
    assert threads.restarts == 0 and not list(tmp_path.glob("fault-*"))
    run.layout.close()
    # Most iterations learned from two unrolls: they waited for the others no longer.
    assert 2 * 200 <= run.metrics.layout["lag_counts"][0].sum() < 2.4 * 200


@needs_ray
@pytest.mark.slow
def test_rounded_parameters_cross_in_half_the_bytes_and_all_that_crosses_is_counted(
    local: dict[str, Any], small: type[conftest.Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    puts, put = [0], ray.put

    def counted_put(tree: Any) -> Any:
        puts[0] += 1
        return put(tree)

    monkeypatch.setattr(ray, "put", counted_put)
    each, params = {}, {}
    for kind in ("float32", "bfloat16"):
        puts[0] = 0
        run = small("ppo", "toy:walk", 1, {**local, "layout.fleet_parameters": kind}).run(3)
        run.layout.close()
        of_fleet: Any = run.layout._fleet  # type: ignore[attr-defined]
        rest, sums = of_fleet.counted(), run.metrics.layout
        each[kind], params[kind] = (sums["bytes_to_actors"][0] + rest["bytes_to_actors"]) / puts[0], run.params
        unrolls, part = divmod(
            sums["bytes_from_players"][0] + rest["bytes_from_players"], wire._HEAD.size + of_fleet.wire._raw_bytes
        )
        assert part == 0 and unrolls >= 3 * 2
    network = jax.tree.leaves(run.state.learner.params.network)
    assert each["float32"] - each["bfloat16"] == sum(x.nbytes for x in network) / 2
    assert any((ours != theirs).any() for ours, theirs in zip(*params.values(), strict=True))


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


@pytest.fixture
def cluster(local: dict[str, Any]) -> Iterator[Any]:
    """A head and two machines with a place for one player each, all here."""
    from ray import cluster_utils

    found = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        found.add_node(num_cpus=1)
    yield found
    found.shutdown()


def playing(folder: pathlib.Path) -> dict[int, int]:
    """Returns the processes that played last, by that of Ray on their machine, without those that ended."""
    found = {}
    for path in folder.glob(f"{fleet_fakes.PLAYING}*"):
        pid = int(path.name.removeprefix(fleet_fakes.PLAYING))
        if pathlib.Path(f"/proc/{pid}").exists():
            found[int(path.read_text())] = pid
    return found


class Losing:
    """A callback that sends a signal to two machines, 1024 steps apart, which are not the head and have a player.

    Attributes:
        pids: the processes that got it, by that of Ray on their machine.
    """

    def __init__(self, cluster: Any, folder: pathlib.Path, sent: signal.Signals) -> None:
        self._head = cluster.head_node.all_processes["raylet"][0].process.pid
        self._folder, self._sent, self._next_at = folder, sent, 512
        self.pids: dict[int, list[int]] = {}

    def __call__(self, record: dict[str, Any]) -> None:
        there = playing(self._folder).keys() - self.pids - {self._head}
        if record.get("env_steps", 0) >= self._next_at and len(self.pids) < 2 and there:
            raylet = there.pop()
            children = pathlib.Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
            self.pids[raylet] = [raylet, *map(int, children)]
            self._next_at = record["env_steps"] + 1024
            self.send(self._sent, raylet)

    def send(self, sent: signal.Signals, raylet: int) -> None:
        for pid in self.pids[raylet]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_machine_costs_one_restart_and_without_a_machine_the_run_ends_saved(
    sent: signal.Signals,
    local: dict[str, Any],
    cluster: Any,
    train: conftest.Train,
    walks: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    last_state: list[tiers.State],
) -> None:
    monkeypatch.setattr(fleet.hangs, "MAKE_S", 25.0)
    lose = Losing(cluster, tmp_path, sent)
    settings = {
        "layout.fleet": cluster.address,
        "layout.max_actor_restarts": 9,
        "layout.timeout_s": 6.0,
        "log.interval_steps": 64,
        "replay.capacity": 65536,
    }
    with (
        pytest.warns(RuntimeWarning, match=r"started anew \(1 of 9\) after .*its player") as told,
        pytest.raises(errors.EnvironmentFault, match="placed no player for 25 s: ") as error,
    ):
        try:
            train("dqn", "fake:walk", folder="run", steps=1_000_000, callbacks=[lose], **{**local, **settings})
        finally:
            for raylet in lose.pids:
                lose.send(signal.SIGKILL, raylet)
    assert "\n" not in str(error.value) and len(lose.pids) == 2
    assert len([one for one in told if "started anew" in str(one.message)]) == 2
    assert policy.load(tmp_path / "run").env_steps >= 1536
    check_ring(last_state[0].replay, lost=4)


@needs_ray
@pytest.mark.slow
def test_without_its_head_the_run_ends_saved(cluster: Any, tmp_path: pathlib.Path) -> None:
    """In a process of its own, which Ray would abort a minute after it lost the head."""
    with subprocess.Popen(_command(cluster, tmp_path), stderr=subprocess.PIPE, text=True) as run:
        until_s = time.monotonic() + 2 * conftest.SOON_S
        while time.monotonic() < until_s and not any(one["kind"] == "train" for one in _records(tmp_path)):
            time.sleep(0.2)
        cluster.head_node.all_processes["gcs_server"][0].process.kill()
        said = run.communicate(timeout=2 * conftest.SOON_S)[1]
    assert run.returncode == 1 and f"the head of Ray's cluster at {cluster.address} is gone" in said
    assert policy.load(tmp_path).env_steps >= 128


@needs_ray
@pytest.mark.slow
def test_who_has_not_the_token_of_a_cluster_is_refused(cluster: Any, tmp_path: pathlib.Path) -> None:
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    stranger["HOME"] = str(tmp_path)
    done = subprocess.run(
        _command(cluster, tmp_path / "run"), env=stranger, capture_output=True, text=True, timeout=2 * conftest.SOON_S
    )
    said = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and f"--layout.fleet={cluster.address}" in said and "RAY_AUTH_MODE=token" in said


def _command(cluster: Any, out: pathlib.Path) -> list[str]:
    """Returns the command of a long run with players of a cluster."""
    small = {**conftest.SMALL["ppo"], **TWO, "layout.fleet": cluster.address, "log.interval_steps": 128}
    named = {**small, "network.hidden_sizes": 16, "steps": 10_000_000, "env": "toy:walk", "out": out}
    flags = [f"--{name}={value}" for name, value in named.items()]
    return [sys.executable, str(conftest.PACKAGE.parent / "scripts" / "train.py"), *flags]


def _records(folder: pathlib.Path) -> list[dict[str, Any]]:
    return list(metrics.read(folder)) if (folder / "metrics.jsonl").exists() else []


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
        ({"layout.fleet": "", "layout.fleet_parameters": "bfloat16"}, ["--layout.fleet_parameters=bfloat16"]),
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


class Ray:
    """Stands in for Ray, which would begin anew at any call after `shutdown`.

    Attributes:
        calls: names of what was called.
        release: `kill` waits for it.
    """

    exceptions = types.SimpleNamespace(RayError=OSError, RayTaskError=OSError)

    def __init__(self) -> None:
        self.calls, self.release = list[str](), threading.Event()
        self.release.set()

    def kill(self, handle: Any) -> None:
        self.calls.append("kill")
        self.release.wait(conftest.SOON_S)
        self.calls.append("killed")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.calls.append(name)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, small: type[conftest.Small]) -> tuple[Any, Ray]:
    """A fleet that has begun the stand-in, and that stand-in."""
    monkeypatch.setattr(fleet.software, "is_installed", lambda package: True)
    of_fleet: Any = small("ppo", "toy:walk", 1, {**TWO, "layout.fleet": "local"}).layout._fleet  # type: ignore[attr-defined]
    of_fleet._ray, of_fleet._is_open, of_fleet._is_ours = Ray(), True, True
    of_fleet._next_look_s = math.inf
    return of_fleet, of_fleet._ray


def test_a_thread_that_outlives_its_fleet_begins_no_other_cluster(connected: tuple[Any, Ray]) -> None:
    of_fleet, ray = connected
    remote = fleet.Remote(of_fleet, fleet.Crew("player", None), None)  # type: ignore[arg-type]
    of_fleet.close()
    remote.close()
    for ask in (lambda: of_fleet.wait(["answer"], 0.1), lambda: of_fleet.result("answer")):
        with pytest.raises(channels.Closed):
            ask()
    assert ray.calls == ["shutdown"]


def test_a_fleet_that_closes_while_a_thread_looks_for_its_head_asks_nothing(
    connected: tuple[Any, Ray], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_fleet, ray = connected
    monkeypatch.setattr(of_fleet, "_check_head", of_fleet.close)
    with pytest.raises(channels.Closed):
        of_fleet.wait(["answer"], 0.1)
    assert ray.calls == ["shutdown"]


def test_a_player_of_another_s_cluster_is_still_ended_after_the_fleet(connected: tuple[Any, Ray]) -> None:
    of_fleet, ray = connected
    of_fleet._is_ours = False
    of_fleet.close()
    of_fleet.kill(fleet.Crew("player", None))
    assert ray.calls == ["kill", "killed"]


def test_a_fleet_closes_after_a_player_that_a_thread_ends_just_now(connected: tuple[Any, Ray]) -> None:
    of_fleet, ray = connected
    ray.release.clear()
    threads = [threading.Thread(target=of_fleet.kill, args=(fleet.Crew("player", None),))]
    threads[0].start()
    until_s = time.monotonic() + conftest.SOON_S
    while not ray.calls and time.monotonic() < until_s:
        time.sleep(0.01)
    threads.append(threading.Thread(target=of_fleet.close))
    threads[1].start()
    threads[1].join(0.2)
    ray.release.set()
    for thread in threads:
        thread.join(conftest.SOON_S)
    assert ray.calls == ["kill", "killed", "shutdown"]


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
