"""The actors of one process together: starts them, watches them, replaces lost ones, and lets them go."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import types
from jaxrl_dist.parallel import actor as actors
from jaxrl_dist.parallel import arrivals, channels, first_ready
from jaxrl_dist.parallel import unroll as unrolls

_CLOSE_WITHIN_S = 5.0


class Parts(NamedTuple):
    """What all actors of a crew share: see `actor.Actor`."""

    programs: unrolls.HostUnroll | first_ready.Programs
    store: channels.ParamStore
    queue: arrivals.UnrollQueue
    send: Callable[[tuple[types.Unroll, ...]], tuple[types.Unroll, channels.Packed]]


class Crew:
    """Runs one actor per plan.

    Attributes:
        restarts: how many actors were replaced.
    """

    def __init__(
        self, plans: Sequence[actors.Plan], starts: Sequence[actors.Start], parts: Parts, max_restarts: int
    ) -> None:
        """Starts every actor; `max_restarts` of them may be replaced."""
        self.restarts = 0
        self._parts, self._max_restarts = parts, max_restarts
        self._actors = [actors.Actor(plan, start, *parts) for plan, start in zip(plans, starts, strict=True)]

    def check(self) -> None:
        """Replaces actors that were lost, and raises the fault of one that may not be replaced any more."""
        for number, actor in enumerate(self._actors):
            try:
                actor.check()
            except Exception as fault:
                actor.give_up()
                if self.restarts >= self._max_restarts:
                    raise
                self.restarts += 1
                warnings.warn(
                    f"actor {number} is started anew ({self.restarts} of {self._max_restarts}) after "
                    f"{type(fault).__name__}: {fault}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._actors[number] = self._replacement(actor)

    def resting_points(self, number: int) -> list[actors.Start]:
        """Waits until every actor rests before its unroll of that number; returns where each goes on."""
        while any((at := actor.at()) is None or at.number < number for actor in self._actors):
            self.check()
            time.sleep(0.005)
        return [actor.resting_point() for actor in self._actors]

    def close(self) -> None:
        """Ends every thread, but for those that an environment holds; the channels are closed then."""
        self._parts.store.close()
        self._parts.queue.close()
        until_s = time.monotonic() + _CLOSE_WITHIN_S
        for actor in self._actors:
            actor.give_up()
        for actor in self._actors:
            actor.join(max(0.0, until_s - time.monotonic()))

    def _replacement(self, lost: actors.Actor) -> actors.Actor:
        """Starts an actor with new environments where the lost one began its unfinished unroll.

        The timestep that opens this unroll closes the one before, so it becomes the last of its episode: no sequence
        joins two lives, and the rows of the unfinished unroll are lost.
        """
        at = lost.at() or lost.start
        timestep = at.timestep
        if isinstance(timestep, types.TimeStep):
            timestep = ended(timestep)
        plan = lost.plan._replace(life=lost.plan.life + 1)
        return actors.Actor(plan, at._replace(timestep=timestep, environment=()), *self._parts)


def ended(timestep: types.TimeStep) -> types.TimeStep:
    """Makes every row of a timestep in NumPy the last of its episode."""
    last: Any = np.full_like(timestep.step_type, types.LAST)
    return timestep._replace(step_type=last)
