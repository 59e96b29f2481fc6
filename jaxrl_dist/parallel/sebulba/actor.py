"""The actor threads of one process: each plays with published parameters, and hands over unrolls."""

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, errors, parallel, processes, types
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel import keys, precision
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import channels, tiers
from jaxrl_dist.parallel.sebulba import queue as queues
from jaxrl_dist.parallel.sebulba.actors import Actors
from jaxrl_dist.types import Array

_LOOK_S = 0.005


class _Absent(Exception):  # noqa: N818
    """The actors of this process give no unrolls any more."""


class NoneLeftError(errors.EnvironmentFault):
    """Nothing can take the place of an actor's environments, so the run ends, however many may be started anew."""


class Acting(Protocol):
    """The way in which actors play: all environments in step, whichever are ready first, or on other machines."""

    @property
    def open(self) -> Callable[[Array, int, int, int], envs.HostEnvironment]:
        """Makes an actor's environments, as `Actors.make_environments` does."""

    def warm_up(self, published: unrolls.Published, device: jax.Device) -> None:
        """Compiles the programs of a device that can be compiled ahead."""

    def play(self, actor: "Actor", environment: envs.HostEnvironment) -> Iterator[queues.Unrolled]:
        """Plays an actor's environments for ever, yields unrolls, and keeps `actor.at` up to date."""


class Actor:
    """One thread that plays until its queue closes.

    Attributes:
        number: its index in this process.
        begin: number of its first unroll, and the `ActorState` before it: saved state of the environments, or () for
            new ones; timestep [B] in NumPy that opens the unroll, () for fresh episodes; acting state. New environments
            can take over from a timestep that is all LAST.
        life: how many times its environments were replaced.
        device: where it chooses actions.
        env_ids: i32 [B], global indices of its environments, on its device.
        key: typed key of its own, on its device.
        columns: i32 [B / D], the columns of each of the learner's devices that belong to its environments.
        at: the same as `begin` for its present unroll, without environments; None until these are made.
    """

    def __init__(self, threads: "Threads", number: int, begin: tuple[int, unrolls.ActorState], life: int = 0) -> None:
        """Starts the thread."""
        actors = threads.actors
        index = processes.index() * actors.num_actors + number
        self._first_env = index * actors.width
        ids = np.arange(self._first_env, self._first_env + actors.width, dtype=np.int32)
        self.number, self.begin, self.life = number, begin, life
        self.device, self.columns = actors.devices[number], actors.columns(number)
        self.env_ids = jax.device_put(ids, self.device)
        self.key = jax.device_put(jax.random.fold_in(threads.keys.training, index), self.device)
        self.at: tuple[int, unrolls.ActorState] | None = None
        self._taken: tuple[float, int, unrolls.Published] | None = None
        self._threads, self._is_current = threads, True
        self._environment: envs.HostEnvironment | None = None
        # A fleet limits itself how long it looks for a player.
        config = actors.parts.config
        timeout_s = math.inf if config.fleet else config.timeout_s
        self._making = hangs.Making(actors.parts.environment.spec.name, timeout_s)
        self._as_precise = precision.of_this_thread()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"actor {number}", daemon=True)
        self._thread.start()

    def parameters(self, number: int) -> tuple[int, int, unrolls.Published]:
        """Waits for the parameters of an unroll.

        A late unroll is skipped: the actor plays the one for which the newest version acts. An actor whose unroll was
        taken is late for the next number only when a quorum of others has played it, so a quorum plays every number.

        Args:
            number: one more than the number of the actor's last unroll.

        Returns:
            Number of the unroll to play, the version that acts in it, and the parameters of that version.
        """
        store, lag = self._threads.store, self._threads.actors.lag
        if lag is None:
            return number, *self._newest()
        first = self._threads.queue.first()
        number = number if number >= first else max(first, store.newest() + lag)
        return number, *store.wait(max(self._threads.began, number - lag), self.device)

    def is_due(self, number: int) -> bool:
        """Says whether the parameters of an unroll are there, so that `parameters` would not wait."""
        lag = self._threads.actors.lag
        return lag is None or max(self._threads.began, number - lag) <= self._threads.store.newest()

    def _newest(self) -> tuple[int, unrolls.Published]:
        """Returns the newest version, or the last one that was taken if that is not long ago."""
        self.check_current()
        store, refresh_s = self._threads.store, self._threads.actors.parts.config.refresh_s
        if self._taken is None or time.monotonic() - self._taken[0] >= refresh_s:
            self._taken = time.monotonic(), *store.wait(store.newest(), self.device)
        return self._taken[1:]

    def check_current(self) -> None:
        """Raises `channels.Closed` if it was given up."""
        if not self._is_current:
            raise channels.Closed

    def check(self) -> None:
        """Raises the error that ended the thread, or an `EnvironmentFault` if its environments take too long."""
        if self._error is not None:
            raise self._error
        try:
            hangs.check(self._environment, self._making)
        except errors.EnvironmentFault as fault:
            message = f"actor {self.number}, whose environments begin at {self._first_env}: {fault}"
            raise errors.EnvironmentFault(message) from None

    def resting_point(self) -> unrolls.ActorState:
        """Returns where it goes on, with the state of its environments; call it only while it waits for parameters."""
        assert self.at is not None and self._environment is not None
        return self.at[1]._replace(environment=self._environment.state())  # type: ignore[attr-defined]

    def end_by(self, fault: errors.EnvironmentFault) -> None:
        """Lets its next check raise a fault that another thread has met."""
        self._error = fault

    def replaced(self) -> "Actor":
        """Starts an actor with new environments where this one began its unfinished unroll.

        The rows of the unfinished unroll are lost. The timestep that opens it also closes the unroll before, so it
        becomes the last of its episode, and no sequence joins old and new environments.
        """
        number, state = self.at or self.begin
        timestep: Any = unrolls.ended(state.timestep) if state.timestep else ()
        begin = number, unrolls.ActorState((), timestep, state.carry)
        return Actor(self._threads, self.number, begin, self.life + 1)

    def give_up(self) -> None:
        """Drops whatever the thread, which may hang for ever, still sends."""
        self._is_current = False
        self._threads.queue.wake()

    def is_alive(self) -> bool:
        """Says whether the thread still runs."""
        return self._thread.is_alive()

    def is_kept(self) -> bool:
        """Says whether the thread runs, and its environments may keep it for ever."""
        return self.is_alive() and hangs.may_keep(self._environment, self._making)

    def _run(self) -> None:
        threads = self._threads
        try:
            with self._as_precise():
                key = threads.keys.environment
                with self._making:
                    self._environment = threads.acting.open(key, self._first_env, threads.began, self.life)
                for unrolled in threads.acting.play(self, self._environment):
                    threads.queue.put(threads.send(unrolled), lambda: self._is_current)
        except channels.Closed:
            pass
        except BaseException as error:
            self._error = error
            threads.queue.wake()
        finally:
            if self._environment is not None:
                self._environment.close()


class Threads:
    """The actors of this process while they play, with the channels between them and the learner.

    Attributes:
        actors: describes them.
        acting: the way in which they play.
        state: state of the run after `iteration` iterations.
        iteration: number of iterations so far.
        began: the same when the threads began.
        keys: keys of the run, by use.
        store: gives them parameters.
        send: puts unrolls onto the learner's devices.
        queue: takes their unrolls then.
        restarts: number of actors that were replaced.
        fault: of one of several processes, None without one. Its learner goes on with stand-ins, since the others wait
            for it in collectives, until all can end together.
    """

    def __init__(
        self, actors: Actors, acting: Acting, state: tiers.State, iteration: int, published: unrolls.Published
    ) -> None:
        """Starts every actor where a snapshot has it; if the state is no snapshot, with new environments.

        `published` are the parameters of the state.
        """
        num_actors, num_waiting = actors.num_actors, actors.num_waiting
        self.actors, self.acting, self.began, self.restarts = actors, acting, iteration, 0
        self.state, self.iteration = state, iteration
        self.keys = keys.seed_keys(state.key.addressable_data(0)[0])
        self.store = channels.ParamStore(actors.devices, num_waiting)
        self.queue = queues.UnrollQueue(num_actors, num_actors if actors.lag is None else num_waiting, iteration)
        self.send = queues.Sender(actors)
        self._counted: dict[str, int] = {}
        self.fault: Exception | None = None
        self._stand_ins = self._make_stand_ins(()) if actors.quorum < num_actors else ()
        self.store.publish(iteration, published)
        for actor, pending in enumerate(state.pending):
            for number, (unroll, sums) in enumerate(pending, iteration):
                version, episodes = max(0, number - (actors.lag or 0)), jax.tree.map(np.asarray, sums)
                saved = queues.Unrolled(actor, number, version, unroll, (), actors.columns(actor), (), episodes, {})
                self.queue.put(self.send.again(saved), lambda: True)
        self._players = [Actor(self, number, self._begin(number)) for number in range(num_actors)]

    def take(self, iteration: int, check: Callable[[], None]) -> list[queues.Unrolled]:
        """Takes the unrolls of an iteration: those of its number, or, where the lag is free, those that came first.

        Args:
            iteration: index of the iteration.
            check: called while waiting; if it raises, the exception passes through, and nothing was taken.
        """

        def check_all() -> None:
            check()
            if self.fault is not None:
                raise _Absent

        try:
            if self.actors.lag is None:
                return self.queue.take(self.actors.num_actors, check_all)
            return self.queue.take_number(iteration, self.actors.quorum, check_all)
        except _Absent:
            return []

    def filled(self, unrolled: Sequence[queues.Unrolled]) -> Sequence[queues.Unrolled]:
        """Returns an unroll of each actor: its own, or the stand-in for a late one."""
        own = {one.actor: one for one in unrolled}
        return [own.get(one.actor, one) for one in self._stand_ins] or unrolled

    def check(self) -> None:
        """Replaces actors that failed, or raises the fault if no more actors may be replaced.

        One of several processes keeps the fault instead.
        """
        try:
            if self.fault is None:
                self._replace_failed()
        except Exception as fault:
            if processes.count() == 1:
                raise
            opening = [one.timestep for one in self.state.actors]
            # Unrolls of a snapshot do not say where their environments stood.
            self.fault, self._stand_ins = fault, self._make_stand_ins(opening if all(opening) else ())

    def _replace_failed(self) -> None:
        limit = self.actors.parts.config.max_actor_restarts
        for number, actor in enumerate(self._players):
            try:
                actor.check()
            except Exception as fault:
                actor.give_up()
                if self.restarts >= limit or isinstance(fault, NoneLeftError):
                    raise
                self.restarts += 1
                warnings.warn(
                    f"actor {number} is started anew ({self.restarts} of {limit}) after "
                    f"{type(fault).__name__}: {fault}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._players[number] = actor.replaced()

    def resting_points(self, number: int) -> tuple[unrolls.ActorState, ...]:
        """Waits until every actor rests before its unroll of that number; returns where each goes on.

        Raises:
            parallel.NotRestedError: an actor lost its environments, and was replaced.
        """
        while any(actor.at is None or actor.at[0] < number for actor in self._players):
            self.check()
            if self.fault is not None:
                raise self.fault
            time.sleep(_LOOK_S)
        return tuple(map(self._resting_point, self._players))

    def _resting_point(self, actor: Actor) -> unrolls.ActorState:
        try:
            return actor.resting_point()
        except errors.EnvironmentFault as fault:
            # Others of several processes save at the same time.
            if processes.count() > 1:
                raise
            actor.end_by(fault)
            self.check()
            raise parallel.NotRestedError(*fault.args) from fault

    def counted(self) -> dict[str, int]:
        """Returns the bytes that crossed, and the unrolls that were dropped, since the last call."""
        counts = {
            "bytes_to_learner": self.send.num_bytes,
            "bytes_to_actors": self.store.num_bytes,
            "dropped_unrolls": self.queue.dropped,
        }
        grown = {name: count - self._counted.get(name, 0) for name, count in counts.items()}
        self._counted = counts
        return grown

    def close(self) -> None:
        """Ends every thread, but for those that hang in an environment."""
        self.store.close()
        self.queue.close()
        for actor in self._players:
            actor.give_up()
        hangs.await_ends(
            lambda: sum(actor.is_alive() for actor in self._players),
            lambda: sum(actor.is_kept() for actor in self._players),
        )

    def _begin(self, number: int) -> tuple[int, unrolls.ActorState]:
        """Returns where an actor begins: where a snapshot has it, afresh, or where its lost environments ended."""
        state, actors = self.state.actors[number], self.actors
        if self.state.pending:
            return self.began + len(self.state.pending[number]), jax.tree.map(_to_host, state)
        timestep: Any = unrolls.ended(jax.tree.map(np.asarray, state.timestep)) if self.began else ()
        return self.began, unrolls.ActorState((), timestep, actors.parts.agent.init_carry(actors.num_rows))

    def _make_stand_ins(self, opening: Sequence[types.TimeStep]) -> tuple[queues.Unrolled, ...]:
        """Makes the stand-in for each actor's unroll, which teaches nothing.

        Args:
            opening: timesteps [B] in NumPy with which the unrolls open, so that a replay, which has the row before
                them, keeps what came of it; the last of their episodes. Without them all share their arrays.
        """
        actors, parts = self.actors, self.actors.parts
        width = actors.num_rows
        struct = unrolls.rows_struct(parts.agent, parts.environment.spec, parts.config.unroll_length, width)
        steps = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), struct.steps)
        steps = steps._replace(timestep=unrolls.ended(steps.timestep))

        def made(steps: types.Step) -> queues.Unrolled:
            rows = unrolls.cut(types.Unroll(steps, parts.agent.init_carry(width)), len(actors.local))
            return self.send(queues.Unrolled(0, -1, -1, rows, (), (), (), unrolls.no_episodes(), {}))

        def opened(timestep: types.TimeStep) -> types.Step:
            rows = jax.tree.map(lambda x, first: np.concatenate([first[None], x[1:]]), steps.timestep, timestep)
            return steps._replace(timestep=unrolls.ended(rows))

        each = [made(opened(one)) for one in opening] or [made(steps)] * actors.num_actors
        return tuple(one._replace(actor=n, columns=actors.columns(n)) for n, one in enumerate(each))


def _to_host(x: Any) -> Any:
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)
