"""Evaluation in environments on the CPU: what each process plays and draws, and what ends it early."""

import threading
import time
from typing import Any

import conftest
import jax
import numpy as np
import pytest
from fakes import host

import jaxrl_dist
from jaxrl_dist import envs, errors, processes, types
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.training import evaluation

MADE: Any = jaxrl_dist.make("ppo", "toy:walk")
EPISODES, INDEX = 8, 3


def uniform(params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Draws each column's action of the 3, whatever it sees."""
    actions = jax.random.randint(inputs.key, inputs.timestep.step_type.shape, 0, 3)
    return types.ActOutput(actions, (), inputs.carry)


class Heard(host.Walk):
    """Keeps the actions that it gets, [B] for each step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.actions: list[np.ndarray] = []

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        self.actions.append(action.copy())
        super().raw_send(action, env_ids)


def pretend(monkeypatch: pytest.MonkeyPatch, index: int, count: int) -> None:
    """Makes this process one of several, which all say the same."""
    monkeypatch.setattr(processes, "index", lambda: index)
    monkeypatch.setattr(processes, "count", lambda: count)
    monkeypatch.setattr(processes, "exchange", lambda said, decide: decide([said] * count))


def evaluated(task: envs.HostTask, timeout_s: float = 60.0, **more: Any) -> np.ndarray | None:
    """Evaluates a policy that draws its actions."""
    agent = MADE.agent._replace(evaluate=uniform)
    evaluate = evaluation.make_on_host(agent, task, EPISODES, max_steps=100, timeout_s=timeout_s)
    params = jax.tree.map(lambda x: x[None], agent.init(jax.random.key(0)))
    return evaluate(params, jax.random.key(1)[None], INDEX, **more)


def actions_of(monkeypatch: pytest.MonkeyPatch, index: int, count: int) -> np.ndarray:
    """Evaluates as one of several processes; returns its actions [T, B]."""
    made: list[Heard] = []

    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> Any:
        made.append(Heard(seeds, timeout_s, lambda walk: None))
        return made[-1]

    pretend(monkeypatch, index, count)
    returns = evaluated(envs.HostTask(host.spec(), "", make))
    np.testing.assert_array_equal(returns, np.full((1, EPISODES), host.LENGTH))
    (one,) = made
    return np.array(one.actions)


def by_loops(index: int, devices: int, episodes: int) -> list[float]:
    """Plays CartPole's episodes one by one, each by the draws of its column; returns their sums of rewards."""
    environment = envs.make("gymnax:CartPole-v1")
    env_key, act_key = jax.random.split(jax.random.fold_in(jax.random.key(1), index))
    each, found, step = -(-episodes // devices), list[float](), jax.jit(environment.step)
    for i in range(episodes):
        state, timestep = environment.reset(jax.random.fold_in(env_key, i))
        own, total, t = jax.random.fold_in(act_key, i // each), 0.0, 0
        while timestep.step_type != types.LAST:
            action = jax.random.randint(jax.random.fold_in(own, t), (each,), 0, 2)[i % each]
            state, timestep = step(state, action)
            total, t = total + float(timestep.reward), t + 1
        found.append(total)
    return found


@pytest.mark.parametrize("devices", [1, 2])
def test_episodes_on_devices_are_those_of_plain_loops(devices: int) -> None:
    def drawn(params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
        actions = jax.random.randint(inputs.key, inputs.timestep.step_type.shape, 0, 2)
        return types.ActOutput(actions, (), inputs.carry)

    made: Any = jaxrl_dist.make("ppo", "gymnax:CartPole-v1")
    agent, environment = made.agent._replace(evaluate=drawn), envs.make("gymnax:CartPole-v1")
    mesh = meshes.make(jax.devices()[:devices], 1)
    evaluate = evaluation.make(agent, environment, EPISODES - 1, max_steps=100, mesh=mesh)
    params = jax.tree.map(lambda x: x[None], agent.init(jax.random.key(0)))
    first, second = (evaluate(params, jax.random.key(1)[None], index) for index in (0, INDEX))
    assert first is not None and first.shape == (1, EPISODES - 1) and len(set(first[0])) > 3
    np.testing.assert_array_equal(first[0], by_loops(0, devices, EPISODES - 1))
    np.testing.assert_array_equal(second[0], by_loops(INDEX, devices, EPISODES - 1))
    assert list(first[0]) != list(second[0])


def test_processes_play_episodes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeds_of(index: int, count: int) -> list[float]:
        made: list[host.Walk] = []
        pretend(monkeypatch, index, count)
        evaluated(host.task(made=made))
        return [seed for walk in made for seed in walk.seeds.tolist()]

    (first, second), alone = (seeds_of(index, 2) for index in range(2)), seeds_of(0, 1)
    assert first == alone[::2] and second == alone[1::2] and len(set(alone)) == EPISODES


def test_processes_draw_actions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (actions_of(monkeypatch, index, 2) for index in range(2))
    assert first.shape == second.shape == (host.LENGTH, EPISODES // 2)
    # Of 28 draws of 3, about a third are the same by chance.
    assert (first == second).mean() < 0.7


def test_one_process_draws_by_the_key_of_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    found = actions_of(monkeypatch, 0, 1)
    key = jax.random.split(jax.random.fold_in(jax.random.key(1), INDEX))[1]
    steps = [jax.random.randint(jax.random.fold_in(key, t), (EPISODES,), 0, 3) for t in range(host.LENGTH)]
    np.testing.assert_array_equal(found, np.array(steps))


@pytest.mark.parametrize("count", [1, 2])
def test_environments_that_hang_are_a_fault_in_any_number_of_processes(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, made = threading.Event(), list[host.Walk]()

    def hang(walk: host.Walk) -> None:
        if walk.total_steps == 3:
            over.wait(conftest.SOON_S)

    pretend(monkeypatch, 0, count)
    with pytest.raises(errors.EnvironmentFault, match=r"fake:walk gave nothing for 0\.5 s"):
        evaluated(host.task(hang, made), timeout_s=0.5)
    over.set()
    assert [walk.total_steps for walk in made] == [3]


@pytest.mark.parametrize(("cut", "limit"), [(host.LENGTH - 2, host.LENGTH), (host.LENGTH, host.LENGTH), (2, 4)])
def test_an_episode_that_a_fault_cut_short_is_played_again_as_a_whole(cut: int, limit: int) -> None:
    class LostOnce(host.Walk):
        def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
            row, ids = super().raw_recv()
            if self.total_steps == cut:
                # Its episode is cut short; the next step is its first again.
                row.is_first[0] = row.is_last[0] = True
                self._step[0] = host.LENGTH
            return row, ids

    made: list[host.Walk] = []

    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> Any:
        made.append(LostOnce(seeds, timeout_s, lambda walk: None))
        return made[-1]

    returns = evaluated(envs.HostTask(host.spec(), "", make), limit=limit)
    np.testing.assert_array_equal(returns, np.full((1, EPISODES), limit))
    # The steps before the fault, the reset, and a whole episode.
    assert [walk.total_steps for walk in made] == [cut + 1 + limit]


def test_an_interrupt_ends_the_thread_that_evaluates() -> None:
    playing, made = threading.Event(), list[host.Walk]()

    def pause(walk: host.Walk) -> None:
        if walk.total_steps == 3:
            playing.set()
            # The interrupt comes within this step.
            time.sleep(0.5)

    def stopped() -> bool:
        if playing.is_set() and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        evaluated(host.task(pause, made), stopped=stopped)
    assert not [thread for thread in threading.enumerate() if thread.name == "watched"]
    assert [(walk.total_steps, walk.is_closed) for walk in made] == [(3, True)]
