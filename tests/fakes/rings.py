"""Small rings for tests: their rows say when and whose they are."""

import jax
import jax.numpy as jnp

from jaxrl_dist import replay, types
from jaxrl_dist.replay import ring

NOW = jnp.float32(0)


def make(
    capacity,
    columns,
    length,
    *,
    context=0,
    taught=1,
    lookahead=1,
    batch=64,
    devices=1,
    carry=False,
    axis=types.LOCAL,
    first_error=None,
    **settings_,
):
    settings_ = {"capacity": capacity, "min_size": 1, "batch_size": batch, "samples_per_insert": 1.0} | settings_
    kind = replay.PrioritisedConfig if "priority_exponent" in settings_ else replay.UniformConfig
    windows = replay.Windows(context, taught, lookahead, None if carry else lambda n: (), first_error)
    sizes = {"num_columns": columns, "num_devices": devices, "unroll_length": length}
    return ring.make(kind(**settings_), windows, axis=axis, **sizes)


def unroll(first, length, columns):
    """Rows whose reward is their number in time and whose action is their column; the closing row opens the next."""
    time = jnp.broadcast_to(first + jnp.arange(length + 1, dtype=jnp.float32)[:, None], (length + 1, columns))
    column = jnp.broadcast_to(jnp.arange(columns, dtype=jnp.int32), time.shape)
    timestep = types.TimeStep(jnp.ones_like(time, jnp.int8), time, time, time[..., None], ())
    return types.Unroll(types.Step(timestep, column, (), column), ())


def step_spec():
    """The rows' shapes and dtypes, as `init` takes them."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), unroll(0, 1, 1).steps)


def drawn(state, length):
    """The first rows of the first column, as if they had been drawn."""
    column, start = jnp.zeros(length, jnp.int32), jnp.arange(length, dtype=jnp.int32)
    largest = jnp.broadcast_to(state.priorities.largest[0], length)
    return ring.Drawn(column, start, jnp.broadcast_to(state.head[0], length), largest)


def filled(shard, unrolls, length, columns):
    state = shard.init(step_spec(), ())
    for i in range(unrolls):
        state = jax.jit(shard.add)(state, unroll(i * length, length, columns), jnp.arange(columns))
    return state
