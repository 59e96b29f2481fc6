"""The host tier of the replay: the same rows as the ring on the device, and the same numbers from them."""

import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest

from jaxrl_dist import errors
from jaxrl_dist.parallel import memory_use
from jaxrl_dist.parallel.sebulba import host_tier
from jaxrl_dist.replay import packed_observations

HOST = {"layout": "sebulba", "replay.storage": "host"}
RANGE = {"agent.value_low": -5.0, "agent.value_high": 5.0}
SYSTEMS = {"dqn": ("dqn", {}), "rainbow": ("rainbow", RANGE), "r2d2": ("r2d2", {})}


def make(system: str, settings: dict[str, Any], num_devices: int = 1) -> conftest.Small:
    return conftest.Small(system, "toy:walk", num_devices, {**HOST, **settings})


def row() -> Any:
    return {"frame": jax.ShapeDtypeStruct((3, 2), np.uint8), "speed": jax.ShapeDtypeStruct((), np.float32)}


def history(column: int, start: int, count: int) -> Any:
    rows = np.arange(start, start + count)
    frames = np.broadcast_to((rows[:, None, None] * 7 + column) % 256, (count, 3, 2)).astype(np.uint8)
    return {"frame": frames, "speed": (rows + 1000.0 * column).astype(np.float32)}


def test_equal_rows_of_any_size_are_kept_once() -> None:
    shape = jax.ShapeDtypeStruct((700_000,), np.uint8)
    one = np.random.default_rng(0).integers(0, 256, shape.shape, np.uint8)
    observations = packed_observations.Observations(shape, 4)
    (block,) = observations.pack(np.broadcast_to(one, (4, 1, *one.shape)))
    assert sum(map(len, block)) < 1.1 * one.nbytes
    np.testing.assert_array_equal(observations.unpack(block)[0], np.broadcast_to(one, (4, *one.shape)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "int8", "float64"])
@pytest.mark.parametrize("shape", [(3, 2), (), (0,)])
def test_rows_of_any_type_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).integers(-3, 3, (5, 2, *shape)).astype(jnp.dtype(dtype))
    observations = packed_observations.Observations(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)), 5)
    for n, block in enumerate(observations.pack(rows)):
        (unpacked,), written = observations.unpack(block), np.zeros((5, *shape), rows.dtype)
        observations.unpack_into(block, [written])
        assert unpacked.dtype == written.dtype == rows.dtype
        np.testing.assert_array_equal(unpacked, rows[:, n])
        np.testing.assert_array_equal(written, rows[:, n])


def filled(num_unrolls: int) -> tuple[packed_observations.Observations, packed_observations.Blocks]:
    """Two devices, three columns, four unrolls of five rows; column 2 is written half as often."""
    observations = packed_observations.Observations(row(), 5)
    kept = packed_observations.Blocks(observations, 2, 3, 4)
    written = np.zeros((2, 3), int)
    for number in range(num_unrolls):
        for device in range(2):
            columns = [0, 1] if number % 2 else [2, 0, 1]
            own = [history(3 * device + c, written[device, c], 5) for c in columns]
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *own)
            kept.put(device, columns, observations.pack(stacked))
            written[device, columns] += 5
    return observations, kept


def test_windows_are_the_rows_that_were_written() -> None:
    _, kept = filled(6)
    columns, starts = np.asarray([0, 1, 0, 2]), np.asarray([10 % 20, 21 % 20, 13, 3])
    # Column 0 holds rows 10 … 29, column 2 rows 0 … 14.
    expected = [(0, 10), (1, 21), (0, 13), (2, 3)]
    for device in range(2):
        windows = kept.read(device, columns, starts, 8)
        for item, (column, start) in enumerate(expected):
            for name, leaf in history(3 * device + column, start, 8).items():
                np.testing.assert_array_equal(windows[name][item], leaf)
                assert windows[name].dtype == leaf.dtype


def test_bytes_are_those_of_the_blocks_that_are_left() -> None:
    observations, kept = filled(9)
    # Nine and five unrolls were written, of which four stay.
    assert len(kept._kept) == 2 * (4 + 4 + 4)
    assert kept.packed_bytes == sum(len(part) for block in kept._kept.values() for part in block)
    assert kept.added == 2 * (9 + 9 + 5) and kept.added_bytes > kept.packed_bytes
    assert kept.capacity_bytes == 2 * 3 * 20 * (3 * 2 + 4)
    assert observations.block_bytes == 50


def test_saved_blocks_come_back(tmp_path: pathlib.Path) -> None:
    observations, kept = filled(7)
    saved = kept.save()
    again = packed_observations.Blocks(observations, 2, 3, 4)
    again.load(saved)
    assert again._kept == kept._kept and again.packed_bytes == kept.packed_bytes
    early = filled(2)[1].save()
    again.load(early)
    assert len(again._kept) < len(kept._kept) and again.packed_bytes == sum(map(len, sum(again._kept.values(), ())))
    again.load(saved)
    np.testing.assert_array_equal(again._heads, kept._heads)
    empty = packed_observations.Blocks(observations, 2, 3, 4)
    empty.load(empty.save())
    assert not empty._kept


def test_too_large_ends_with_a_capacity_that_fits() -> None:
    _, kept = filled(2)
    projected = kept.projected_bytes()
    packed_observations.check(kept, projected - kept.packed_bytes, 120)
    # Nine tenths of what fits into the free bytes and those that the blocks have already.
    fits = int(0.9 * 120 * (projected + kept.packed_bytes) / 2 / projected)
    assert 54 < fits < 108
    with pytest.raises(errors.UsageError, match=rf"replay\.capacity=120: .* {fits} "):
        packed_observations.check(kept, (projected - kept.packed_bytes) / 2, 120)


@pytest.mark.slow
def test_a_run_that_outgrows_the_memory_is_saved_as_it_was_before_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    settings = {**HOST, "layout.num_actors": 2, "evaluation.episodes": 2}
    whole = train("dqn", folder="whole", **settings)
    monkeypatch.setattr(host_tier, "_CHECK_EVERY", 5)
    with monkeypatch.context() as patch:
        patch.setattr(packed_observations, "check", too_large)
        with pytest.raises(errors.UsageError, match="too large") as error:
            train("dqn", folder="cut", **settings)
    assert not hasattr(error.value, "__notes__")
    resumed = train("dqn", folder="cut", **settings)
    assert resumed.summary["resumed_from"] == 160
    assert resumed.summary["params_sha256"] == whole.summary["params_sha256"]


def too_large(*_: Any) -> None:
    raise errors.UsageError("too large")


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize(("system", "settings"), marks.some(SYSTEMS))
def test_without_prefetch_it_learns_what_the_device_tier_learns(
    system: str, settings: dict[str, Any], num_devices: int
) -> None:
    settings = {**settings, "layout.num_actors": 2, "replay.samples_per_insert": 1.5}
    host = make(system, settings | {"replay.prefetch": 0}, num_devices).run(6)
    device = make(system, settings | {"replay.storage": "device"}, num_devices).run(6)
    for x, y in zip(host.params, device.params, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    assert host.metrics.updates == device.metrics.updates > 3
    np.testing.assert_allclose(host.metrics.learner["loss"], device.metrics.learner["loss"], rtol=1e-5)
    row_bytes = sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(host.parts.environment.spec.observation))
    assert host.metrics.layout["unpacked_bytes"] == 6 * host.layout.rows_per_iteration * 2 * row_bytes
    for run in (host, device):
        run.layout.close()


@pytest.mark.slow
@pytest.mark.parametrize(("system", "settings"), marks.some(SYSTEMS, fast={"dqn"}))
def test_a_resumed_run_is_the_same_bit_by_bit(system: str, settings: dict[str, Any], tmp_path: pathlib.Path) -> None:
    settings = {**settings, "layout.num_actors": 2, "replay.samples_per_insert": 1.5}
    whole = make(system, settings).run(4).run(3)
    second = make(system, settings).run(4).handed_to(make(system, settings), tmp_path).run(3)
    for x, y in zip(whole.params, second.params, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(whole.metrics.learner["loss"], second.metrics.learner["loss"])
    for run in (whole, second):
        run.layout.close()


@pytest.mark.parametrize("first", [5, pytest.param(4, marks=pytest.mark.slow)])
def test_a_batch_that_was_drawn_ahead_is_learned_from_only_where_it_was_due(first: int, tmp_path: pathlib.Path) -> None:
    # Every second iteration has one update, for which nothing can be drawn ahead.
    settings = {"layout.num_actors": 2, "replay.samples_per_insert": 0.5}
    whole = make("dqn", settings).run(first).run(3)
    second = make("dqn", settings).run(first).handed_to(make("dqn", settings), tmp_path).run(3)
    never = make("dqn", {**settings, "replay.prefetch": 0}).run(first).run(3)
    for x, *others in zip(whole.params, second.params, never.params, strict=True):
        for y in others:
            np.testing.assert_array_equal(x, y)
    assert whole.metrics.updates == second.metrics.updates > 0
    for run in (whole, second, never):
        run.layout.close()


def test_the_first_unsound_update_is_kept_though_more_were_due() -> None:
    settings = {"learner.learning_rate": 1e38, "learner.anneal": False, "replay.samples_per_insert": 8.0}
    run = make("dqn", settings).run(4)
    failure = run.layout.diagnosis.kept()
    assert failure is not None and failure.saved[0][1] < 7
    learner, _ = run.layout.diagnosis.run(failure.saved, failure.iteration, run.total)
    assert not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(learner.params))
    run.layout.close()


@pytest.mark.slow
def test_prefetch_teaches_by_priorities_of_an_update_before() -> None:
    settings = {**RANGE, "replay.samples_per_insert": 4.0, "learner.learning_rate": 0.01}
    ahead, present = (make("rainbow", {**settings, "replay.prefetch": n}).run(8) for n in (1, 0))
    assert any((x != y).any() for x, y in zip(ahead.params, present.params, strict=True))
    for run in (ahead, present):
        run.layout.close()


def test_the_memory_of_devices_counts_no_observations() -> None:
    sizes = [
        memory_use.replay_parts(make("dqn", s).layout.template(make("dqn", s).keys).replay)
        for s in ({}, {"replay.storage": "device"})
    ]
    assert "observations" not in sizes[0] and sizes[1].pop("observations") > 0
    assert sizes[0] == sizes[1]


def test_anakin_refuses_it() -> None:
    with conftest.refused("--replay.storage=host: ", "anakin"):
        conftest.Small("dqn", "toy:walk", 1, {"replay.storage": "host", "layout": "anakin"})
