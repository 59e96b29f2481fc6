"""Programs of the members of an asynchronous run, and the records that members and server exchange."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, envs, parallel, types
from jaxrl_dist import replay as replays
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.async_gradient import server
from jaxrl_dist.types import Array, ArrayTree

# More updates than any server makes: marks a gradient that is to be dropped.
_NEVER = 2**30


class Held(NamedTuple):
    """Answer of the server: params, target network, their number of updates i32 [], and the share of training."""

    params: types.Params
    target_network: ArrayTree
    updates: Any
    progress: Any


class Turn(NamedTuple):
    """Arguments of a member's programs: the server's answer, its key, the number i32 [] of its unroll or gradient."""

    held: Held
    key: Array
    number: Any


class Kept(NamedTuple):
    """State of a worker that exchanges by the episode.

    Attributes:
        held: the answer that it last pulled.
        gradient: sum since the last push.
        pushed: bool [], whether the last unroll pushed, so that the next one pulls.
    """

    held: Held
    gradient: types.Gradient
    pushed: Any


class Work(NamedTuple):
    """Results of a member; those that its role does not make are None.

    Attributes:
        gradient: of a member that learns, without priorities; None while there is no sample.
        given: i32 [], number of updates of the parameters that the gradient is taken at.
        episodes: of a member that plays, sums with leaves [1].
        unroll: of a member that plays for a shared replay.
        indices: of a member that learns from a shared replay, the items of its sample.
        priorities: new priorities of these items.
    """

    gradient: types.Gradient | None = None
    given: Any = None
    episodes: unrolls.EpisodeSums | None = None
    unroll: types.Unroll | None = None
    indices: Any = None
    priorities: Any = None


class Programs:
    """Compiles the functions below when they are first called; they donate the state of environments and of replays.

    Attributes:
        on_host: plays environments on the host; None where they are on the device.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        def compiled(function: Any, *donated: int) -> Any:
            return jax.jit(functools.partial(function, parts), donate_argnums=donated)

        self.play, self.learn, self.learn_own = compiled(play, 2), compiled(learn), compiled(learn_own, 3)
        self.play_and_learn = compiled(play_and_learn, 3, 4)
        self.sound_carry = jax.jit(functools.partial(sound_carry, parts.agent))
        self.pull, self.push = jax.jit(pull), jax.jit(push)
        self.on_host: unrolls.HostUnroll | None = None
        if not isinstance(parts.environment, envs.Environment):
            self.on_host = unrolls.HostUnroll(
                parts.agent, parts.environment.spec, parts.num_envs, parts.config.unroll_length, 1
            )


def play(
    parts: parallel.LayoutParts, turn: Turn, env_ids: Array, actors: unrolls.ActorState
) -> tuple[unrolls.ActorState, types.Unroll, unrolls.EpisodeSums]:
    """Plays an unroll on the device.

    Args:
        parts: the parts of the layout.
        turn: the member's arguments.
        env_ids: i32 [E], global indices of its environments.
        actors: state of its environments.

    Returns:
        The next state of the environments, the unroll [T + 1, B], and the sums of its episodes, leaves [1].
    """
    held, act_key = turn.held, jax.random.split(jax.random.fold_in(turn.key, turn.number))[0]
    columns = envs.column_ids(env_ids, parts.num_agents)
    exploration = parts.agent.exploration(held.params, columns, parts.num_columns, held.progress)
    actors = actors._replace(carry=sound_carry(parts.agent, actors.carry))
    unroll = unrolls.device_unroll(parts.agent, parts.environment, parts.config.unroll_length)
    actors, rows, episodes = unroll(held.params, actors, act_key, exploration, held.updates)
    return actors, rows, jax.tree.map(lambda x: x[None], episodes)


def learn(parts: parallel.LayoutParts, turn: Turn, sample: types.Sample) -> tuple[types.Gradient, Array]:
    """Returns the gradient of a sample of a shared replay, and the sample's new priorities [N]."""
    update_key = jax.random.split(learning_key(parts.replay, turn.key, turn.number))[1]
    return _gradient(parts, turn.held, sample, update_key)


def learn_own(
    parts: parallel.LayoutParts, turn: Turn, ready: Array, unroll: types.Unroll, replay_state: ArrayTree
) -> tuple[types.Gradient, ArrayTree]:
    """Adds an unroll to a worker's own replay, and returns the gradient of a sample and the replay.

    The gradient is of no rows until `ready`, bool [].
    """
    replay, key = parts.replay, learning_key(parts.replay, turn.key, turn.number)
    replay_state = replay.add(replay_state, unroll, None)

    def taught(replay_state: ArrayTree) -> tuple[types.Gradient, ArrayTree]:
        draw_key, update_key = jax.random.split(key)
        sample = replay.sample(replay_state, draw_key, turn.held.progress)
        gradient, priorities = _gradient(parts, turn.held, sample, update_key)
        return gradient, replay.update(replay_state, sample.indices, priorities)

    if not replay.min_rows:
        return taught(replay_state)
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(taught, replay_state)[0])
    return jax.lax.cond(ready, taught, lambda replay_state: (nothing, replay_state), replay_state)


def play_and_learn(
    parts: parallel.LayoutParts,
    turn: Turn,
    ready: Array,
    env_ids: Array,
    actors: unrolls.ActorState,
    replay_state: ArrayTree,
) -> tuple[types.Gradient, unrolls.EpisodeSums, unrolls.ActorState, ArrayTree]:
    """Plays an unroll on the device, and learns from a worker's own replay: `play` and `learn_own` in one program."""
    actors, rows, episodes = play(parts, turn, env_ids, actors)
    gradient, replay_state = learn_own(parts, turn, ready, rows, replay_state)
    return gradient, episodes, actors, replay_state


def sound_carry(agent: agents.Agent, carry: ArrayTree) -> ArrayTree:
    """Returns an acting state that is reset where it is not finite, as broken parameters may have left it."""
    floating = [x for x in jax.tree.leaves(carry) if jnp.issubdtype(x.dtype, jnp.floating)]
    if not floating:
        return carry
    width = len(floating[0])
    sound = jnp.stack([jnp.isfinite(x).reshape(width, -1).all(1) for x in floating]).all(0)

    def chosen(x: Array, fresh: Array) -> Array:
        return jnp.where(sound.reshape(width, *(1,) * (x.ndim - 1)), x, fresh)

    return jax.tree.map(chosen, carry, agent.init_carry(width))


def pull(kept: Kept, newest: Held) -> Held:
    """Returns the answer to act and learn with: the newest if the last unroll pushed, else the kept one."""
    held = jax.tree.map(lambda new, old: jnp.where(kept.pushed, new, old), newest, kept.held)
    # The share of training moves on, also while old parameters are kept.
    return held._replace(progress=newest.progress)


def push(
    kept: Kept, held: Held, gradient: types.Gradient, episodes: unrolls.EpisodeSums
) -> tuple[Kept, types.Gradient]:
    """Returns the next `Kept`, and the gradient to send: the sum if an episode ended, else one of no rows."""
    ended, total = episodes.episodes[0] > 0, server.add(kept.gradient, gradient)
    sent = jax.tree.map(lambda x: jnp.where(ended, x, jnp.zeros_like(x)), total)
    left = jax.tree.map(lambda x: jnp.where(ended, jnp.zeros_like(x), x), total)
    return Kept(held, left, ended), sent


def learning_key(replay: replays.Replay, key: Array, number: Array) -> Array:
    """Returns the key of a member's gradient and of the draw before it."""
    learn_key = jax.random.split(jax.random.fold_in(key, number))[1]
    # The same key as for the first update of an iteration in the other layouts.
    return jax.random.fold_in(learn_key, 0) if replay.min_rows else learn_key


def outdated(work: Work) -> Work:
    """Marks work so that the server drops its gradient."""
    return work if work.given is None else work._replace(given=jnp.full_like(work.given, _NEVER))


def emptied(kept: Kept) -> Kept:
    """Returns the `Kept` without its gradient, so that the worker pulls next."""
    return kept._replace(gradient=jax.tree.map(jnp.zeros_like, kept.gradient), pushed=jnp.ones_like(kept.pushed))


def _gradient(
    parts: parallel.LayoutParts, held: Held, sample: types.Sample, key: Array
) -> tuple[types.Gradient, Array]:
    """Returns the gradient of a sample, without priorities, and the priorities."""
    inputs = types.LossInputs(sample.sequences, held.target_network, key, held.progress, types.LOCAL)
    batch = parts.learner.prepare(held.params, inputs)
    weights = learners.item_weights(sample, batch, parts.agent.columns_per_item)
    gradient = parts.learner.gradients(held.params, inputs._replace(batch=batch), weights)
    return server.without_priorities(gradient), gradient.priorities
