"""The Sebulba layout: actor threads play CPU environments, learners on the accelerators take their unrolls.

Source: Hessel et al. 2021, "Podracer architectures for scalable reinforcement learning"; the exact policy lag as in
Huang et al. 2023, "Cleanba".
"""

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_dist import errors, parallel, processes
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import placement, unroll
from jaxrl_dist.parallel.sebulba import actor, actors, first_ready, fleet, host_tier, in_step, metrics, queue, tiers
from jaxrl_dist.parallel.sebulba import snapshot as saved
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the layout."""

    unroll_length: int = setting(
        128, "Rows per environment between updates (T).", low=1, source="Schulman et al. 2017, table 5"
    )
    num_actors: int = setting(
        1,
        "Actor threads of each process, each with its share of the environments. One is fastest if steps are short; "
        "with two, one acts while the other's environments step, which pays if steps are long and cores are many.",
        low=1,
    )
    actor_devices: str = setting(
        "",
        "Devices of the actors in turn, such as cpu:0 or gpu:0,gpu:1; empty takes those of the learner, or, if these "
        "are CPUs, all CPUs.",
    )
    learner_devices: str = setting(
        "", "Devices of the learner, such as gpu:2,gpu:3; empty takes all accelerators, or the first CPU."
    )
    policy_lag: str = setting(
        "1",
        "Versions by which the acting policy is behind. A number is exact, so that runs on environments that can be "
        "saved repeat bit for bit; with free, actors take the newest version, and the learner the first unrolls.",
        source="Huang et al. 2023 (Cleanba), section 3",
    )
    inference: str = setting(
        "per_actor",
        "Who chooses actions: each actor with its own copy of the parameters, or one loop on the learner's device for "
        "whichever environments are ready (central), which copies no parameters and needs a free policy lag.",
        choices=("per_actor", "central"),
        source="Espeholt et al. 2020 (SEED RL), section 3; Babaeizadeh et al. 2017 (GA3C)",
    )
    quorum: int = setting(
        0,
        "Actors of a process for whose unrolls an iteration waits; later unrolls are dropped, so the clock decides "
        "which rows are learned from. 0 waits for all. Needs a number as policy lag.",
        low=0,
        source="Heess et al. 2017 (DPPO), algorithm 2 (W − D workers)",
    )
    ready_envs: int = setting(
        0,
        "An actor acts as soon as so many of its environments are ready, so that a slow one delays only itself; 0 "
        "waits for all. Needs a free policy lag.",
        low=0,
        source="Espeholt et al. 2020 (SEED RL); Weng et al. 2022 (EnvPool)",
    )
    timeout_s: float = setting(60.0, "Longest step of an environment; one that takes longer is a fault.", above=0.0)
    max_actor_restarts: int = setting(
        0, "Actors that may be started anew after a fault; the next fault ends the run.", low=0, tag="tunable"
    )
    refresh_s: float = setting(
        0.0,
        "Least seconds between two versions of the parameters that an actor takes, since sending them costs more than "
        "the unrolls that come back; 0 takes every version. Needs a free policy lag.",
        low=0.0,
        tag="tunable",
    )
    fleet: str = setting(
        "",
        "Where the actors play: empty, in threads of this process; local, in processes of this machine, for which Ray "
        "is started; auto or HOST:PORT, on the CPUs of the Ray cluster with this address (docs/fleets.md).",
        tag="tunable",
    )
    fleet_parameters: str = setting(
        "float32",
        "How the network travels to the actors of a fleet: float32, as it is; bfloat16, rounded, in half the bytes, so "
        "that a run has no longer the parameters that threads would give.",
        choices=("float32", "bfloat16"),
        tag="tunable",
    )
    fleet_cpus: int = setting(1, "CPUs of the cluster that each actor of a fleet reserves.", low=1, tag="tunable")
    fleet_spares: int = setting(
        1, "Actors of a fleet that are kept ready, with compiled programs, to replace lost ones.", low=0, tag="tunable"
    )


def choose_devices(settings: Mapping[str, Any], devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Chooses from the given devices those of the learner, the same ones in each process.

    Raises:
        UsageError: a name is not that of a device, or processes have not as many each.
    """
    owners = placement.by_process(devices)
    own = next((one for one in owners if one[0].process_index == processes.index()), owners[0])
    chosen = own[:1] if own[0].platform == "cpu" else own
    if settings["layout.learner_devices"]:
        chosen = placement.parse("layout.learner_devices", settings["layout.learner_devices"], own)
    if len(owners) == 1:
        return list(chosen)
    others = [device for device in chosen if device not in own]
    if others:
        raise errors.UsageError(
            errors.given("layout.learner_devices", settings["layout.learner_devices"]),
            f": {placement.name(others[0])} is not of the run's devices; valid: {', '.join(map(placement.name, own))}",
        )
    return [one[own.index(device)] for one in owners for device in chosen]


class Sebulba(parallel.Layout):
    """Runs the actors and the learner of a run; made of `parallel.LayoutParts`.

    Raises:
        UsageError: actors that do not divide the environments, unknown devices, or a policy lag that the agent cannot
            bear.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        parallel.check_goes_on(parts, "sebulba")
        self.mesh, self.rows_per_iteration = parts.mesh, parts.num_envs * parts.config.unroll_length
        self._actors = actors.make(parts)
        self._fleet = fleet.Fleet(self._actors) if parts.config.fleet else None
        here = first_ready.FirstReady if self._actors.ready else in_step.InStep
        self._acting: actor.Acting = self._fleet or here(self._actors)
        self._tier: tiers.Tier = (host_tier.HostTier if parts.replay.host else tiers.DeviceTier)(parts)
        acting = () if self._fleet else self._actors.devices
        roles = [(one, f"actor {i} ({self._actors.width} environments)") for i, one in enumerate(acting)]
        roles += [(one, f"learner {i}") for i, one in enumerate(self._actors.local)]
        away = (self._fleet.placement,) if self._fleet else ()
        self.placement = (*placement.table(roles), *away, *self._tier.notes)
        self.program = self._tier.program
        self.diagnosis = parallel.Diagnosis(self._update_struct, self._run_again, lambda: self._failure)
        self._copy = jax.jit(_copy)
        self._is_compiled = False
        self._threads: actor.Threads | None = None
        self._failure: parallel.Failure | None = None

    def init(self, keys: Array) -> tiers.State:
        keys = meshes.put_keys(self.mesh, keys)
        learner, replay = self._tier.init(keys)
        timestep = unroll.zero_timestep(self._actors.parts.environment.spec, self._actors.num_rows)
        acting = (unroll.ActorState((), timestep, ()),) * self._actors.num_actors
        return tiers.State(learner, keys, acting, replay, (), np.zeros((), np.int32))

    def template(self, keys: Array) -> tiers.State:
        return saved.template(self._actors, self._tier, keys)

    def run(
        self, state: tiers.State, iteration: int, count: int, total: int, stopped: Callable[[], bool] = parallel.never
    ) -> tuple[tiers.State, parallel.Metrics]:
        if processes.count() > 1:
            state, stopped = saved.own(self._actors, state), parallel.never
        self._compile(state)
        measured = metrics.Measured(self._names, self._actors)
        for i in range(iteration, iteration + count):
            threads = self._playing(state, i, i / total)
            try:
                state = self._iterate(threads, i, total, stopped, measured)
            except Exception as end:
                if processes.count() > 1:
                    # The others may wait for this one in a collective, and must not be waited for.
                    raise
                fault = None if isinstance(end, parallel.Stop) else end
                raise parallel.Interrupted(state, self._metrics(measured), i - iteration, fault) from None
            if self._failure is not None:
                break
        if self._threads is not None and (fault := self._threads.fault) is not None:
            raise parallel.Interrupted(state, self._metrics(measured), count, fault)
        return state, self._metrics(measured)

    def snapshot(self, state: tiers.State) -> tiers.State:
        if not state.pending and saved.is_exact(self._actors):
            # A run that has not begun has no threads, and its state no pending unrolls.
            state = saved.snapshot(self._playing(state, 0, 0.0))
        state = state._replace(replay=self._tier.saved(state.replay))
        return state if processes.count() == 1 else saved.joined(self._actors, state)

    def report(
        self, sums: Mapping[str, np.ndarray], recent: Mapping[str, np.ndarray], seconds: float
    ) -> dict[str, Any]:
        return metrics.report(sums, recent, seconds) | {"inference_batch_mean": self._actors.num_acting}

    def summary(self, sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        workers = self._actors.num_actors * processes.count()
        return metrics.summary(sums) | {"inference_batch_mean": self._actors.num_acting, "workers": workers}

    def run_arguments(self, state: tiers.State, iteration: int, count: int, total: int) -> tuple[Any, ...]:
        del count
        return self._tier.arguments(state, iteration, total)

    def close(self) -> None:
        self._end_threads()
        if self._fleet is not None:
            self._fleet.close()

    def _end_threads(self) -> None:
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        self._tier.close()

    def _iterate(
        self, threads: actor.Threads, i: int, total: int, stopped: Callable[[], bool], measured: metrics.Measured
    ) -> tiers.State:
        """Runs an iteration: takes unrolls, learns from them, and publishes what was learned."""
        state = threads.state

        def check() -> None:
            if stopped():
                raise parallel.Stop
            threads.check()

        check()
        self._tier.check(state, i)
        started_s = time.perf_counter()
        depth = threads.queue.depth()
        unrolled = threads.take(i, check)
        learning_s = time.perf_counter()
        learned, failing = self._tier.learn(state, i, total, threads.filled(unrolled))
        if failing is None:
            threads.store.publish(i + 1, self._published(learned.learner, (i + 1) / total))
        else:
            self._failure = parallel.Failure(i, failing, None)
        waited_s, learned_s = learning_s - started_s, time.perf_counter() - learning_s
        measured.add(i, unrolled, learned, queue_depth=depth, learner_wait_s=waited_s, learning_s=learned_s)
        threads.state, threads.iteration = _advance(state, learned, unrolled), i + 1
        return threads.state

    def _playing(self, state: tiers.State, iteration: int, progress: float) -> actor.Threads:
        """Returns the actors that go on from a state; starts them if there are none."""
        if self._threads is None or self._threads.state is not state:
            self._end_threads()
            published = self._published(state.learner, progress)
            if self._fleet is not None:
                self._fleet.warm_up(published, self._actors.local[0])
            self._threads = actor.Threads(self._actors, self._acting, state, iteration, published)
        return self._threads

    def _published(self, learner: learners.LearnerState, progress: float) -> unroll.Published:
        copied = self._copy(learner, np.float32(progress))
        return jax.tree.map(lambda x: x.addressable_data(0), copied)  # type: ignore[no-any-return]

    def _compile(self, state: tiers.State) -> None:
        """Compiles the learner's programs and those of each actor's device, once."""
        if self._is_compiled:
            return
        self._is_compiled = True
        self._tier.compile(state)
        for device in dict.fromkeys(self._actors.devices):
            self._acting.warm_up(jax.device_put(self._published(state.learner, 0.0), device), device)

    def _update_struct(self, keys: Array) -> tuple[Any, ...]:
        """Returns the arguments of the learner's program, of `jax.ShapeDtypeStruct`."""
        return self._tier.arguments(self.template(keys), 0, 1)

    def _run_again(self, failing: Any, iteration: int, total: int) -> tuple[learners.LearnerState, parallel.Metrics]:
        del iteration, total
        learned = self._tier.again(*failing)
        updates, sums = jax.device_get((learned.updates, learned.metrics))
        return learned.learner, parallel.Metrics(unroll.no_episodes(), updates, sums, {})

    def _metrics(self, measured: metrics.Measured) -> parallel.Metrics:
        counts = collections.Counter(self._threads.counted() if self._threads else {})
        # `update` keeps counts of zero, which a sum of two counters does not.
        counts.update(self._fleet.counted() if self._fleet is not None else {})
        sums = metrics.over_processes(measured.metrics(counts))
        return sums._replace(layout=sums.layout | self._tier.report())

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        """Names of the learner's metrics."""
        return tuple(jax.eval_shape(self.program, *self._update_struct(tiers.keys_struct())).metrics)


def _copy(learner: learners.LearnerState, progress: Array) -> unroll.Published:
    """Copies what actors act with, without the axis of seeds, since the learner donates its own."""
    params, updates = jax.tree.map(lambda x: x[0], (learner.params, learner.updates))
    return unroll.Published(params, updates, progress)


def _advance(state: tiers.State, learned: tiers.Learned, unrolled: Sequence[queue.Unrolled]) -> tiers.State:
    """Returns the state after an iteration that took these unrolls."""
    acting = [unroll.ActorState((), one.timestep, ()) for one in state.actors]
    for one in unrolled:
        acting[one.actor] = unroll.ActorState((), one.timestep, ())
    return state._replace(learner=learned.learner, replay=learned.replay, actors=tuple(acting), pending=())


LAYOUT = parallel.LayoutSpec(
    name="sebulba",
    summary="The Sebulba layout: actor threads play CPU environments, learners on the accelerators take their unrolls.",
    config=Config,
    make=Sebulba,
    serves=("host", "device"),
    seeds_together=False,
    axis=meshes.AXIS,
    choose_devices=choose_devices,
)
