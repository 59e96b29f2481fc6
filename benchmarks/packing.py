"""Measures how small Atari frames get on the host tier of the replay, and how fast: `python benchmarks/packing.py`.

Frames are of random play in EnvPool, cut into blocks [T, 84, 84] of one environment each. Speeds are of one thread and
count uncompressed bytes; LZ4 and other levels of zstd stand beside the one that `packed_observations.py` uses.
"""

import argparse
import pathlib
import sys
import time
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import jax  # noqa: E402
import lz4.block  # noqa: E402
import numpy as np  # noqa: E402
import zstandard  # noqa: E402

from jaxrl_dist import envs  # noqa: E402
from jaxrl_dist.replay import packed_observations  # noqa: E402

# Rows of R2D2's sequences: burn-in 40, taught 80, and n-step 5.
WINDOW = 125

METHODS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "LZ4": (lz4.block.compress, lz4.block.decompress),
    **{
        f"zstd {level}": (zstandard.ZstdCompressor(level=level).compress, zstandard.ZstdDecompressor().decompress)
        for level in (-3, 1, 3)
    },
}


def play(game: str, num_envs: int, steps: int) -> np.ndarray:
    """Returns frames u8 [T, B, 84, 84] of random play."""
    task = envs.make(f"envpool:{game}")
    environment, random = task.make(np.arange(num_envs, dtype=np.uint32), num_envs, 60.0), np.random.default_rng(0)
    frames = [np.array(environment.reset().observation)]
    while len(frames) < steps:
        actions = random.integers(0, task.spec.action.num_values, num_envs).astype(np.int32)
        frames.append(np.array(environment.step(actions).observation))
    environment.close()
    return np.stack(frames)


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", default="Pong-v5,Breakout-v5")
    parser.add_argument("--lengths", default="4,25,40", help="rows of a block")
    parser.add_argument("--steps", type=int, default=1200)
    options = parser.parse_args()
    print("| game | rows of a block | method | ratio | compressed, GB/s | decompressed, GB/s |\n|" + " --- |" * 6)
    for game in options.games.split(","):
        frames = play(game, 8, options.steps)
        for length in map(int, options.lengths.split(",")):
            firsts = range(0, options.steps - length + 1, length)
            raw = [frames[first : first + length, env].tobytes() for env in range(8) for first in firsts]
            size = sum(map(len, raw))
            for name, (compress, decompress) in METHODS.items():
                started_s = time.perf_counter()
                packed = [compress(block) for block in raw]
                packed_s = time.perf_counter()
                unpacked = [decompress(block) for block in packed]
                speeds = size / (packed_s - started_s) / 1e9, size / (time.perf_counter() - packed_s) / 1e9
                assert unpacked == raw
                ratio = size / sum(map(len, packed))
                print(f"| {game} | {length} | {name} | {ratio:.0f} | {speeds[0]:.1f} | {speeds[1]:.1f} |", flush=True)
            row = f"{ours(frames, length):.1f} |"
            print(f"| {game} | {length} | windows of {WINDOW} rows, read | – | – | {row}", flush=True)


def ours(frames: np.ndarray, length: int) -> float:
    """Returns the GB/s at which windows are read, by all threads, decompressed and cut."""
    observations = packed_observations.Observations(jax.ShapeDtypeStruct(frames.shape[2:], frames.dtype), length)
    kept = packed_observations.Blocks(observations, 1, frames.shape[1], frames.shape[0] // length)
    for first in range(0, frames.shape[0] - length + 1, length):
        kept.put(0, range(frames.shape[1]), observations.pack(frames[first : first + length]))
    random, count = np.random.default_rng(0), 64
    starts = random.integers(0, frames.shape[0] // length * length - WINDOW, count)
    columns = random.integers(0, frames.shape[1], count)
    seconds = []
    for _ in range(5):
        started_s = time.perf_counter()
        windows = kept.read(0, columns, starts, WINDOW)
        seconds.append(time.perf_counter() - started_s)
    for window, column, start in zip(windows, columns, starts, strict=True):
        np.testing.assert_array_equal(window, frames[start : start + WINDOW, column])
    return windows.nbytes / min(seconds) / 1e9


if __name__ == "__main__":
    main()
