"""A player, called in this process: its unrolls are those of a thread, bit for bit, and it goes on where it is told."""

import time
from typing import Any

import conftest
import jax
import numpy as np
import pytest
from fakes import host

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import player, wire
from jaxrl_dist.training import assemble

B, T = 2, 5


class Played:
    """A player, the wire of its unrolls, and the parameters of version 3."""

    def __init__(self, system: str, env: str, task: Any = None, timeout_s: float = 60.0) -> None:
        atoms = {"agent.value_low": -100.0, "agent.value_high": 0.0} if system == "d4pg" else {}
        flags = {"system": system, "env": env, **conftest.SMALL[system], "layout": "sebulba", **atoms}
        settings, environment = assemble.resolve(flags)
        self.task = task or environment
        self.agent = assemble.make_agent(settings, self.task.spec)
        self.plan = player.Plan(lambda: (self.agent, self.task), 8, B, T, timeout_s)
        rows = unrolls.rows_struct(self.agent, self.task.spec, T, B)
        self.wire = wire.Wire(self.task.spec, rows)
        params = jax.device_get(self.agent.init(jax.random.key(1)))
        self.published = unrolls.Published(params, np.int32(3), np.float32(0.5))
        self.key = jax.random.key(7)
        self.fresh: Any = unrolls.ActorState((), (), self.agent.init_carry(B))  # type: ignore[arg-type]

    def begin(self, state: Any, life: int = 0) -> player.Player:
        """Returns a player that begins with global environments 4 and 5."""
        one = player.Player(self.plan)
        one.begin(self.start(state, life))
        return one

    def start(self, state: Any, life: int = 0) -> player.Start:
        """Returns what tells a player to begin there."""
        key = np.asarray(jax.random.key_data(self.key))
        return player.Start(key, key, 2 * B, 0, life, state)

    def unroll(self, one: player.Player, number: int) -> wire.Played:
        return self.wire.unpack(one.play(number, self.published), number, 3)


@pytest.mark.parametrize("system, env", [("ppo", "toy:walk"), ("r2d2", "toy:walk"), ("d4pg", "gymnasium:Pendulum-v1")])
def test_its_unrolls_are_those_of_a_thread(system: str, env: str) -> None:
    parts = Played(system, env)
    one = parts.begin(parts.fresh)
    assert one.warm_up(parts.published)[0].startswith("python ")
    environment = player.actors.make_environments(parts.task, B, B, 60.0, parts.key, 2 * B, 0, 0)
    programs = unrolls.HostUnroll(parts.agent, parts.task.spec, 8, T, 1)
    timestep, carry = environment.reset()._replace(info=()), parts.agent.init_carry(B)
    ids = np.arange(2 * B, 3 * B, dtype=np.int32)
    for number in range(3):
        played = parts.unroll(one, number)
        published = jax.device_put(parts.published)
        (unroll,), rows = programs.run(published, parts.key, number, ids, environment, timestep, carry)
        timestep, carry = rows.timestep, rows.carry
        expected = unroll.steps, rows.carry, rows.episodes
        for ours, theirs in zip(
            jax.tree.leaves(expected), jax.tree.leaves((played.steps, played.carry, played.episodes)), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    one.close()
    environment.close()


def test_rounded_parameters_act_as_the_numbers_that_they_are_rounded_to() -> None:
    parts = Played("ppo", "toy:walk")
    plain = parts.unroll(parts.begin(parts.fresh), 0)
    sent = wire.rounded(parts.published)
    one = parts.begin(parts.fresh)
    assert one.warm_up(sent)
    parts.published = sent
    rounded = parts.unroll(one, 0)
    parts.published = wire.whole(sent)
    for ours, theirs in zip(
        jax.tree.leaves(rounded.steps), jax.tree.leaves(parts.unroll(parts.begin(parts.fresh), 0).steps), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert (rounded.steps.extras.log_prob != plain.steps.extras.log_prob).any()


def test_it_goes_on_from_saved_environments() -> None:
    parts = Played("ppo", "toy:walk")
    one = parts.begin(parts.fresh)
    first = parts.unroll(one, 0)
    closing = jax.tree.map(lambda x: x[-1], first.steps.timestep)
    other = parts.begin(unrolls.ActorState(one.state(), closing, first.carry))
    for ours, theirs in zip(*(jax.tree.leaves(parts.unroll(each, 1).steps) for each in (one, other)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_second_life_opens_with_the_last_row_of_the_first_and_new_environments() -> None:
    made: list[host.Walk] = []
    parts = Played("ppo", "toy:walk", host.task(made=made))
    one = parts.begin(parts.fresh)
    first = parts.unroll(one, 0)
    closing = unrolls.ended(jax.tree.map(lambda x: x[-1], first.steps.timestep))
    second = parts.unroll(parts.begin(unrolls.ActorState((), closing, first.carry), life=1), 1)
    assert (second.steps.timestep.step_type[:2] == [[types.LAST] * B, [types.FIRST] * B]).all()
    np.testing.assert_array_equal(second.steps.timestep.observation[0], closing.observation)
    assert not set(made[0].seeds) & set(made[1].seeds)


def test_another_thread_notices_environments_that_hang() -> None:
    made: list[host.Walk] = []
    parts = Played("ppo", "toy:walk", host.task(made=made), timeout_s=5.0)
    one = player.Player(parts.plan)
    one.check()
    one = parts.begin(parts.fresh)
    parts.unroll(one, 0)
    one.check()
    made[0].waiting_since, made[0]._busy[1] = 1e-9, True
    with pytest.raises(errors.EnvironmentFault, match=r"fake:walk gave nothing for 5 s; .*\b1$"):
        one.check()
    one.close()
    assert made[0].is_closed


def test_another_thread_notices_environments_that_hang_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> Any:
        time.sleep(0.3)
        # As the other thread would, while this one makes them.
        with pytest.raises(errors.EnvironmentFault) as error:
            one.check()
        found.append(str(error.value))
        return host.Walk(seeds, timeout_s, lambda walk: None)

    monkeypatch.setattr(hangs, "MAKE_S", 0.2)
    parts = Played("ppo", "toy:walk", envs.HostTask(host.spec(), "", make), timeout_s=0.1)
    one = player.Player(parts.plan)
    one.begin(parts.start(parts.fresh))
    assert len(found) == 1 and found[0].startswith("fake:walk: ")
    one.check()
