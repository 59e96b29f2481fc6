"""Programs of the workers of the asynchronous layout, and the records that workers and server exchange."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, envs, types
from jaxrl_dist import replay as replays
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.learning import step
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.async_gradient import server
from jaxrl_dist.types import Array, ArrayTree

_NEVER = 2**30


class Held(NamedTuple):
    """Answer of the server: params, target network, updates i32 [] that they had had, and the share of training."""

    params: types.Params
    target_network: ArrayTree
    updates: Any
    progress: Any


class Kept(NamedTuple):
    """State of a worker that pulls and pushes by the episode: the last answer, and its gradient since the last push.

    Attributes:
        held: at the last pull.
        gradient: summed.
        pushed: bool [], whether the last unroll pushed, so that the next pulls.
    """

    held: Held
    gradient: ArrayTree
    pushed: Array


class Sent(NamedTuple):
    """Holds the message of a worker to the server.

    Attributes:
        gradient: without priorities; `()` of an actor.
        episodes: sums, leaves [1]; zeros of a learner.
        given: i32 [], updates that its parameters had had.
    """

    gradient: Any
    episodes: unrolls.EpisodeSums
    given: Any


class Drawn(NamedTuple):
    """A sample of a shared replay, and of which ring it is, i32 []."""

    sample: types.Sample
    ring: Any


class Work(NamedTuple):
    """Results of a worker; `()` for those that it does not have, or keeps in its own replay.

    Attributes:
        sent: for the server.
        unroll: that it played.
        indices: of the sample that it learned from.
        priorities: new ones of that sample.
        ring: i32 [], which that is of; -1 where there was no sample yet.
    """

    sent: Sent
    unroll: Any
    indices: Any
    priorities: Any
    ring: Any


class Programs(NamedTuple):
    """Programs of every worker.

    Attributes:
        on_device: (held, key, number, ready, env_ids, actors, replay) -> (actors, replay, gradient, episodes), of a
            worker with a replay of its own; donates the last two.
        on_host: plays environments on the host; None where they are on the device.
        learn: (held, key, number, ready, unroll, replay) -> (replay, gradient), of an unroll on the host.
        play: (held, key, number, env_ids, actors) -> (actors, unroll, episodes); donates the actors.
        heal: (carry) -> carry, begun anew where an environment's is not finite: parameters that were rolled back may
            have left it so. The others do so by themselves.
        teach: (held, key, number, sample) -> (gradient, priorities).
        pull: (kept, newest) -> held.
        push: (kept, held, gradient, episodes) -> (kept, gradient), zeros where an unroll ended no episode.
        first_ready: unrolls before the first that a worker learns from.
    """

    on_device: Any
    on_host: unrolls.HostUnroll | None
    learn: Any
    play: Any
    heal: Any
    teach: Any
    pull: Any
    push: Any
    first_ready: int


def draw_key(key: Array, number: Array) -> tuple[Array, Array]:
    """Returns the keys of a worker's draw and of its gradient; the same as of every layout's first update."""
    draw, update = jax.random.split(jax.random.fold_in(jax.random.split(jax.random.fold_in(key, number))[1], 0))
    return draw, update


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
        replay: a worker's own, or a shared one.
        learner: built with `types.LOCAL`.
        environment: on the device, or of a suite on the CPU.
        num_envs: over all workers, for the agent's exploration.
        unroll_length: T.
    """
    pace = step.pace(replay, unroll_length)

    def gradient_of(held: Held, sample: types.Sample, key: Array) -> tuple[learners.Gradient, Array]:
        inputs = types.LossInputs(sample.sequences, held.target_network, key, held.progress, types.LOCAL)
        batch = learner.prepare(held.params, inputs)
        weights = learners.item_weights(sample, batch)
        gradient = learner.gradients(held.params, inputs._replace(batch=batch), weights)
        return server.without_priorities(gradient), gradient.priorities

    def own(
        held: Held, replay_state: ArrayTree, unroll: types.Unroll, key: Array, ready: Array
    ) -> tuple[ArrayTree, learners.Gradient]:
        replay_state = replay.add(replay_state, unroll, jnp.arange(unroll.steps.version.shape[1], dtype=jnp.int32))

        def teach(replay_state: ArrayTree) -> tuple[ArrayTree, learners.Gradient]:
            sample_key, update_key = jax.random.split(key)
            sample = replay.sample(replay_state, sample_key, held.progress)
            gradient, priorities = gradient_of(held, sample, update_key)
            return replay.update(replay_state, sample.indices, priorities), gradient

        if not replay.min_rows:
            return teach(replay_state)
        shapes = jax.eval_shape(teach, replay_state)[1]
        return jax.lax.cond(ready, teach, lambda kept: (kept, zeros_like(shapes)), replay_state)

    def keys_of(key: Array, number: Array) -> tuple[Array, Array]:
        act_key, learn_key = jax.random.split(jax.random.fold_in(key, number))
        # As every layout's first update of an iteration.
        return act_key, jax.random.fold_in(learn_key, 0) if replay.min_rows else learn_key

    def heal(carry: ArrayTree) -> ArrayTree:
        floating = [x for x in jax.tree.leaves(carry) if jnp.issubdtype(x.dtype, jnp.floating)]
        if not floating:
            return carry
        width = len(floating[0])
        sound = jnp.stack([jnp.isfinite(x).reshape(width, -1).all(1) for x in floating]).all(0)

        def healed(x: Array, fresh: Array) -> Array:
            return jnp.where(sound.reshape(width, *(1,) * (x.ndim - 1)), x, fresh)

        return jax.tree.map(healed, carry, agent.init_carry(width))

    def play(held: Held, key: Array, number: Array, env_ids: Array, actors: unrolls.ActorState) -> Any:
        exploration = agent.exploration(held.params, env_ids, num_envs, held.progress)
        actors = actors._replace(carry=heal(actors.carry))
        actors, rows, episodes = unroll(held.params, actors, keys_of(key, number)[0], exploration, held.updates)
        return actors, rows, jax.tree.map(lambda x: x[None], episodes)

    def on_device(
        held: Held, key: Array, number: Array, ready: Array, env_ids: Array, actors: Any, replay_state: ArrayTree
    ) -> Any:
        actors, rows, episodes = play(held, key, number, env_ids, actors)
        replay_state, gradient = own(held, replay_state, rows, keys_of(key, number)[1], ready)
        return actors, replay_state, gradient, episodes

    def learn(
        held: Held, key: Array, number: Array, ready: Array, unroll: types.Unroll, replay_state: ArrayTree
    ) -> Any:
        return own(held, replay_state, unroll, keys_of(key, number)[1], ready)

    def teach(held: Held, key: Array, number: Array, sample: types.Sample) -> tuple[learners.Gradient, Array]:
        return gradient_of(held, sample, draw_key(key, number)[1])

    def pull(kept: Kept, newest: Held) -> Held:
        held = jax.tree.map(lambda new, old: jnp.where(kept.pushed, new, old), newest, kept.held)
        # A schedule goes on, whatever the parameters.
        return held._replace(progress=newest.progress)

    def push(
        kept: Kept, held: Held, gradient: learners.Gradient, episodes: unrolls.EpisodeSums
    ) -> tuple[Kept, learners.Gradient]:
        ended, total = episodes.episodes[0] > 0, server.add(kept.gradient, gradient)
        sent = jax.tree.map(lambda x: jnp.where(ended, x, jnp.zeros_like(x)), total)
        left = jax.tree.map(lambda x: jnp.where(ended, jnp.zeros_like(x), x), total)
        return Kept(held, left, ended), sent

    on_host: unrolls.HostUnroll | None = None
    unroll: Any = None
    if isinstance(environment, envs.Environment):
        unroll = unrolls.device_unroll(agent, environment, unroll_length)
    else:
        on_host = unrolls.host_unroll(agent, num_envs, unroll_length, 1)
    return Programs(
        on_device=jax.jit(on_device, donate_argnums=(5, 6)),
        on_host=on_host,
        learn=jax.jit(learn, donate_argnums=5),
        play=jax.jit(play, donate_argnums=4),
        heal=jax.jit(heal),
        teach=jax.jit(teach),
        pull=jax.jit(pull),
        push=jax.jit(push),
        first_ready=pace.first_ready,
    )


def void(work: Work) -> Work:
    """Returns work whose gradient the server will drop, as one of parameters that it does not have."""
    return work._replace(sent=work.sent._replace(given=jnp.full_like(work.sent.given, _NEVER)))


def forgotten(kept: Any) -> Any:
    """Returns what a worker keeps between pushes without its gradient, so that it pulls anew; `()` stays `()`."""
    if not kept:
        return kept
    return kept._replace(gradient=zeros_like(kept.gradient), pushed=jnp.ones_like(kept.pushed))


def zeros_like(shapes: ArrayTree) -> Any:
    """Returns zeros of the shapes and dtypes of a tree."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def init_actors(
    agent: agents.Agent,
    environment: envs.Environment | envs.HostTask,
    zero_timestep: Any,
    key: Array,
    env_ids: Array,
) -> unrolls.ActorState:
    """Returns the first state of a worker's environments, on the device.

    Args:
        agent: whose carry it holds.
        environment: of any kind.
        zero_timestep: leaves [B, ...], for environments on the host.
        key: of the run.
        env_ids: i32 [B].
    """
    carry = agent.init_carry(env_ids.shape[0])
    if isinstance(environment, envs.Environment):
        state, timestep = envs.columns(environment).reset(run_keys.seed_keys(key).environment, env_ids)
        return unrolls.ActorState(state, timestep, carry)
    return unrolls.ActorState((), zero_timestep, carry)


def init_replay(agent: agents.Agent, replay: replays.Replay, rows: types.Unroll) -> ArrayTree:
    """Returns an empty replay of unrolls like `rows` [T + 1, B], of `jax.ShapeDtypeStruct`."""
    width = rows.steps.version.shape[1]
    return replay.init(unrolls.step_struct(rows.steps), jax.eval_shape(lambda: agent.init_carry(width)))
