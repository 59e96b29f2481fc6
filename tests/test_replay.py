"""The replay of on-policy learning."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import replay, types


def _unroll(first, length, columns):
    time = jnp.broadcast_to(first + jnp.arange(length + 1, dtype=jnp.float32)[:, None], (length + 1, columns))
    timestep = types.TimeStep(jnp.ones_like(time, jnp.int8), time, time, time[..., None], ())
    zeros = jnp.zeros(time.shape, jnp.int32)
    return types.Unroll(types.Step(timestep, zeros, (), zeros), ())


def test_latest_returns_the_newest_unroll_whole_and_keeps_nothing():
    latest = replay.latest()
    unroll = _unroll(3, 4, 2)
    sample = latest.sample(latest.add(latest.init((), ()), unroll, jnp.arange(2)), jax.random.key(0), jnp.float32(0))
    assert sample.sequences is unroll
    np.testing.assert_array_equal(sample.weights, np.ones(2))
    twice = latest.add(latest.add((), unroll, jnp.arange(2)), _unroll(9, 4, 3), jnp.arange(3))
    np.testing.assert_array_equal(twice.steps.timestep.reward[0], [3, 3, 9, 9, 9])
    assert latest.update(unroll, (), sample.weights) == ()
    assert latest.updates == (1, 1)
    assert latest.min_rows == 0
