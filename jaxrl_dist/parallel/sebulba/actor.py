"""An actor thread: plays CPU environments with the parameters that the learner published, and hands over unrolls."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel import precision
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import channels, first_ready
from jaxrl_dist.parallel.sebulba import queue as queues
from jaxrl_dist.types import ArrayTree


class Start(NamedTuple):
    """Holds the state from which an actor begins.

    Attributes:
        number: of its next unroll.
        timestep: leaves [B, ...] in NumPy that this unroll opens with; () begins with fresh episodes. If its
            environments do not go on from there, it must be all LAST.
        carry: acting state [B, ...] before it.
        environment: saved state of the environments, () for new ones.
    """

    number: int
    timestep: Any
    carry: ArrayTree
    environment: ArrayTree


class Plan(NamedTuple):
    """Describes the work of an actor, the same over its whole life.

    Attributes:
        number: of the actor in this process.
        env_ids: i32 [B], global indices of its environments, on its device.
        key: typed key of its own, on its device.
        columns: i32 [B / D], which of a device's columns are its environments'.
        device: where it chooses actions.
        version_of: (number of an unroll) -> version to act with; it takes the oldest that is not older.
        number_of: (number of the next unroll) -> the one to play instead, higher where that one is late.
        make_environment: (life) -> `HostEnvironment` of B environments.
        ready: environments that act as soon as so many are ready; 0 waits for all.
        length: of an unroll.
        life: how many times its environments were replaced.
    """

    number: int
    env_ids: jax.Array
    key: jax.Array
    columns: np.ndarray
    device: jax.Device
    version_of: Callable[[int], int]
    number_of: Callable[[int], int]
    make_environment: Callable[[int], envs.HostEnvironment]
    ready: int
    length: int
    life: int = 0


class Actor:
    """One thread that plays until its queue closes.

    Attributes:
        plan: as given.
        start: as given.
    """

    def __init__(
        self,
        plan: Plan,
        start: Start,
        programs: unrolls.HostUnroll | first_ready.Programs,
        store: channels.ParamStore,
        queue: queues.UnrollQueue,
        send: Callable[[tuple[types.Unroll, ...]], tuple[types.Unroll, channels.Packed]],
    ) -> None:
        """Starts the thread.

        Args:
            plan: what to do.
            start: where to begin.
            programs: shared by all actors.
            store: where the parameters come from.
            queue: where the unrolls go.
            send: (parts of an unroll) -> the unroll on the learner's devices, and what of it stays on the host.
        """
        self.plan, self.start = plan, start
        self._programs, self._store, self._queue, self._send = programs, store, queue, send
        self._at: Start | None = None
        self._environment: envs.HostEnvironment | None = None
        self._is_current = True
        self._as_precise = precision.of_this_thread()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"actor {plan.number}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what ended the thread, or an `EnvironmentFault` if its environments take longer than they may."""
        if self._error is not None:
            raise self._error
        try:
            if self._environment is not None:
                hangs.check_waiting(self._environment)
        except errors.EnvironmentFault as fault:
            first = int(self.plan.env_ids[0])
            message = f"actor {self.plan.number}, whose environments begin at {first}: {fault}"
            raise errors.EnvironmentFault(message) from None

    def at(self) -> Start | None:
        """Returns where its present unroll began, or None while its environments are being made."""
        return self._at

    def resting_point(self) -> Start:
        """Returns where it goes on, with the state of its environments; only while it waits for parameters."""
        at, environment = self._at, self._environment
        assert at is not None and environment is not None
        return at._replace(environment=environment.state())  # type: ignore[attr-defined]

    def give_up(self) -> None:
        """Lets go of the thread, which may never come back: what it still sends is dropped."""
        self._is_current = False
        self._queue.wake()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread to end; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._as_precise():
                self._play()
        except channels.Closed:
            pass
        except BaseException as error:
            self._error = error
            self._queue.wake()
        finally:
            environment = self._environment
            if environment is not None:
                environment.close()

    def _play(self) -> None:
        plan = self.plan
        environment = self._environment = plan.make_environment(plan.life)
        if isinstance(self._programs, first_ready.Programs):
            items = self._play_first_ready(self._programs, environment)
        else:
            items = self._play_in_step(self._programs, environment)
        for item in items:
            self._queue.put(item, lambda: self._is_current)

    def _play_in_step(self, programs: unrolls.HostUnroll, environment: envs.HostEnvironment) -> Iterator[queues.Item]:
        """Yields unrolls of all environments together."""
        plan, player = self.plan, environment
        number, timestep, carry, saved = self.start
        if jax.tree.leaves(saved):
            environment.load(saved)  # type: ignore[attr-defined]
        elif isinstance(timestep, types.TimeStep):
            player = unrolls.ResetOnFirstStep(environment)  # type: ignore[assignment]
        else:
            timestep = environment.reset()._replace(info=())
        carry = jax.device_put(carry, plan.device)
        while True:
            number = plan.number_of(number)
            self._at = Start(number, timestep, carry, ())
            version, published = self._store.wait(plan.version_of(number), plan.device)
            parts, rows = programs.run(published, plan.key, number, plan.env_ids, player, timestep, carry)
            sending_s = time.perf_counter()
            unroll, packed = self._send(parts)
            timestep, carry = rows.timestep, rows.carry
            seconds = {
                "environment_s": rows.environment_s,
                "inference_s": rows.inference_s,
                "transfer_s": time.perf_counter() - sending_s,
            }
            episodes = rows.episodes
            yield queues.Item(plan.number, number, version, unroll, packed, plan.columns, timestep, episodes, seconds)
            number += 1

    def _play_first_ready(
        self, programs: first_ready.Programs, environment: envs.HostEnvironment
    ) -> Iterator[queues.Item]:
        """Yields unrolls of whichever environments complete theirs first."""
        plan = self.plan
        number, timestep, carry, _ = self.start
        played = first_ready.play(
            programs,
            plan.ready,
            plan.length,
            lambda: self._store.wait(plan.version_of(number), plan.device),
            jax.random.fold_in(jax.random.fold_in(plan.key, plan.life), number),
            plan.env_ids,
            environment,
            timestep,
            jax.device_put(carry, plan.device),
        )
        for number, emitted in enumerate(played, self.start.number):
            self._at = Start(number + 1, emitted.timestep, carry, ())
            sending_s = time.perf_counter()
            unroll, packed = self._send(emitted.parts)
            seconds = emitted.seconds | {"transfer_s": time.perf_counter() - sending_s}
            # The replay of a single device knows every column; that of `latest` none.
            columns = plan.columns[0] + emitted.columns if len(emitted.parts) == 1 else plan.columns
            yield queues.Item(
                plan.number,
                number,
                emitted.version,
                unroll,
                packed,
                columns,
                emitted.timestep,
                emitted.episodes,
                seconds,
            )
