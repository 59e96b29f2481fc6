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

from jaxrl_dist import parallel, types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import placement
from jaxrl_dist.parallel.async_gradient import dispatcher, schedules, server, shared_replay, worker
from jaxrl_dist.parallel.async_gradient import metrics as async_metrics
from jaxrl_dist.parallel.async_gradient import plan as plans
from jaxrl_dist.parallel.async_gradient import snapshot as async_snapshot
from jaxrl_dist.parallel.async_gradient.snapshot import Running, State
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
        4, "Workers of the process, which take gradients, and also play unless there are separate actors.", low=1
    )
    num_actors: int = setting(
        0,
        "Separate actors, whose rows the workers then only learn from; 0: every worker plays for itself (bundled).",
        low=0,
        source="Nair et al. 2015, section 4 (bundled mode; n actors and m learners)",
    )
    replay: str = setting(
        "local",
        "Where rows for gradients are kept: in a replay of each worker or actor (local), or in one for all (global).",
        choices=("local", "global"),
        source="Nair et al. 2015, section 4 (local and global replay memory)",
    )
    exchange: str = setting(
        "unroll",
        "When a worker sends a gradient and takes new parameters: after each unroll, or only after one in which an "
        "episode of its environments ended, with the sum of its gradients since the last time.",
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
        "Order of the gradients: each worker in turn; as they come (free), which is recorded so that a run can be "
        "repeated; or as they would come if workers took `durations` (virtual).",
        choices=("round_robin", "free", "virtual"),
    )
    gradients_per_apply: int = setting(
        1, "Gradients that make an update; as many as there are workers make learning synchronous.", low=1
    )
    max_gradient_age: int = setting(
        -1,
        "Largest age of a gradient, in updates since its parameters; older ones are dropped. -1 for no limit.",
        low=-1,
        source="Nair et al. 2015, section 4 (too old gradients are dropped)",
    )
    outlier_deviations: float = setting(
        0.0,
        "A gradient is dropped if its loss is more than so many running deviations above the running mean; 0 is off.",
        low=0.0,
        source="Nair et al. 2015, section 4 (outlier losses are dropped)",
    )
    kept_versions: int = setting(
        0,
        "Versions of the server that are kept, and saved with checkpoints: it goes back to the oldest if one gradient "
        "after another is not finite, or to any by the command rollback.",
        low=0,
        high=64,
    )
    kept_every: int = setting(1, "Updates from one kept version to the next.", low=1)
    durations: str = setting(
        "1",
        "Virtual schedule: time that each actor takes for an unroll, then each worker for a gradient, as in 1,1,10; "
        "further ones begin from the first number again.",
    )
    jitter: float = setting(0.0, "Virtual schedule: standard deviation of the logarithm of each duration.", low=0.0)
    timeout_s: float = setting(60.0, "Longest step of an environment; one that takes longer is a fault.", above=0.0)


def choose_devices(settings: Mapping[str, Any], devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Chooses from the given devices those of the server.

    Raises:
        UsageError: a name is not that of a device.
    """
    named = settings["layout.server_devices"]
    return placement.parse("layout.server_devices", named, devices) if named else list(devices[:1])


class AsyncGradient(parallel.Layout):
    """Runs the members and the server of a run; made of `parallel.LayoutParts`.

    Raises:
        UsageError: settings that do not fit together.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        parallel.check_goes_on(parts, "async_gradient")
        self.plan = plan = plans.Plan(parts)
        self.mesh, self.rows_per_iteration = parts.mesh, plan.width * parts.config.unroll_length
        roles = [(one, plan.role(index)) for index, one in enumerate(plan.devices)]
        self.placement = placement.table([*roles, *((one, "server") for one in parts.mesh.devices.flat)])
        self.program = plan.learning[0]
        self.diagnosis = parallel.Diagnosis(self.template, self.run_again)
        self.events = parallel.EventLog(
            take=self._take_events,
            count=lambda state: int(state.events),
            follow=self._follow,
            roll_back=async_snapshot.roll_back,
        )
        self._step = functools.partial(server.step, parts.learner, parts.config)
        self._server = server.ParameterServer(parts.config, self._step, parts.mesh)
        self._replay = shared_replay.SharedReplay(plan) if plan.num_rings else None
        self._dispatcher: dispatcher.Dispatcher | None = None
        self._running: Running | None = None
        self._recorded: Sequence[int] | None = None
        self._log = bytearray()

    def init(self, keys: Array) -> State:
        return async_snapshot.init(self.plan, keys, self._make_schedule(keys).state)

    def template(self, keys: Array) -> State:
        return async_snapshot.template(self.plan, keys)

    def run(
        self, state: Any, iteration: int, count: int, total: int, stopped: Callable[[], bool] = parallel.never
    ) -> tuple[Running, parallel.Metrics]:
        if self._dispatcher is None or self._running is not state:
            self.close()
            self._dispatcher = self._start(state, iteration, total)
        threads = self._dispatcher

        def check() -> None:
            if stopped():
                raise parallel.Stop

        if not count:
            threads.warm(check)
        ended, finished = None, 0
        try:
            while finished < count:
                threads.iterate(iteration + finished, total, check)
                finished += 1
        except Exception as error:
            ended = error
        metrics, broken = self._metrics(threads)
        learner, events = self._server.saved(self._server.learner), np.asarray(threads.events)
        self._running = Running(learner, state.key, events, state.replay_began)
        if ended is not None or broken is not None:
            fault = broken if ended is None or isinstance(ended, parallel.Stop) else ended
            raise parallel.Interrupted(self._running, metrics, finished, fault)
        return self._running, metrics

    def snapshot(self, state: Any) -> State:
        if self._dispatcher is None or self._running is None or self._running is not state:
            return state  # type: ignore[no-any-return]
        return async_snapshot.snapshot(self.plan, self._running, self._dispatcher)

    def run_arguments(self, state: Any, iteration: int, count: int, total: int) -> tuple[Any, ...]:
        del state, iteration, count, total
        return self.plan.learning[1]

    def start_from(self, state: State, learner: learners.LearnerState) -> State:
        return state._replace(learner=learner, versions=(learner,) * len(state.versions))

    def report(
        self, sums: Mapping[str, np.ndarray], recent: Mapping[str, np.ndarray], seconds: float
    ) -> dict[str, Any]:
        del recent, seconds
        return async_metrics.report(sums)

    def summary(self, sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return async_metrics.summary(sums, self.plan.parts.config.num_workers)

    def close(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close()
        self._dispatcher, self._running = None, None

    def _take_events(self) -> bytes:
        taken, self._log = bytes(self._log), bytearray()
        return taken

    def _follow(self, workers: Sequence[int]) -> None:
        self.close()
        self._recorded = workers

    def _start(self, state: State, iteration: int, total: int) -> dispatcher.Dispatcher:
        """Puts the members to work where a state leaves them."""
        schedule = self._make_schedule(state.key)
        schedule.state = np.array(state.schedule)
        self._server.load(state.learner, state.server, state.versions, int(state.broken))
        if self._replay is not None:
            counts = np.asarray(state.counts)
            # A replay that was not saved is filled again from the start.
            was_saved = int(state.replay_began) != iteration
            self._replay.load(state.replay, counts if was_saved else np.zeros_like(counts))
        workers = [worker.Worker(self.plan, state, index) for index in range(self.plan.members)]
        threads = dispatcher.Dispatcher(workers, schedule, self._server, self._replay, int(state.events))
        threads.go_on(np.asarray(state.status).tolist(), state.pending, iteration / total)
        return threads

    def _make_schedule(self, keys: Array) -> schedules.Schedule:
        """Makes the schedule of the settings, or the recorded one, at its beginning."""
        if self._recorded is not None:
            return schedules.Recorded(self._recorded, self.plan.members)
        seed = int(jax.random.bits(run_keys.seed_keys(keys[0]).training, dtype=np.uint32))
        return schedules.make(self.plan.parts.config, self.plan.members, seed)

    def _metrics(self, threads: dispatcher.Dispatcher) -> tuple[parallel.Metrics, FloatingPointError | None]:
        """Logs the events since the last call; returns their sums, and the fault among them or None."""
        events, rollbacks, fault = threads.take()
        for event in events:
            self._log += logs.encode(event.worker, int(event.verdict.age), [bool(flag) for flag in event.verdict[1:]])
        return async_metrics.gradients(events, rollbacks, self._metric_names), fault

    @functools.cached_property
    def _metric_names(self) -> tuple[str, ...]:
        gradient, learner = self.plan.gradient_struct, self.plan.learner_struct
        arguments = (learner, jax.eval_shape(server.init, gradient), gradient, np.int32(0), jnp.float32(0))
        return tuple(sorted(jax.eval_shape(self._step, *arguments)[3]))


LAYOUT = parallel.LayoutSpec(
    name="async_gradient",
    summary="The asynchronous layout: workers play and send gradients, a parameter server applies them one by one.",
    config=Config,
    make=AsyncGradient,
    serves=("device", "host"),
    seeds_together=False,
    axis=types.LOCAL,
    choose_devices=choose_devices,
    replay_shards=plans.replay_shards,
)
