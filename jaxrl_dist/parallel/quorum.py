"""A quorum: the learner goes on when so many actors' unrolls of an iteration are in, and late ones are dropped.

The learner's program has fixed shapes, so an unroll of LAST rows, which teach nothing, stands in for each that is late:
losses and statistics are means over the taught rows of those that are in.

Source: Heess et al. 2017, "Emergence of locomotion behaviours in rich environments", algorithm 2, where the chief waits
for W − D of W workers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_dist import types
from jaxrl_dist.parallel import arrivals, channels
from jaxrl_dist.types import ArrayTree


def stand_ins(
    rows: types.Unroll,
    carry: ArrayTree,
    num_actors: int,
    send: Callable[[tuple[types.Unroll, ...]], tuple[types.Unroll, channels.Packed]],
    parts: int,
) -> tuple[arrivals.Item, ...]:
    """Makes what stands in for each actor's unroll; all share their arrays.

    Args:
        rows: `types.Unroll` [T + 1, B / D] of `jax.ShapeDtypeStruct`, one part.
        carry: acting state [B / D, ...].
        num_actors: of this process.
        send: (parts of an unroll) -> the unroll on the learner's devices, and what of it stays on the host.
        parts: of an unroll.
    """
    steps = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), rows.steps)
    last: Any = np.full_like(steps.timestep.step_type, types.LAST)
    steps = steps._replace(timestep=steps.timestep._replace(step_type=last))
    unroll, packed = send((types.Unroll(steps, carry),) * parts)
    columns = np.arange(num_actors * last.shape[1], dtype=np.int32).reshape(num_actors, -1)
    return tuple(
        arrivals.Item(actor, -1, -1, unroll, packed, columns[actor], (), (), {}) for actor in range(num_actors)
    )


def fill(items: Sequence[arrivals.Item], stand_ins: Sequence[arrivals.Item]) -> list[arrivals.Item]:
    """Returns an item of each actor: its own where there is one, else what stands in; as they are without these."""
    if not stand_ins:
        return list(items)
    own = {item.actor: item for item in items}
    return [own.get(item.actor, item) for item in stand_ins]


def number_in_time(lag: int, store: channels.ParamStore, queue: arrivals.UnrollQueue, number: int) -> int:
    """Returns the number of the unroll that an actor plays next.

    It is the one that follows, unless that is late: then the one that is acted with the newest version. An actor whose
    unroll was taken is late for the next number only when a quorum of others is in, so a quorum plays every number.

    Args:
        lag: policy lag.
        store: of the parameters.
        queue: of the unrolls.
        number: one more than that of the actor's last unroll.
    """
    first = queue.first()
    return number if number >= first else max(first, store.newest() + lag)
