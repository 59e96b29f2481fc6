"""Replays that workers share: one for all (global), or one of each actor (local), and how fast they are learned from.

Source: Nair et al. 2015, "Massively parallel methods for deep reinforcement learning" (Gorila), section 4.1. The rate
is that of `--replay.samples_per_insert` whatever the numbers of actors and learners: those that are ahead wait for the
others, as with Reverb's rate limiter (Cassirer et al. 2021).
"""

import fractions
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.learning import step
from jaxrl_dist.parallel.async_gradient import programs as worker_programs
from jaxrl_dist.types import Array, ArrayTree


class Programs(NamedTuple):
    """Programs of a ring; the first and the last donate it.

    Attributes:
        add: (ring, unroll, columns) -> ring.
        draw: (ring, key, number, progress) -> `types.Sample`; key and number of whoever draws.
        update: (ring, indices, priorities) -> ring.
    """

    add: Any
    draw: Any
    update: Any


def make(replay: replays.Replay) -> Programs:
    """Builds the programs of one ring; compiles none."""

    def draw(ring: ArrayTree, key: Array, number: Array, progress: Array) -> types.Sample:
        return replay.sample(ring, worker_programs.draw_key(key, number)[0], progress)

    return Programs(jax.jit(replay.add, donate_argnums=0), jax.jit(draw), jax.jit(replay.update, donate_argnums=0))


class Rate(NamedTuple):
    """Limits the samples that are drawn by the unrolls that came in.

    Attributes:
        first: unrolls of every player before the first draw.
        per_unroll: draws for each unroll of one player after that.
        ahead: draws that players may be ahead of the learners.
    """

    first: int
    per_unroll: fractions.Fraction
    ahead: int

    def is_ready(self, inserted: np.ndarray) -> bool:
        """Says whether samples may be drawn, given the unrolls i64 [P] of each player."""
        return bool(inserted.min() >= self.first)

    def due(self, inserted: np.ndarray) -> int:
        """Returns the draws that are due since the start."""
        if not self.is_ready(inserted):
            return 0
        return int((int(inserted.sum()) - len(inserted) * (self.first - 1)) * self.per_unroll)


def rate(replay: replays.Replay, unroll_length: int, num_rings: int, num_players: int, ahead: int) -> Rate:
    """Returns the rate that the settings of a replay ask for; arguments as of `Rate`."""
    pace = step.pace(replay, unroll_length)
    numerator, denominator = pace.ratio
    return Rate(pace.first_ready + 1, fractions.Fraction(numerator * num_rings, denominator * num_players), ahead)


class Store:
    """Shared rings with their counts; only the server's thread uses it.

    Attributes:
        rings: their states, one for all players or one for each.
        inserted: i64 [P], unrolls of each player.
        drawn: samples that were drawn of them.
    """

    def __init__(
        self, programs: Programs, rate: Rate, rings: Sequence[ArrayTree], inserted: np.ndarray, drawn: int, width: int
    ) -> None:
        """Takes up a state; `width` are the environments of a player."""
        self.rings, self.inserted, self.drawn = list(rings), np.array(inserted), drawn
        self._programs, self._rate, self._width = programs, rate, width

    @property
    def is_ready(self) -> bool:
        """Says whether samples may be drawn."""
        return self._rate.is_ready(self.inserted)

    def may_play(self) -> bool:
        """Says whether learners are not too far behind for more unrolls."""
        return self._rate.due(self.inserted) - self.drawn <= self._rate.ahead

    def may_learn(self) -> bool:
        """Says whether a sample is due."""
        return self.drawn < self._rate.due(self.inserted)

    def draw(self, place: int, key: Array, number: int, progress: float) -> worker_programs.Drawn:
        """Draws a sample of the ring that is next for a learner: of each in turn, from its own place on."""
        ring = (place + number) % len(self.rings)
        self.drawn += 1
        sample = self._programs.draw(self.rings[ring], self._near(key, ring), np.int32(number), np.float32(progress))
        return worker_programs.Drawn(sample, np.int32(ring))

    def add(self, player: int, unroll: types.Unroll) -> None:
        """Adds a player's unroll to its ring."""
        ring = player if len(self.rings) > 1 else 0
        first = 0 if len(self.rings) > 1 else player * self._width
        columns = np.arange(first, first + self._width, dtype=np.int32)
        self.rings[ring] = self._programs.add(self.rings[ring], self._near(unroll, ring), columns)
        self.inserted[player] += 1

    def update(self, ring: int, indices: Any, priorities: Array) -> None:
        """Gives the items of a sample new priorities."""
        self.rings[ring] = self._programs.update(self.rings[ring], *self._near((indices, priorities), ring))

    def _near(self, tree: Any, ring: int) -> Any:
        return jax.device_put(tree, next(iter(jax.tree.leaves(self.rings[ring])[0].devices())))


def no_counts(num_players: int) -> np.ndarray:
    """Returns i64 [P + 1], unrolls of each player and samples drawn, before the first."""
    return np.zeros(num_players + 1, np.int64)


def sample_struct(programs: Programs, ring: ArrayTree) -> types.Sample:
    """Returns a sample of `jax.ShapeDtypeStruct`."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(programs.draw, ring, key, np.int32(0), jnp.float32(0))
