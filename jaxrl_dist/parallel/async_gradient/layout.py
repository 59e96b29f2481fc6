"""The asynchronous layout: workers play and send gradients, a parameter server applies them one by one.

Source: Nair et al. 2015 (Gorila); Mnih et al. 2016 (A3C).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, parallel, types
from jaxrl_dist.envs.host import episodes
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import placement
from jaxrl_dist.parallel.async_gradient import dispatcher, schedules, server, shared_replay, worker
from jaxrl_dist.parallel.async_gradient import metrics as async_metrics
from jaxrl_dist.parallel.async_gradient import plan as plans
from jaxrl_dist.parallel.async_gradient import snapshot as async_snapshot
from jaxrl_dist.parallel.async_gradient.snapshot import Actors, State
from jaxrl_dist.parallel.sebulba import actors as acting
from jaxrl_dist.runs import events as logs
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the layout."""

    unroll_length: int = setting(
        5, "Rows per environment behind each gradient (T).", low=1, source="Mnih et al. 2016, section 8 (t_max = 5)"
    )
    num_workers: int = setting(
        4, "Workers of the process, which take gradients, and play where there are no actors apart.", low=1
    )
    num_actors: int = setting(
        0,
        "Actors apart from the workers, which then learn only, from what actors play; 0 has every worker play "
        "(bundled).",
        low=0,
        source="Nair et al. 2015, section 4 (bundled mode; n actors and m learners)",
    )
    replay: str = setting(
        "local",
        "Whose rows a gradient is of: a replay of each worker or actor (local), or one for all (global).",
        choices=("local", "global"),
        source="Nair et al. 2015, section 4 (local and global replay memory)",
    )
    exchange: str = setting(
        "unroll",
        "When a worker sends its gradient and takes new parameters: after each unroll, or after each in which one of "
        "its environments ended an episode, with the sum of its gradients since.",
        choices=("unroll", "episode"),
    )
    worker_devices: str = setting(
        "", "Devices of actors and workers in turn, such as cpu:0 or gpu:1,gpu:2; empty takes all there are."
    )
    server_devices: str = setting(
        "", "Devices over which the server's state is spread, such as gpu:0,gpu:1; empty takes the first."
    )
    schedule: str = setting(
        "round_robin",
        "Order of the gradients: each worker in turn; as they come (free), recorded so that it can be repeated; or as "
        "they would come if workers took `durations` (virtual).",
        choices=("round_robin", "free", "virtual"),
    )
    gradients_per_apply: int = setting(
        1, "Gradients that make an update; as many as workers are synchronous learning.", low=1
    )
    max_gradient_age: int = setting(
        -1,
        "Updates since its parameters above which a gradient is dropped; -1 for no limit.",
        low=-1,
        source="Nair et al. 2015, section 4 (too old gradients are dropped)",
    )
    outlier_deviations: float = setting(
        0.0,
        "Running deviations above the running mean from which a loss is an outlier and its gradient dropped; 0 is off.",
        low=0.0,
        source="Nair et al. 2015, section 4 (outlier losses are dropped)",
    )
    kept_versions: int = setting(
        0,
        "Versions of the server that are kept, and saved with checkpoints: it goes back to the oldest where gradients "
        "go on being not finite, or to any by `scripts/rollback.py`.",
        low=0,
        high=64,
    )
    kept_every: int = setting(1, "Updates from one kept version to the next.", low=1)
    durations: str = setting(
        "1",
        "Virtual schedule: time of an unroll or a gradient, by member, actors first, repeated over all, as in 1,1,10.",
    )
    jitter: float = setting(0.0, "Virtual schedule: deviation of the logarithm of each duration.", low=0.0)
    timeout_s: float = setting(60.0, "Longest step of an environment; one that takes longer is a fault.", above=0.0)


def choose_devices(settings: Mapping[str, Any], devices: Sequence[jax.Device], keeps_rows: bool) -> list[jax.Device]:
    """Returns the server's devices, of those there are.

    Raises:
        UsageError: a name is not that of a device.
    """
    named = settings["layout.server_devices"]
    return placement.parse("--layout.server_devices", named, devices) if named else list(devices[:1])


def replay_shards(settings: Mapping[str, Any], num_devices: int) -> int:
    """Returns the shards of a replay: one for each that plays, or one for all.

    Raises:
        UsageError: workers that do not divide the environments.
    """
    del num_devices
    return plans.replay_shards(settings)


class AsyncGradient(parallel.Layout):
    """Runs the workers and the server of a run; made of `parallel.LayoutParts`.

    Raises:
        UsageError: settings that do not fit together.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        self.plan = plan = plans.make(*parts)
        self.mesh, self.rows_per_iteration = parts.mesh, plan.width * parts.config.unroll_length
        self.placement = placement.table([(one, plan.width) for one in plan.devices], list(parts.mesh.devices.flat))
        self.program = plan.program()[0]
        self.diagnosis = parallel.Diagnosis(self.template, self._run_again)
        self.events = parallel.EventLog(
            take=self._take_events,
            count=lambda state: int(state.events),
            follow=self._follow,
            roll_back=async_snapshot.roll_back,
        )
        self._receive: Any = None
        self._crowd: dispatcher.Crowd | None = None
        self._workers: list[worker.Worker] = []
        self._state: State | None = None
        self._schedule: schedules.Schedule | None = None
        self._recorded: Sequence[int] | None = None
        self._log = bytearray()

    def init(self, keys: Array) -> State:
        return async_snapshot.init(self.plan, keys, make_schedule(self.plan, keys, self._recorded).state())

    def template(self, keys: Array) -> State:
        return async_snapshot.template(self.plan, keys)

    def run(
        self, state: State, iteration: int, count: int, total: int, stopped: Callable[[], bool] = parallel.never
    ) -> tuple[State, parallel.Metrics]:
        if self._crowd is None or self._state is not state:
            self.close()
            self._start(state, iteration, total)
        threads = self._crowd
        assert threads is not None

        def check() -> None:
            if stopped():
                raise _Stop

        if not count:
            threads.warm(check)
        for i in range(iteration, iteration + count):
            try:
                threads.iterate(i, total, check)
            except Exception as end:
                metrics, broken = self._metrics()
                fault = broken if isinstance(end, _Stop) else end
                raise parallel.Interrupted(self._light(state), metrics, i - iteration, fault) from None
        metrics, broken = self._metrics()
        if broken is not None:
            raise parallel.Interrupted(self._light(state), metrics, count, broken)
        return self._light(state), metrics

    def snapshot(self, state: State) -> State:
        if state.pending:
            return state
        assert self._crowd is not None and self._schedule is not None
        return async_snapshot.snapshot(self.plan, state, self._crowd, self._workers, self._schedule)

    def run_arguments(self, state: State, iteration: int, count: int, total: int) -> tuple[Any, ...]:
        del state, iteration, count, total
        return self.plan.program()[1]

    def start_from(self, state: State, learner: learners.LearnerState) -> State:
        return async_snapshot.start_from(state, learner)

    def report(self, sums: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
        del seconds
        return async_metrics.report(sums)

    def summary(self, sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return async_metrics.summary(sums, self.plan.config.num_workers)

    def close(self) -> None:
        if self._crowd is not None:
            self._crowd.close()
        self._crowd, self._state = None, None

    def _run_again(self, saved: State, iteration: int, total: int) -> tuple[learners.LearnerState, parallel.Metrics]:
        state, metrics = self.run(saved, iteration, 1, total)
        return state.learner, metrics

    def _take_events(self) -> bytes:
        taken, self._log = bytes(self._log), bytearray()
        return taken

    def _follow(self, workers: Sequence[int]) -> None:
        self.close()
        self._recorded = workers

    def _start(self, state: State, iteration: int, total: int) -> None:
        """Puts workers to work where a state leaves them."""
        plan = self.plan
        self._schedule = make_schedule(plan, state.key, self._recorded)
        self._schedule.load(np.asarray(state.schedule))
        self._workers = [make_worker(plan, state, index) for index in range(plan.members)]
        learner, *versions = (jax.tree.map(lambda x: x[0], one) for one in (state.learner, *state.versions))
        where = jax.tree.map(lambda x: server.sharding(plan.mesh, x), learner)
        if self._receive is None:
            self._receive = server.make_receive(plan.judge, plan.mesh, learner)
        self._crowd = threads = dispatcher.Crowd(
            self._workers,
            self._schedule,
            self._receive,
            jax.device_put(learner, where),
            state.server,
            plan.config.gradients_per_apply == 1,
            server.Versions([jax.device_put(one, where) for one in versions], plan.config.kept_every),
            make_store(plan, state, iteration),
            int(state.events),
        )
        status = [int(one) for one in state.status]
        threads.waiting = [index for index, one in enumerate(status) if one == dispatcher.WAITING]
        threads.broken = int(state.broken)
        threads.held_back = {index for index, one in enumerate(status) if one == dispatcher.HELD_BACK}
        for index, one in enumerate(status):
            if one == dispatcher.FRESH:
                threads.answer(index, iteration / total)
            elif one == dispatcher.AT_WORK:
                threads.resume(index, state.pending[index])

    def _light(self, state: State) -> State:
        """Returns the state while workers are at work."""
        threads = self._crowd
        assert threads is not None
        where = meshes.sharding(self.plan.mesh, meshes.PER_SEED)
        learner = jax.device_put(jax.tree.map(lambda x: x[None], threads.learner), where)
        none: Any = ()
        self._state = state._replace(
            learner=learner,
            server=threads.served,
            actors=Actors(none, none, none),
            replay=(),
            kept=(),
            pending=(),
            versions=(),
            events=np.asarray(threads.events),
        )
        return self._state

    def _metrics(self) -> tuple[parallel.Metrics, FloatingPointError | None]:
        """Returns the sums of the events since the last call, and a fault among these; logs them."""
        assert self._crowd is not None
        events, rollbacks, fault = self._crowd.take()
        for event in events:
            age, *flags = event.verdict or (0,)
            self._log += logs.encode(event.worker, int(age), [bool(flag) for flag in flags])
        return async_metrics.gradients(events, rollbacks, self._metric_names), fault

    @functools.cached_property
    def _metric_names(self) -> tuple[str, ...]:
        gradient, learner = self.plan.gradient_struct(), self.plan.learner_struct()
        arguments = (learner, jax.eval_shape(server.init, gradient), gradient, np.int32(0), jnp.float32(0))
        return tuple(sorted(jax.eval_shape(self.plan.judge, *arguments)[3]))


class _Stop(Exception):  # noqa: N818
    """A stop was asked for."""


LAYOUT = parallel.LayoutSpec(
    name="async_gradient",
    summary="The asynchronous layout: workers play and send gradients, a parameter server applies them one by one.",
    config=Config,
    make=AsyncGradient,
    serves=("device", "host"),
    seeds_together=False,
    axis=types.LOCAL,
    choose_devices=choose_devices,
    replay_shards=replay_shards,
)


def make_worker(plan: plans.Plan, state: State, index: int) -> worker.Worker:
    """Makes an actor or a worker that goes on where a state leaves it, in environments of its own."""
    key = run_keys.seed_keys(state.key[0])
    fields: Any = state.actors
    actors: Any = Actors(*(part[index] for part in fields)) if plan.plays(index) else ()
    make = None
    if plan.plays(index) and isinstance(plan.environment, envs.HostTask):
        actors = _reborn(actors, int(state.numbers[index]))
        make = _maker(plan, plan.environment, key.environment, index, int(state.numbers.sum()))
    role = worker.Role(
        device=plan.devices[index],
        # Acting and learning take other parts of a key, so a learner apart has that of the actor of its number.
        key=jax.random.fold_in(key.training, index if plan.plays(index) else index - plan.players),
        env_ids=plan.env_ids(index) if plan.plays(index) else None,
        make_environment=make,
        nothing=jax.device_put(plan.nothing(index), plan.devices[index]),
        learns=plan.learns(index),
        shares=bool(plan.num_rings),
        is_alone=plan.members == 1,
    )
    own: Any = () if plan.num_rings else state.replay[index]
    before = worker.State(actors, own, state.kept[index])
    return worker.Worker(plan.programs, role, before, int(state.numbers[index]), plan.config.unroll_length)


def make_store(plan: plans.Plan, state: State, iteration: int) -> shared_replay.Store | None:
    """Makes what holds the replays of all, where they are shared."""
    if not plan.num_rings:
        return None
    counts = np.asarray(state.counts)
    if int(state.replay_began) == iteration:
        # The replay was not saved: it fills anew.
        counts = np.zeros_like(counts)
    return shared_replay.Store(plan.rings, plan.rate(), state.replay, counts[:-1], int(counts[-1]), plan.width)


def make_schedule(plan: plans.Plan, keys: Array, recorded: Sequence[int] | None) -> schedules.Schedule:
    """Makes the order of the gradients, at its beginning: that of the settings, or the one that was recorded."""
    config, members = plan.config, plan.members
    if recorded is not None:
        return schedules.Recorded(recorded, members)
    seed = int(jax.random.bits(run_keys.seed_keys(keys[0]).training, dtype=np.uint32))
    return schedules.make(config.schedule, members, config.durations, config.jitter, seed)


def _reborn(actors: Actors, number: int) -> Actors:
    """Ends the episodes of environments that are made anew."""
    timestep: Any = acting.ended(jax.tree.map(np.asarray, actors.timestep)) if number else ()
    return actors._replace(timestep=timestep)


def _maker(
    plan: plans.Plan, task: envs.HostTask, key: Array, index: int, played: int
) -> Callable[[], envs.HostEnvironment]:
    """Returns what makes a worker's environments; a resumed run plays others than before."""
    width = plan.width
    seed = int(jax.random.bits(key, dtype=np.uint32))
    seeds = episodes.seeds(seed, "training 0", played, index * width, width)
    return lambda: task.make(seeds, width, plan.config.timeout_s)
