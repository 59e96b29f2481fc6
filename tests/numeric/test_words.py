"""Trees packed into words come back bit for bit, alone, stacked by a loop, and under vmap."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist.numeric import vectors, words

B = 5


def tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    floats = rng.normal(size=(B, 3)).astype(np.float32)
    floats[0], floats[1, 0] = np.nan, -0.0
    return {
        "keys": jax.random.split(jax.random.key(3), B),
        "float": jnp.asarray(floats),
        "int": jnp.arange(-2, B - 2, dtype=jnp.int32),
        "small": jnp.array([[-128, 127]] * B, jnp.int8),
        "byte": jnp.full((B, 2, 2), 255, jnp.uint8),
        "bool": jnp.arange(B) % 2 == 0,
        "half": jnp.full((B, 2), -1.5, jnp.bfloat16),
        "quarter": jnp.full((B, 2), -1.5, jnp.float8_e4m3fn),
        "word": jnp.full(B, 2**32 - 1, jnp.uint32),
        "picture": jnp.asarray(rng.normal(size=(B, 4, 9)), jnp.float32),
        "nothing": (),
    }


def assert_same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_every_dtype_comes_back_bit_for_bit() -> None:
    packed = words.pack(tree())
    # Keys 2, float 3, int 1, small 2, byte 4, bool 1, half 2, word 1.
    assert packed.words.shape == (16, B) and packed.words.dtype == jnp.uint32
    assert [x.shape for x in packed.others] == [(B, 4, 9), (B, 2)]
    assert_same(words.unpack(packed), tree())


def test_a_loop_s_results_have_its_axis_in_front() -> None:
    def body(carry: words.Packed, _: None) -> tuple[words.Packed, words.Packed]:
        state = words.unpack(carry)
        after = words.pack({**state, "int": state["int"] + 1})
        return after, after

    last, rows = jax.jit(lambda: jax.lax.scan(body, words.pack(tree()), None, length=4))()
    assert_same(words.unpack(last), {**tree(), "int": tree()["int"] + 4})
    stacked = words.unpack(rows)
    np.testing.assert_array_equal(stacked["int"], tree()["int"] + np.arange(1, 5)[:, None])
    assert stacked["byte"].shape == (4, B, 2, 2) and stacked["keys"].shape == (4, B)


def test_under_vmap_each_member_packs_its_own() -> None:
    x = {"a": jnp.arange(24.0).reshape(2, 4, 3), "b": jnp.arange(8).reshape(2, 4)}
    assert_same(jax.vmap(lambda one: words.unpack(words.pack(one)))(x), x)


def test_a_tree_of_large_leaves_alone_has_no_words() -> None:
    packed = words.pack({"picture": jnp.ones((B, 100))})
    assert packed.words.shape == (0, B)
    assert_same(words.unpack(packed), {"picture": jnp.ones((B, 100))})


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_vectors_keep_every_leaf_in_its_place(names: str) -> None:
    values = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.int32(7), "c": jnp.float32(-1), "d": jnp.arange(2)}
    joined, split = vectors.join([values[name] for name in (*names, "c", "d")])
    assert sorted(x.shape for x in joined) == [(3,), (7,)]
    assert_same(split(joined), [values[name] for name in (*names, "c", "d")])
    assert vectors.join({})[0] == [] and vectors.join({})[1]([]) == {}
