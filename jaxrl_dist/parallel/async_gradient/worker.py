"""A worker of the asynchronous layout: plays environments of its own, or takes gradients, or both.

Source: Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning"; Nair et al. 2015 (Gorila): bundled, a
worker acts with the parameters that it learns with; separate, actors play and learners learn.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.async_gradient import programs as worker_programs
from jaxrl_dist.parallel.sebulba import channels
from jaxrl_dist.types import Array, ArrayTree


class State(NamedTuple):
    """A worker between unrolls.

    Attributes:
        actors: `unrolls.ActorState`, its environment `()` on the host; `()` where it does not play.
        replay: its own; `()` where it has none.
        kept: `worker_programs.Kept`, or `()` where it pulls and pushes with every unroll.
    """

    actors: Any
    replay: ArrayTree
    kept: Any


class Role(NamedTuple):
    """Describes a worker.

    Attributes:
        device: where it computes.
        key: typed key of its own.
        env_ids: i32 [B], global indices of its environments; None where it does not play.
        make_environment: on the host, None where they are on the device.
        nothing: `worker_programs.Work` of zeros, what it sends where it cannot learn yet.
        learns: whether it takes gradients.
        shares: whether its replay is a shared one, which samples come from and unrolls go to.
        is_alone: whether no other worker is there to be waited for; then nothing need be finished here.
    """

    device: jax.Device
    key: Array
    env_ids: np.ndarray | None
    make_environment: Callable[[], envs.HostEnvironment] | None
    nothing: worker_programs.Work
    learns: bool
    shares: bool
    is_alone: bool


class Worker:
    """One worker with its state.

    Attributes:
        number: of its next unroll or gradient.
        role: which it is.
        state: before that.
    """

    def __init__(
        self, programs: worker_programs.Programs, role: Role, state: State, number: int, unroll_length: int
    ) -> None:
        """Takes up a state.

        Args:
            programs: shared by all workers.
            role: which it is.
            state: to go on from; environments on the host begin anew, so its timestep must be all LAST, or () at the
                very first.
            number: of its next unroll.
            unroll_length: T.
        """
        self.number, self.role = number, role._replace(key=jax.device_put(role.key, role.device))
        self._programs = programs
        self._env_ids = None if role.env_ids is None else jax.device_put(role.env_ids, role.device)
        self.state = jax.device_put(state, role.device) if role.make_environment is None else state
        self._ready_at = number - _unrolls_kept(state.replay, unroll_length) + programs.first_ready
        self._environment: envs.HostEnvironment | None = None
        self._player: Any = None

    def work(self, newest: worker_programs.Held, drawn: worker_programs.Drawn | None) -> worker_programs.Work:
        """Plays an unroll, or takes a gradient, or both; blocks until it is there, unless alone."""
        if jax.tree.leaves(newest.params)[0].devices() != {self.role.device}:
            newest = jax.device_put(newest, self.role.device)
        kept = self.state.kept
        held = self._programs.pull(kept, newest) if kept else newest
        work = self._with_others(held, drawn) if self.role.shares else self._by_itself(held)
        if kept:
            kept, gradient = self._programs.push(kept, held, work.sent.gradient, work.sent.episodes)
            work = work._replace(sent=work.sent._replace(gradient=gradient))
            self.state = self.state._replace(kept=kept)
        self.number += 1
        if not self.role.is_alone:
            jax.block_until_ready(work)
        return work

    def forget(self) -> None:
        """Drops the parameters and the gradient that it keeps between pushes; only while it is not at work."""
        self.state = self.state._replace(kept=worker_programs.forgotten(self.state.kept))

    def check(self) -> None:
        """Raises an `EnvironmentFault` if its environments take longer than they may."""
        if self._environment is not None:
            hangs.check_waiting(self._environment)

    def close(self) -> None:
        """Frees its environments."""
        if self._environment is not None:
            self._environment.close()

    def _by_itself(self, held: worker_programs.Held) -> worker_programs.Work:
        """Plays, and learns from its own replay."""
        number, ready = np.int32(self.number), np.asarray(self.number >= self._ready_at)
        arguments, (actors, replay_state, kept) = (held, self.role.key, number, ready), self.state
        if self._programs.on_host is None:
            actors, replay_state, gradient, episodes = self._programs.on_device(
                *arguments, self._env_ids, actors, replay_state
            )
        else:
            actors, unroll, episodes = self._play_on_host(self._programs.on_host, held, actors)
            replay_state, gradient = self._programs.learn(*arguments, unroll, replay_state)
        self.state = State(actors, replay_state, kept)
        return worker_programs.Work(worker_programs.Sent(gradient, episodes, held.updates), (), (), (), ())

    def _with_others(self, held: worker_programs.Held, drawn: worker_programs.Drawn | None) -> worker_programs.Work:
        """Plays for a shared replay, and learns from a sample of one."""
        work, number = self.role.nothing, np.int32(self.number)
        gradient, unroll, episodes = work.sent.gradient, work.unroll, work.sent.episodes
        if self._env_ids is not None:
            actors = self.state.actors
            if self._programs.on_host is None:
                actors, unroll, episodes = self._programs.play(held, self.role.key, number, self._env_ids, actors)
            else:
                actors, unroll, episodes = self._play_on_host(self._programs.on_host, held, actors)
            self.state = self.state._replace(actors=actors)
        if drawn is not None:
            drawn = jax.device_put(drawn, self.role.device)
            gradient, priorities = self._programs.teach(held, self.role.key, number, drawn.sample)
            work = work._replace(indices=drawn.sample.indices, priorities=priorities, ring=drawn.ring)
        return work._replace(sent=worker_programs.Sent(gradient, episodes, held.updates), unroll=unroll)

    def _play_on_host(
        self, programs: unrolls.HostUnroll, held: worker_programs.Held, actors: unrolls.ActorState
    ) -> Any:
        timestep = actors.timestep
        if self._environment is None:
            assert self.role.make_environment is not None
            environment = self._environment = self.role.make_environment()
            if isinstance(timestep, types.TimeStep):
                self._player = unrolls.ResetOnFirstStep(environment)
            else:
                self._player, timestep = environment, environment.reset()._replace(info=())
        published = channels.Published(held.params, held.updates, held.progress)
        carry = self._programs.heal(jax.device_put(actors.carry, self.role.device))
        (unroll,), rows = programs.run(
            published, self.role.key, self.number, self._env_ids, self._player, timestep, carry
        )
        return unrolls.ActorState((), rows.timestep, rows.carry), unroll, rows.episodes


def _unrolls_kept(replay_state: Any, unroll_length: int) -> int:
    """Returns how many unrolls a replay holds: 0 of one that keeps none."""
    filled = getattr(replay_state, "filled", None)
    return 0 if filled is None else int(np.asarray(filled).min()) // unroll_length
