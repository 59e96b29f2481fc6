"""The members of an asynchronous run by role: an actor plays, a learner learns, and a bundled worker does both.

Source: Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning"; Nair et al. 2015 (Gorila): bundled, a
worker acts with the parameters that it learns with; separate, actors play and learners learn.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs.host import episodes, hangs
from jaxrl_dist.learning import step
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.async_gradient import plan as plans
from jaxrl_dist.parallel.async_gradient.programs import Held, Kept, Turn, Work, emptied
from jaxrl_dist.types import ArrayTree


class State(NamedTuple):
    """A member between two turns; a role reads and writes its own parts alone.

    Attributes:
        actors: of a member that plays: its environments, whose own state is `()` on the host.
        replay: of a bundled worker with a replay of its own.
        kept: of a worker that exchanges by the episode.
    """

    actors: unrolls.ActorState | None = None
    replay: ArrayTree | None = None
    kept: Kept | None = None


class Worker:
    """A member with its state.

    Attributes:
        plays: whether it has environments.
        learns: whether it takes gradients.
        may_hang: whether its environments are on the host.
        rank: its index among the members of its role.
        key: typed key of its own.
        env_ids: i32 [B], global indices of its environments.
        number: number of its next unroll or gradient.
        state: its state before that.
        programs: programs of all members.
    """

    def __init__(self, plan: plans.Plan, saved: Any, index: int) -> None:
        """Takes over a member's part of a `snapshot.State`; environments on the host begin anew.

        Args:
            plan: plan of the run.
            saved: state of the run.
            index: index of the member.
        """
        parts, keys = plan.parts, run_keys.seed_keys(saved.key[0])
        self.programs, self._role, self._device = plan.programs, _role(plan, index), plan.devices[index]
        self.plays, self.learns, self.number = plan.plays(index), plan.learns(index), int(saved.numbers[index])
        # Acting and learning split a key differently, so a learner may have the same key as the actor of its rank.
        self.rank = index if self.plays else index - plan.players
        key = jax.random.fold_in(keys.training, self.rank)
        self.key, self.env_ids = jax.device_put((key, plan.env_ids(self.rank)), self._device)
        self.may_hang = self.plays and self.programs.on_host is not None
        self._is_alone = plan.members == 1
        before = State(
            actors=saved.actors[index] if self.plays else None,
            replay=None if plan.num_rings else saved.replay[index],
            kept=saved.kept[index] if saved.kept else None,
        )
        self.state = before if self.may_hang else jax.device_put(before, self._device)
        first_ready = step.schedule(parts.replay, parts.config.unroll_length).first_ready
        self._ready_at = self.number - _unrolls_kept(before.replay, parts.config.unroll_length) + first_ready
        self._environment: envs.HostEnvironment | None = None
        self._making = hangs.Making(parts.environment.spec.name, parts.config.timeout_s)
        self._player: Any = None
        if self.may_hang:
            seed, played = int(jax.random.bits(keys.environment, dtype=np.uint32)), int(saved.numbers.sum())
            # The sum of all members' numbers, so that a resumed run plays other environments than before.
            seeds = episodes.seeds(seed, "training 0", played, index * plan.width, plan.width)
            self._make = functools.partial(parts.environment.make, seeds, plan.width, parts.config.timeout_s)

    def work(self, newest: Held, sample: types.Sample | None) -> Work:
        """Plays an unroll, or takes a gradient, or both; blocks until the result is computed, unless it is alone."""
        if jax.tree.leaves(newest.params)[0].devices() != {self._device}:
            newest = jax.device_put(newest, self._device)
        self.state, work = self._role(self, newest, jax.device_put(sample, self._device))
        self.number += 1
        if not self._is_alone:
            jax.block_until_ready(work)
        return work

    def turn(self, held: Held) -> Turn:
        """Returns the arguments that its programs share."""
        return Turn(held, self.key, np.int32(self.number))

    def is_ready(self) -> np.ndarray:
        """Returns bool [], whether the next unroll fills its own replay enough to learn from it."""
        return np.asarray(self.number >= self._ready_at)

    def play(self, held: Held) -> tuple[State, types.Unroll, unrolls.EpisodeSums]:
        """Plays an unroll; returns the member's next state, the unroll, and the sums of its episodes."""
        if self.programs.on_host is not None:
            return self._play_on_host(self.programs.on_host, held)
        actors, unroll, sums = self.programs.play(self.turn(held), self.env_ids, self.state.actors)
        return self.state._replace(actors=actors), unroll, sums

    def forget(self) -> None:
        """Drops the parameters and the gradient that it keeps between pushes; call it only while it is not at work."""
        if self.state.kept is not None:
            self.state = self.state._replace(kept=emptied(self.state.kept))

    def check(self) -> None:
        """Raises an `EnvironmentFault` if its environments take longer than they may."""
        hangs.check(self._environment, self._making)

    def is_kept(self) -> bool:
        """Says whether its environments may keep its thread for ever."""
        return hangs.may_keep(self._environment, self._making)

    def close(self) -> None:
        """Frees its environments."""
        if self._environment is not None:
            self._environment.close()

    def _play_on_host(
        self, programs: unrolls.HostUnroll, held: Held
    ) -> tuple[State, types.Unroll, unrolls.EpisodeSums]:
        """Plays in environments on the host, which are made here since the thread that steps them must make them."""
        assert self.state.actors is not None
        _, timestep, carry = self.state.actors
        if self._environment is None:
            with self._making:
                self._environment = self._player = self._make()
            if self.number:
                timestep = unrolls.ended(jax.tree.map(np.asarray, timestep))
                self._player = unrolls.ResetOnFirstStep(self._environment)
            else:
                timestep = self._environment.reset()._replace(info=())
        published = unrolls.Published(held.params, held.updates, held.progress)
        carry = self.programs.sound_carry(jax.device_put(carry, self._device))
        (unroll,), rows = programs.run(published, self.key, self.number, self.env_ids, self._player, timestep, carry)
        state = self.state._replace(actors=unrolls.ActorState((), rows.timestep, rows.carry))
        return state, jax.device_put(unroll, self._device), rows.episodes


def act(worker: Worker, held: Held, sample: types.Sample | None) -> tuple[State, Work]:
    """Plays for a shared replay: the role of an actor."""
    del sample
    state, unroll, sums = worker.play(held)
    return state, Work(episodes=sums, unroll=unroll)


def learn(worker: Worker, held: Held, sample: types.Sample) -> tuple[State, Work]:
    """Takes the gradient of a sample of a shared replay: the role of a learner."""
    gradient, priorities = worker.programs.learn(worker.turn(held), sample)
    return worker.state, Work(gradient, held.updates, indices=sample.indices, priorities=priorities)


def act_and_learn(worker: Worker, held: Held, sample: types.Sample | None) -> tuple[State, Work]:
    """Plays for a shared replay, and learns from it once there is a sample: the role of a bundled worker."""
    state, played = act(worker, held, sample)
    if sample is None:
        return state, played
    return state, learn(worker, held, sample)[1]._replace(episodes=played.episodes, unroll=played.unroll)


def act_and_learn_alone(worker: Worker, held: Held, sample: types.Sample | None) -> tuple[State, Work]:
    """Plays for a replay of its own, and learns from it: the role of a bundled worker without a shared replay."""
    del sample
    programs, state, start = worker.programs, worker.state, (worker.turn(held), worker.is_ready())
    if programs.on_host is None:
        arguments = worker.env_ids, state.actors, state.replay
        gradient, sums, actors, replay = programs.play_and_learn(*start, *arguments)
        state = state._replace(actors=actors)
    else:
        state, unroll, sums = worker.play(held)
        gradient, replay = programs.learn_own(*start, unroll, state.replay)
    return state._replace(replay=replay), Work(gradient, held.updates, sums)


def by_episode(role: "Role", worker: Worker, newest: Held, sample: types.Sample | None) -> tuple[State, Work]:
    """Plays a bundled role with the same parameters until an episode ends, and then sends the sum of its gradients."""
    programs, kept = worker.programs, worker.state.kept
    assert kept is not None
    held = programs.pull(kept, newest)
    state, work = role(worker, held, sample)
    # Without a sample there is no gradient, but the sum so far may still be sent.
    gradient = work.gradient or jax.tree.map(jnp.zeros_like, kept.gradient)
    kept, gradient = programs.push(kept, held, gradient, work.episodes)
    return state._replace(kept=kept), work._replace(gradient=gradient, given=held.updates)


Role = Callable[[Worker, Held, Any], tuple[State, Work]]


def _role(plan: plans.Plan, index: int) -> Role:
    """Returns the function that a member's role is."""
    if not plan.learns(index):
        return act
    if not plan.plays(index):
        return learn
    role = act_and_learn if plan.num_rings else act_and_learn_alone
    return functools.partial(by_episode, role) if plan.parts.config.exchange == "episode" else role


def _unrolls_kept(replay_state: Any, unroll_length: int) -> int:
    """Returns how many unrolls a worker's own replay holds, 0 for a replay that keeps none."""
    filled = getattr(replay_state, "filled", None)
    return 0 if filled is None else int(np.asarray(filled).min()) // unroll_length
