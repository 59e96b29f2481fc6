"""How small Atari frames get, and how fast: blocks of an unroll as the host tier of the replay keeps them.

    python benchmarks/compression.py [--games=Pong-v5,Breakout-v5] [--length=40] [--steps=4000]

Frames are of random play in EnvPool, 84 × 84, cut into blocks [T, 84, 84] of one environment each; speeds are of one
thread, counted in uncompressed bytes.
"""

import lz4.block
import zstandard

METHODS = {
    "lz4": (lz4.block.compress, lz4.block.decompress),
    "zstd 1": (zstandard.ZstdCompressor(1).compress, zstandard.ZstdDecompressor().decompress),
    "zstd 3": (zstandard.ZstdCompressor(3).compress, zstandard.ZstdDecompressor().decompress),
}
