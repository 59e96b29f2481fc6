"""The replay of on-policy learning."""

import jax
import jax.numpy as jnp
import numpy as np
from fakes import rings

from jaxrl_dist.replay import latest as latest_replay


def test_latest_returns_the_newest_unroll_whole_and_keeps_nothing():
    latest = latest_replay.make()
    unroll = rings.unroll(3, 4, 2)
    sample = latest.sample(latest.add(latest.init((), ()), unroll, jnp.arange(2)), jax.random.key(0), rings.NOW)
    assert sample.sequences is unroll
    np.testing.assert_array_equal(sample.weights, np.ones(2))
    twice = latest.add(latest.add((), unroll, jnp.arange(2)), rings.unroll(9, 4, 3), jnp.arange(3))
    np.testing.assert_array_equal(twice.steps.timestep.reward[0], [3, 3, 9, 9, 9])
    assert latest.update(unroll, (), sample.weights) == ()
    assert latest.updates == (1, 1)
    assert latest.min_rows == 0
