"""Replays that members share, one for all (global) or one for each actor (local), and the rate of learning from them.

Source: Nair et al. 2015, "Massively parallel methods for deep reinforcement learning" (Gorila), section 4.1. The rate
is that of `--replay.samples_per_insert` for any number of actors and learners: those that are ahead wait for the
others, as with Reverb's rate limiter (Cassirer et al. 2021).
"""

import fractions
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import types
from jaxrl_dist.learning import step
from jaxrl_dist.parallel.async_gradient import plan as plans
from jaxrl_dist.parallel.async_gradient import programs
from jaxrl_dist.types import Array, ArrayTree


class Rate(NamedTuple):
    """Limits the number of samples by the number of unrolls.

    Attributes:
        first: unrolls that every player must have added before the first draw.
        per_unroll: draws per unroll of one player after that.
        ahead: players wait while more draws than these are due.
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


def rate(plan: plans.Plan) -> Rate:
    """Returns the rate that the settings of the replay ask for."""
    schedule = step.schedule(plan.parts.replay, plan.parts.config.unroll_length)
    numerator, denominator = schedule.ratio
    per_unroll = fractions.Fraction(numerator * plan.num_rings, denominator * plan.players)
    return Rate(schedule.first_ready + 1, per_unroll, plan.members - plan.players)


class SharedReplay:
    """Rings, one for all players or one for each, and counts; used by the server's thread alone.

    Attributes:
        rings: states of the rings.
        counts: i64 [P + 1], the unrolls of each player, and the samples that were drawn.
    """

    def __init__(self, plan: plans.Plan) -> None:
        """Builds the programs, which donate a ring that they change; call `load` before any other use."""
        replay = plan.parts.replay

        def draw(ring: ArrayTree, key: Array, number: Array, progress: Array) -> types.Sample:
            return replay.sample(ring, jax.random.split(programs.learning_key(replay, key, number))[0], progress)

        self._add, self._update = (jax.jit(one, donate_argnums=0) for one in (replay.add, replay.update))
        self._draw, self._rate, self._width = jax.jit(draw), rate(plan), plan.columns

    def load(self, rings: Sequence[ArrayTree], counts: np.ndarray) -> None:
        """Takes over a saved state."""
        self.rings, self.counts = list(rings), np.array(counts)

    @property
    def is_ready(self) -> bool:
        """Says whether samples may be drawn."""
        return self._rate.is_ready(self.counts[:-1])

    def may_go(self, plays: bool, learns: bool) -> bool:
        """Says whether a member may go on: a learner once a sample is due, an actor unless learners are behind."""
        due = self._rate.due(self.counts[:-1]) - int(self.counts[-1])
        return (plays and learns) or (due > 0 if learns else due <= self._rate.ahead)

    def draw(self, rank: int, number: int, key: Array, progress: float) -> types.Sample:
        """Draws the sample for the learner's gradient of this number."""
        ring = self._ring(rank, number)
        self.counts[-1] += 1
        return self._draw(self.rings[ring], self._near(key, ring), np.int32(number), np.float32(progress))

    def add(self, player: int, unroll: types.Unroll) -> None:
        """Adds a player's unroll to its ring."""
        ring, first = (player, 0) if len(self.rings) > 1 else (0, player * self._width)
        columns = np.arange(first, first + self._width, dtype=np.int32)
        self.rings[ring] = self._add(self.rings[ring], self._near(unroll, ring), columns)
        self.counts[player] += 1

    def update(self, rank: int, number: int, indices: Any, priorities: Array) -> None:
        """Sets the priorities of the items that `draw` returned for the gradient of this number."""
        ring = self._ring(rank, number)
        self.rings[ring] = self._update(self.rings[ring], *self._near((indices, priorities), ring))

    def _ring(self, rank: int, number: int) -> int:
        """Returns the ring that a learner draws from: each in turn, the first by the learner's rank."""
        return (rank + number) % len(self.rings)

    def _near(self, tree: Any, ring: int) -> Any:
        return jax.device_put(tree, next(iter(jax.tree.leaves(self.rings[ring])[0].devices())))
