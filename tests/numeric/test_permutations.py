"""Permutations: each index once, places and pairs as likely as a uniform shuffle makes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl_dist.numeric import permutations

DRAWS = 4096


@pytest.mark.parametrize("size", [1, 2, 7, 256, 257, 512, 1000, 4097])
def test_every_index_occurs_once_and_keys_differ(size):
    draw = jax.jit(jax.vmap(lambda key: permutations.permutation(key, size)))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(0), 16)))
    assert drawn.dtype == np.int32
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile(np.arange(size), (16, 1)))
    if size > 7:
        assert len({row.tobytes() for row in drawn}) == 16


@pytest.mark.parametrize(("size", "bits"), [(257, 9), (512, 9), (600, 10), (1024, 10)])
def test_a_large_permutation_is_that_of_the_rounds(size, bits):
    """Of each item: multiply by an odd word, add a word, xor the high half into the low; none beyond the size."""
    key = jax.random.key(5)
    drawn = np.asarray(permutations.permutation(key, size))
    words = [[int(word) for word in pair] for pair in jax.random.bits(key, (6, 2))]
    expected = []
    for item in range(2**bits):
        for multiplier, addend in words:
            item = (item * (multiplier | 1) + addend) % 2**bits
            high = item // 2 ** (bits - bits // 2)
            item ^= high
        expected += [item] if item < size else []
    assert drawn.tolist() == expected


@pytest.mark.parametrize("size", [64, 512, 600, 1024])
def test_places_are_uniform_and_pairs_independent(size):
    keys = jax.random.split(jax.random.key(1), DRAWS)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: permutations.permutation(key, size)))(keys))
    places = np.argsort(drawn, axis=1)
    cells = 8
    followed = [0, 1, size // 2, size - 1]
    p_values = []
    for item in followed:
        counts = np.bincount(places[:, item] * cells // size, minlength=cells)
        expected = np.bincount(np.arange(size) * cells // size, minlength=cells) / size * DRAWS
        p_values.append(scipy.stats.chisquare(counts, expected).pvalue)
    for a, b in ((0, 1), (0, size // 2), (1, size - 1), (2, 3), (5, 5 + size // 4)):
        counts, _, _ = np.histogram2d(places[:, a], places[:, b], bins=4, range=[[0, size]] * 2)
        # A pair never shares a place, which takes a little from the cells on the diagonal.
        inside = (size / 4) * (size / 4 - np.eye(4))
        p_values.append(scipy.stats.chisquare(counts.ravel(), (inside / inside.sum() * DRAWS).ravel()).pvalue)
    assert min(p_values) > 1e-4 / len(p_values)


def test_minibatches_of_two_epochs_overlap_as_chance_has_it():
    size, part = 512, 128
    draw = jax.jit(jax.vmap(lambda key: permutations.permutation(key, size)[:part]))
    first, second = (np.asarray(draw(jax.random.split(jax.random.key(n), 500))) for n in (2, 3))
    shared = np.array([len(np.intersect1d(a, b)) for a, b in zip(first, second, strict=True)])
    mean, deviation = part * part / size, np.sqrt(part * (part / size) * (1 - part / size) * (size - part) / (size - 1))
    assert abs(shared.mean() - mean) < 4 * deviation / np.sqrt(500)
    assert 0.8 < shared.std() / deviation < 1.2


def test_it_runs_inside_a_scan_over_keys():
    keys = jax.random.split(jax.random.key(4), 3)
    _, drawn = jax.lax.scan(lambda c, key: (c, permutations.permutation(key, 300)), jnp.int32(0), keys)
    assert drawn.shape == (3, 300)
