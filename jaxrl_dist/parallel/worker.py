"""A worker of the asynchronous layout: plays its own environments, keeps its own replay, and takes a gradient.

Source: Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning"; Nair et al. 2015 (Gorila), the bundled
mode, in which a worker acts with the parameters that it learns with.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import learn as learning_steps
from jaxrl_dist import learner as learners
from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.agents import base as agents
from jaxrl_dist.envs import base as envs
from jaxrl_dist.envs import watch
from jaxrl_dist.parallel import base, channels, server
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.types import Array, ArrayTree


class Held(NamedTuple):
    """What the server gave: params and target network, updates i32 [] they had had, and the share of training."""

    params: types.Params
    target_network: ArrayTree
    updates: Any
    progress: Any


class State(NamedTuple):
    """A worker between unrolls: `unrolls.ActorState` (its environment `()` on the host), and its replay."""

    actors: unrolls.ActorState
    replay: ArrayTree


class Sent(NamedTuple):
    """What a worker gives back.

    Attributes:
        gradient: without priorities.
        episodes: sums, leaves [1].
        given: i32 [], updates that its parameters had had.
    """

    gradient: learners.Gradient
    episodes: unrolls.EpisodeSums
    given: Any


class Programs(NamedTuple):
    """Programs of every worker.

    Attributes:
        on_device: (held, key, number, ready, env_ids, state) -> (state, gradient, episodes); donates the state.
        on_host: plays environments on the host; None where they are on the device.
        learn: (held, key, number, ready, unroll, replay) -> (replay, gradient), of an unroll on the host.
        first_ready: unrolls before the first that a worker learns from.
    """

    on_device: Any
    on_host: unrolls.HostUnroll | None
    learn: Any
    first_ready: int


def make(
    agent: agents.Agent,
    replay: replays.Replay,
    learner: learners.Learner,
    environment: envs.Environment | envs.HostTask,
    num_envs: int,
    unroll_length: int,
) -> Programs:
    """Builds the programs; compiles none.

    Args:
        agent: acts and defines the loss.
        replay: a worker's own.
        learner: built with `types.LOCAL`.
        environment: on the device, or of a suite on the CPU.
        num_envs: over all workers, for the agent's exploration.
        unroll_length: T.
    """
    pace = learning_steps.pace(replay, unroll_length)

    def gradient_of(
        held: Held, replay_state: ArrayTree, unroll: types.Unroll, key: Array, ready: Array
    ) -> tuple[ArrayTree, learners.Gradient]:
        replay_state = replay.add(replay_state, unroll, jnp.arange(unroll.steps.version.shape[1], dtype=jnp.int32))

        def teach(replay_state: ArrayTree) -> tuple[ArrayTree, learners.Gradient]:
            sample_key, update_key = jax.random.split(key)
            sample = replay.sample(replay_state, sample_key, held.progress)
            batch = agent.prepare(held.params, sample.sequences, types.LOCAL)
            weights = learners.item_weights(sample, batch)
            gradient = learner.gradients(held.params, held.target_network, batch, weights, update_key, held.progress)
            kept = replay.update(replay_state, sample.indices, gradient.priorities)
            return kept, server.without_priorities(gradient)

        if not replay.min_rows:
            return teach(replay_state)
        shapes = jax.eval_shape(teach, replay_state)[1]
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.cond(ready, teach, lambda kept: (kept, nothing), replay_state)

    def keys_of(key: Array, number: Array) -> tuple[Array, Array]:
        act_key, learn_key = jax.random.split(jax.random.fold_in(key, number))
        # As every layout's first update of an iteration.
        return act_key, jax.random.fold_in(learn_key, 0) if replay.min_rows else learn_key

    def on_device(held: Held, key: Array, number: Array, ready: Array, env_ids: Array, state: State) -> Any:
        act_key, learn_key = keys_of(key, number)
        exploration = agent.exploration(env_ids, num_envs, held.progress)
        actors, rows, episodes = play(held.params, state.actors, act_key, exploration, held.updates)
        replay_state, gradient = gradient_of(held, state.replay, rows, learn_key, ready)
        return State(actors, replay_state), gradient, jax.tree.map(lambda x: x[None], episodes)

    def learn(
        held: Held, key: Array, number: Array, ready: Array, unroll: types.Unroll, replay_state: ArrayTree
    ) -> Any:
        return gradient_of(held, replay_state, unroll, keys_of(key, number)[1], ready)

    on_host = None
    if isinstance(environment, envs.Environment):
        play = unrolls.device_unroll(agent, environment, unroll_length)
    else:
        on_host = unrolls.host_unroll(agent, num_envs, unroll_length, 1)
    return Programs(jax.jit(on_device, donate_argnums=5), on_host, jax.jit(learn, donate_argnums=5), pace.first_ready)


class Worker:
    """One worker with its state.

    Attributes:
        number: of its next unroll.
        state: before that unroll.
    """

    def __init__(
        self,
        programs: Programs,
        device: jax.Device,
        key: Array,
        env_ids: np.ndarray,
        state: State,
        number: int,
        unroll_length: int,
        make_environment: Callable[[], envs.HostEnvironment] | None,
        is_alone: bool,
    ) -> None:
        """Takes up a state.

        Args:
            programs: shared by all workers.
            device: where it computes.
            key: typed key of its own.
            env_ids: i32 [B], global indices of its environments.
            state: to go on from; environments on the host begin anew, so its timestep must be all LAST, or () at the
                very first.
            number: of its next unroll.
            unroll_length: T.
            make_environment: on the host, None where they are on the device.
            is_alone: whether no other worker is there to be waited for; then nothing need be finished here.
        """
        self.number = number
        self._programs, self._device, self._is_alone = programs, device, is_alone
        self._key, self._env_ids = jax.device_put((key, env_ids), device)
        self.state = jax.device_put(state, device) if make_environment is None else state
        self._ready_at = number - _unrolls_kept(state.replay, unroll_length) + programs.first_ready
        self._make = make_environment
        self._environment: envs.HostEnvironment | None = None
        self._player: Any = None

    def work(self, held: Held) -> Sent:
        """Plays an unroll and takes a gradient; blocks until it is there, unless alone."""
        if jax.tree.leaves(held.params)[0].devices() != {self._device}:
            held = jax.device_put(held, self._device)
        arguments = (held, self._key, np.int32(self.number), np.asarray(self.number >= self._ready_at))
        if self._programs.on_host is None:
            self.state, gradient, episodes = self._programs.on_device(*arguments, self._env_ids, self.state)
        else:
            gradient, episodes = self._play_on_host(self._programs.on_host, held, arguments)
        self.number += 1
        if not self._is_alone:
            jax.block_until_ready(gradient)
        return Sent(gradient, episodes, held.updates)

    def check(self) -> None:
        """Raises an `EnvironmentFault` if its environments take longer than they may."""
        if self._environment is not None:
            watch.check_waiting(self._environment)

    def close(self) -> None:
        """Frees its environments."""
        if self._environment is not None:
            self._environment.close()

    def _play_on_host(self, programs: unrolls.HostUnroll, held: Held, arguments: Any) -> Any:
        actors, replay_state = self.state
        timestep = actors.timestep
        if self._environment is None:
            assert self._make is not None
            environment = self._environment = self._make()
            if isinstance(timestep, types.TimeStep):
                self._player = unrolls.Reborn(environment)
            else:
                self._player, timestep = environment, environment.reset()._replace(info=())
        published = channels.Published(held.params, held.updates, held.progress)
        carry = jax.device_put(actors.carry, self._device)
        (unroll,), rows = programs.run(published, self._key, self.number, self._env_ids, self._player, timestep, carry)
        replay_state, gradient = self._programs.learn(*arguments, unroll, replay_state)
        self.state = State(unrolls.ActorState((), rows.timestep, rows.carry), replay_state)
        return gradient, rows.episodes


def _unrolls_kept(replay_state: Any, unroll_length: int) -> int:
    """Returns how many unrolls a replay holds: 0 of one that keeps none."""
    filled = getattr(replay_state, "filled", None)
    return 0 if filled is None else int(np.asarray(filled).min()) // unroll_length


def init_state(
    agent: agents.Agent,
    replay: replays.Replay,
    environment: envs.Environment | envs.HostTask,
    zero_timestep: Any,
    rows: types.Unroll,
) -> Callable[[Array, Array], State]:
    """Makes (environment key, env_ids i32 [B]) -> the first state of a worker, on the device.

    Args:
        agent: whose carry it holds.
        replay: a worker's own.
        environment: of any kind.
        zero_timestep: leaves [B, ...], for environments on the host.
        rows: an unroll [T + 1, B] of `jax.ShapeDtypeStruct`.
    """
    width = rows.steps.version.shape[1]

    def init(key: Array, env_ids: Array) -> State:
        carry = agent.init_carry(width)
        step_spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), rows.steps)
        kept = replay.init(step_spec, jax.eval_shape(lambda: agent.init_carry(width)))
        if isinstance(environment, envs.Environment):
            keys = jax.vmap(jax.random.fold_in, (None, 0))(base.seed_keys(key).environment, env_ids)
            return State(unrolls.ActorState(*jax.vmap(environment.reset)(keys), carry), kept)
        return State(unrolls.ActorState((), zero_timestep, carry), kept)

    return init
