"""Tests of device environments behind the interface of host environments."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import envs, types
from jaxrl_dist.envs.host import as_host

NUM_ENVS = 4


def make(first_env: int = 0, num_envs: int = NUM_ENVS) -> as_host.AsHost:
    return as_host.AsHost(envs.make("toy:walk"), num_envs, jax.random.key(7), first_env=first_env)


def actions(length: int, num_envs: int = NUM_ENVS) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 3, (length, num_envs), dtype=np.int32)


def assert_equal(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_is_the_device_environment_with_the_same_keys() -> None:
    environment, host, taken = envs.make("toy:walk"), make(), actions(20)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(7), jnp.arange(NUM_ENVS))
    state, first = jax.vmap(environment.reset)(keys)
    _, rest = jax.lax.scan(jax.vmap(environment.step), state, jnp.asarray(taken))
    assert_equal(host.reset(), first)
    for t, action in enumerate(taken):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[t], rtol=1e-6), host.step(action), rest)  # noqa: B023


def test_gives_numpy() -> None:
    host = make()
    for timestep in (host.reset(), host.step(np.zeros(NUM_ENVS, np.int32))):
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(timestep))
        assert [leaf.dtype for leaf in timestep[:4]] == [np.int8, np.float32, np.float32, np.float32]


def test_blocks_of_environments_are_those_of_the_whole() -> None:
    whole, second = make(), make(first_env=2, num_envs=2)
    assert_equal(jax.tree.map(lambda x: x[2:], whole.reset()), second.reset())
    for action in actions(10):
        assert_equal(jax.tree.map(lambda x: x[2:], whole.step(action)), second.step(action[2:]))


def test_sends_in_any_order_step_each_environment_on_its_own() -> None:
    together, apart, taken = make(), make(), actions(9)
    assert_equal(together.reset(), apart.reset())
    for action in taken:
        expected = together.step(action)
        for ids in (np.array([3, 0]), np.array([1]), np.array([2])):
            apart.send(action[ids], ids)
        for sent in ([3, 0], [1], [2]):
            timestep, env_ids = apart.recv()
            assert env_ids.tolist() == sent
            assert_equal(timestep, jax.tree.map(lambda x: x[sent], expected))  # noqa: B023


def test_a_saved_state_continues_alike() -> None:
    host, taken = make(), actions(12)
    host.reset()
    for action in taken[:5]:
        host.step(action)
    saved = host.state()
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(saved))
    expected = [host.step(action) for action in taken[5:]]
    other = make()
    other.load(saved)
    assert_equal(other.state(), saved)
    assert_equal([other.step(action) for action in taken[5:]], expected)


def test_reset_starts_from_the_beginning() -> None:
    host = make()
    first = host.reset()
    host.step(np.zeros(NUM_ENVS, np.int32))
    assert_equal(host.reset(), first)
    assert (first.step_type == types.FIRST).all()


def test_misuse_is_refused() -> None:
    host = make()
    with pytest.raises(RuntimeError, match="reset .*load"):
        host.step(np.zeros(NUM_ENVS, np.int32))
    host.reset()
    with pytest.raises(RuntimeError, match="recv .*send"):
        host.recv()
    for ids in ([4], [-1], [1, 1], []):
        with pytest.raises(ValueError, match=re.escape(f"env_ids={ids} ")):
            host.send(np.zeros(len(ids), np.int32), np.array(ids))
    host.send(np.zeros(1, np.int32), np.array([0]))
    with pytest.raises(RuntimeError, match="^1 .*recv"):
        host.state()
    host.recv()
    with pytest.raises(ValueError, match=r"\[4\] .*toy:walk .*\b2 .*\[2\]"):
        make(num_envs=2).load(host.state())
    with pytest.raises(ValueError, match="num_envs=0"):
        make(num_envs=0)
    host.close()
    with pytest.raises(RuntimeError, match="reset .*load"):
        host.state()
