"""An unroll on the wire: the same arrays come back, images are small, and what no player sends is refused."""

import struct
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import errors, types
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import wire

T, B = 6, 3
IMAGE = (24, 24, 4)


def declared(images: bool) -> tuple[types.EnvironmentSpec, types.Unroll]:
    """Returns the spec of an environment, and an unroll [T + 1, B] of it as structs."""
    vector = jax.ShapeDtypeStruct((5,), np.float32)
    observation = {"pixels": jax.ShapeDtypeStruct(IMAGE, np.uint8), "speed": vector} if images else vector
    spec = types.EnvironmentSpec("fake:wire", observation, types.DiscreteSpace(3), "classic", (-1.0, 1.0), 100)
    timestep = unrolls.zero_timestep(spec, B)
    extras = {"log_prob": jnp.zeros(B), "seen": jnp.zeros(B, bool)}
    step = types.Step(timestep, jnp.zeros(B, int), extras, jnp.zeros(B, int))
    steps = jax.tree.map(lambda x: jax.ShapeDtypeStruct((T + 1, *x.shape), x.dtype), step)
    memory = jax.ShapeDtypeStruct((B, 8), np.float32)
    frames = (jax.ShapeDtypeStruct((B, 3, *IMAGE), np.uint8),) if images else ()
    return spec, types.Unroll(steps, (memory, *frames))


def played(rows: types.Unroll, rng: np.random.Generator) -> wire.Played:
    """Returns an unroll of these shapes with numbers of all kinds, in which one episode ends in each column."""

    def numbers(x: Any) -> np.ndarray:
        if x.dtype == np.uint8:
            # Each number of a row, and each column, has its own; rows are alike.
            return np.broadcast_to(rng.integers(0, 255, x.shape[1:], np.uint8), x.shape) + np.uint8(
                np.arange(x.shape[0]).reshape(-1, *[1] * (len(x.shape) - 1))
            )
        return rng.uniform(0, 1, x.shape).round().astype(x.dtype)

    steps, carry = jax.tree.map(numbers, rows)
    step_type = np.full((T + 1, B), types.MID, np.int8)
    step_type[3], step_type[4] = types.LAST, types.FIRST
    steps = steps._replace(timestep=steps.timestep._replace(step_type=step_type))
    return wire.Played(4, steps, carry, unrolls.host_sums(B, -1.5, 60, (T - 1) * B), 0.25, 0.5)


@pytest.fixture(params=[False, True], ids=["vectors", "images"])
def line(request: pytest.FixtureRequest) -> Any:
    """A wire, an unroll, and the unroll as bytes."""
    spec, rows = declared(request.param)
    found, unroll = wire.Wire(spec, rows), played(rows, np.random.default_rng(0))
    return found, unroll, found.pack(unroll, 9)


def test_the_same_unroll_comes_back_bit_for_bit(line: Any) -> None:
    found, unroll, data = line
    back = found.unpack(data, 4, 9)
    expected = unroll._replace(steps=unroll.steps._replace(version=np.full((T + 1, B), 9, np.int32)))
    assert jax.tree.structure(back) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(expected), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


def test_an_unroll_of_frames_that_hardly_change_fits_in_ray_s_reply() -> None:
    """84 x 84 bytes, 20 rows of 32 environments and three frames that their acting states keep are 5.4 MB raw.

    Ray sends replies below 100 kB by themselves.
    """
    spec = types.EnvironmentSpec(
        "fake:game", jax.ShapeDtypeStruct((84, 84), np.uint8), types.DiscreteSpace(6), "atari", (-1.0, 1.0), 100
    )
    timestep = unrolls.zero_timestep(spec, 32)
    step = types.Step(timestep, np.zeros(32, np.int32), np.zeros(32, np.float32), np.zeros(32, np.int32))
    steps = jax.tree.map(lambda x: jax.ShapeDtypeStruct((21, *x.shape), x.dtype), step)
    frames = np.zeros((21, 32, 84, 84), np.uint8)
    frames[..., 10:74, 30:50] = 87
    for t in range(21):
        frames[t, :, 3 * t : 3 * t + 4, 40:42] = 236
    rows = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), steps)
    rows = rows._replace(timestep=rows.timestep._replace(observation=frames))
    kept = np.moveaxis(frames[-4:-1], 1, 0)
    line = wire.Wire(spec, types.Unroll(steps, jax.ShapeDtypeStruct(kept.shape, np.uint8)))
    data = line.pack(wire.Played(0, rows, kept, unrolls.host_sums(0, 0.0, 0, 20 * 32), 0.0, 0.0), 0)
    assert frames.nbytes + kept.nbytes > 5.4e6 and len(data) < 100_000
    back = line.unpack(data, 0, 0)
    np.testing.assert_array_equal(back.steps.timestep.observation, frames)
    np.testing.assert_array_equal(back.carry, kept)


def test_bytes_that_are_no_such_unroll_are_refused(line: Any) -> None:
    found, unroll, data = line
    for wrong in (b"", data[:20], data[:-1], data + b"x", b"xxxx" + data[4:], bytes(len(data))):
        with pytest.raises(errors.EnvironmentFault):
            found.unpack(wrong, 4, 9)
    for number, updates in ((3, 9), (4, 8)):
        with pytest.raises(errors.EnvironmentFault, match=rf"expected {number} of version {updates}$"):
            found.unpack(data, number, updates)
    with pytest.raises(ValueError, match="expected"):
        found.pack(unroll._replace(carry=(np.zeros((B, 7), np.float32),)), 9)


def test_a_block_that_would_grow_is_not_unpacked() -> None:
    spec, rows = declared(True)
    found, unroll = wire.Wire(spec, rows), played(rows, np.random.default_rng(0))
    # Twice what an unroll has: the header of the block tells its size.
    larger = wire.Wire(spec, jax.tree.map(lambda x: x, rows))
    pack = larger._blocks.pack
    larger._blocks.pack = lambda columns: pack(np.concatenate([columns, columns], -1))  # type: ignore[method-assign]
    with pytest.raises(errors.EnvironmentFault, match="expected"):
        found.unpack(larger.pack(unroll, 9), 4, 9)
    data = found.pack(unroll, 9)
    # The mark of the last block, and what follows its header.
    last = data.rindex(b"\x28\xb5\x2f\xfd")
    for begin, end in ((last, last + 4), (last + 9, len(data))):
        with pytest.raises(errors.EnvironmentFault, match="block"):
            found.unpack(data[:begin] + bytes(end - begin) + data[end:], 4, 9)
    # A block that ends too early, of which the sizes know.
    at = wire._HEAD.size + (B - 1) * wire._SIZE.itemsize
    size = np.frombuffer(data, wire._SIZE, 1, at)[0]
    with pytest.raises(errors.EnvironmentFault, match="holds less than"):
        found.unpack(data[:at] + np.asarray(size - 1, wire._SIZE).tobytes() + data[at + 4 : -1], 4, 9)


def test_threads_that_unpack_at_once_do_not_mix_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, rows = declared(True)
    found = wire.Wire(spec, rows)
    ours, others = (played(rows, np.random.default_rng(seed)) for seed in (0, 1))
    data, other = found.pack(ours, 9), found.pack(others, 9)
    unpack_into, calls = found._blocks.unpack_into, [0]

    def late(block: Any, columns: Any) -> None:
        calls[0] += 1
        unpack_into(block, columns)
        if calls[0] == B:
            thread = threading.Thread(target=found.unpack, args=(other, 4, 9))
            thread.start()
            thread.join()

    monkeypatch.setattr(found._blocks, "unpack_into", late)
    back = found.unpack(data, 4, 9)
    assert calls[0] == 2 * B
    pixels = ours.steps.timestep.observation["pixels"]
    assert (pixels != others.steps.timestep.observation["pixels"]).any()
    np.testing.assert_array_equal(back.steps.timestep.observation["pixels"], pixels)
    np.testing.assert_array_equal(back.carry[1], ours.carry[1])


NAN = np.float32(np.nan)


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("step_type", np.int8(3), "step_type .* is 3"),
        ("reward", np.float32(7), "reward of fake:wire, environment 1, at its step 2 is 7"),
        ("reward", NAN, "reward"),
        ("discount", np.float32(1.5), "discount"),
        ("observation", NAN, "observation of fake:wire, environment 1"),
        ("action", np.int32(3), r"action 3 for environment 1; valid: 0 to 2"),
        ("log_prob", NAN, "agent stores"),
        ("carry", NAN, "agent stores"),
    ],
)
def test_numbers_that_no_player_can_have_are_refused(field: str, value: Any, words: str) -> None:
    spec, rows = declared(False)
    found, unroll = wire.Wire(spec, rows), played(rows, np.random.default_rng(0))
    steps = unroll.steps
    arrays = {**steps.timestep._asdict(), "action": steps.action, "carry": unroll.carry[0], **steps.extras}
    arrays[field][(2, 1)[: arrays[field].ndim]] = value
    with pytest.raises(errors.EnvironmentFault, match=words):
        found.unpack(found.pack(unroll, 9), 4, 9)


def test_a_truth_value_of_two_and_sums_that_the_rows_contradict_are_refused() -> None:
    spec, rows = declared(False)
    found, unroll = wire.Wire(spec, rows), played(rows, np.random.default_rng(0))
    seen = unroll.steps.extras["seen"].view(np.uint8)
    seen[0, 0] = 2
    with pytest.raises(errors.EnvironmentFault, match="truth"):
        found.unpack(found.pack(unroll, 9), 4, 9)
    seen[0, 0] = 1
    taught = (T - 1) * B
    for sums in ((B + 1, 0, 9, taught), (-1, 0, 9, taught), (1, NAN, 9, taught), (1, 0, -9, taught), (1, 0, 9, 2)):
        with pytest.raises(errors.EnvironmentFault, match="sums"):
            found.unpack(found.pack(unroll._replace(episodes=unrolls.host_sums(*sums)), 9), 4, 9)


def test_parameters_are_rounded_to_the_nearest_bfloat16_and_statistics_stay() -> None:
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 1, (7, 5)).astype(np.float32)
    # Halfway between two neighbours, of which the even one is taken; and numbers that are none.
    weights[0, :4] = np.asarray([0x3F808000, 0x3F818000, 0x7F800000, 0x80000000], np.uint32).view(np.float32)
    network = {"weights": weights, "halves": np.arange(3, dtype=np.uint16), "count": np.int32(70_000)}
    published = unrolls.Published(types.Params(network, {"mean": weights}), np.int32(3), np.float32(1 / 3))
    sent = wire.rounded(published)
    assert sum(x.nbytes for x in jax.tree.leaves(sent.params.network)) == weights.nbytes // 2 + 3 * 2 + 4
    back = wire.whole(sent)
    bits = weights.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    np.testing.assert_array_equal(back.params.network["weights"].view(np.uint32), nearest.astype(np.uint32))
    back.params.network["weights"] = weights
    for ours, theirs in zip(jax.tree.leaves(published), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    assert jax.tree.leaves(wire.whole(published))[0] is jax.tree.leaves(published)[0]


def test_random_bytes_never_do_anything_but_be_refused(line: Any) -> None:
    """A player may send whatever it likes: each of 300 damaged unrolls is read as numbers in range, or refused."""
    found, _, data = line
    rng = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 9)):
            damaged[at] = rng.integers(0, 256)
        try:
            back = found.unpack(bytes(damaged), *struct.unpack_from("<qq", data, 4))
        except errors.EnvironmentFault:
            continue
        assert set(np.unique(back.steps.timestep.step_type)) <= {0, 1, 2}
        assert np.isfinite(back.steps.timestep.reward).all() and np.isfinite(back.episodes.episode_return).all()
