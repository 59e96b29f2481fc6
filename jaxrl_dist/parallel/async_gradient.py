"""The asynchronous layout: workers play and send gradients, a parameter server applies them one by one.

Source: Nair et al. 2015 (Gorila); Mnih et al. 2016 (A3C).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import events as logs
from jaxrl_dist import learner as learners
from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.agents import base as agents
from jaxrl_dist.config import UsageError, setting
from jaxrl_dist.envs import base as envs
from jaxrl_dist.envs import host as hosts
from jaxrl_dist.parallel import base, crowd, gauges, learning, placement, schedules, server, worker
from jaxrl_dist.parallel import crew as crews
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.types import Array, ArrayTree

SERVES = ("device", "host")
SEEDS_TOGETHER = False
AXIS = types.LOCAL


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the layout."""

    unroll_length: int = setting(
        5, "Rows per environment behind each gradient (T).", low=1, source="Mnih et al. 2016, section 8 (t_max = 5)"
    )
    num_workers: int = setting(
        4, "Workers of the process, each with its share of the environments and of the replay.", low=1
    )
    worker_devices: str = setting(
        "", "Devices of the workers in turn, such as cpu:0 or gpu:1,gpu:2; empty takes all there are."
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
    durations: str = setting(
        "1", "Virtual schedule: time of an unroll with its gradient, by worker, repeated over all, as in 1,1,10."
    )
    jitter: float = setting(0.0, "Virtual schedule: deviation of the logarithm of each duration.", low=0.0)
    timeout_s: float = setting(60.0, "Longest step of an environment; one that takes longer is a fault.", above=0.0)


class Actors(NamedTuple):
    """Where the workers go on, one entry each: environments only where they can be saved."""

    environment: tuple[ArrayTree, ...]
    timestep: tuple[ArrayTree, ...]
    carry: tuple[ArrayTree, ...]


class State(NamedTuple):
    """Everything of a run that is not in a thread; what workers hold is there in a snapshot only, else ().

    Attributes:
        learner: `LearnerState`, leaves [1, ...].
        key: typed keys [1], constant.
        server: `server.Server`.
        actors: of each worker.
        replay: of each worker.
        pending: of each worker the gradient that has not arrived; zeros where it waits for an update.
        status: i64 [W], `crowd.FRESH`, `AT_WORK` or `WAITING`.
        numbers: i64 [W], the next unroll of each.
        schedule: f64, state of the schedule.
        replay_began: i32 [], the iteration at which the replay was empty.
    """

    learner: learners.LearnerState
    key: Array
    server: server.Server
    actors: Actors
    replay: tuple[ArrayTree, ...]
    pending: tuple[worker.Sent, ...]
    status: np.ndarray
    numbers: np.ndarray
    schedule: np.ndarray
    replay_began: np.ndarray


def make(
    config: Config,
    agent: agents.Agent,
    replay: replays.Replay,
    learner: learners.Learner,
    environment: envs.Environment | envs.HostTask,
    num_envs: int,
    mesh: Mesh,
) -> base.Layout:
    """Builds the layout; no thread starts before `run`.

    Args:
        config: settings.
        agent: acts and defines the loss.
        replay: that of one worker.
        learner: built with `types.LOCAL`.
        environment: on the device, or of a suite on the CPU.
        num_envs: environments over all workers.
        mesh: of the server's devices, from `mesh.make`.

    Raises:
        UsageError: settings that do not fit together.
    """
    layout = _AsyncGradient(config, agent, replay, learner, environment, num_envs, mesh)
    return base.Layout(
        mesh=mesh,
        rows_per_iteration=num_envs // config.num_workers * config.unroll_length,
        init=layout.init,
        template=layout.template,
        run=layout.run,
        snapshot=layout.snapshot,
        kept_failure=lambda: None,
        find_source=lambda state, iteration, total: None,
        failure_template=layout.template,
        run_failure=layout.run_failure,
        report=lambda sums, seconds: gauges.report_gradients(sums),
        summary=lambda sums: gauges.report_gradients(sums) | {"workers": config.num_workers},
        placement=layout.placement,
        close=layout.close,
        program=layout.program,
        run_arguments=layout.run_arguments,
        events=layout.take_events,
        follow=layout.follow,
    )


def choose_devices(settings: Mapping[str, Any], devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Returns the server's devices, of those there are.

    Raises:
        UsageError: a name is not that of a device.
    """
    named = settings["layout.server_devices"]
    return placement.parse("--layout.server_devices", named, devices) if named else list(devices[:1])


def replay_shards(settings: Mapping[str, Any], num_devices: int) -> int:
    """Returns the shards of a replay: one for each worker.

    Raises:
        UsageError: workers that do not divide the environments.
    """
    del num_devices
    count, num_envs = settings["layout.num_workers"], settings["env.num_envs"]
    if num_envs % count:
        valid = [n for n in range(1, num_envs + 1) if num_envs % n == 0]
        nearest = ", ".join(map(str, sorted(valid, key=lambda n: abs(n - count))[:3]))
        raise UsageError(
            f"--layout.num_workers={count} does not divide --env.num_envs={num_envs}; nearest valid: {nearest}"
        )
    return count


class _AsyncGradient:
    """The layout's programs, and the workers while it runs."""

    def __init__(
        self,
        config: Config,
        agent: agents.Agent,
        replay: replays.Replay,
        learner: learners.Learner,
        environment: envs.Environment | envs.HostTask,
        num_envs: int,
        mesh: Mesh,
    ) -> None:
        self._config, self._agent, self._learner = config, agent, learner
        self._environment, self._mesh = environment, mesh
        self._width = _check(config, agent, replay, num_envs)
        available, named = jax.local_devices(), config.worker_devices
        devices = placement.parse("--layout.worker_devices", named, available) if named else available
        self._devices = [devices[i % len(devices)] for i in range(config.num_workers)]
        self._rows = learning.rows_struct(agent, environment.spec, config.unroll_length, self._width)
        self._programs = worker.make(agent, replay, learner, environment, num_envs, config.unroll_length)
        zero = learning.zero_timestep(environment.spec, self._width)
        self._init_worker = jax.jit(worker.init_state(agent, replay, environment, zero, self._rows))
        self._judge = server.make(
            learner, config.gradients_per_apply, config.max_gradient_age, config.outlier_deviations
        )
        self.program = self._programs.on_device if self._programs.on_host is None else self._programs.learn
        self.placement = placement.table([(device, self._width) for device in self._devices], list(mesh.devices.flat))
        self._receive: Any = None
        self._crowd: crowd.Crowd | None = None
        self._workers: list[worker.Worker] = []
        self._state: State | None = None
        self._schedule: schedules.Schedule | None = None
        self._recorded: Sequence[int] | None = None
        self._log = bytearray()

    def init(self, keys: Array) -> State:
        learner = self._learner.init(self._agent.init(base.seed_keys(keys[0]).params))
        served, pending = server.init(self._gradient_struct()), self._no_pending()
        count = self._config.num_workers
        first = [self._init_worker(keys[0], self._env_ids(i)) for i in range(count)]
        states = [jax.device_put(one, device) for one, device in zip(first, self._devices, strict=True)]
        learner = jax.device_put(jax.tree.map(lambda x: x[None], learner), meshes.sharding(self._mesh, meshes.PER_SEED))
        served = jax.device_put(served, meshes.sharding(self._mesh, meshes.SHARED))
        return State(
            learner=learner,
            key=keys,
            server=served,
            actors=Actors(*zip(*(one.actors for one in states), strict=True)),
            replay=tuple(one.replay for one in states),
            pending=tuple(jax.device_put(pending, device) for device in self._devices),
            status=np.full(count, crowd.FRESH),
            numbers=np.zeros(count, np.int64),
            schedule=self._make_schedule(keys).state(),
            replay_began=np.zeros((), np.int32),
        )

    def template(self, keys: Array) -> State:
        count = self._config.num_workers

        def on_workers(entry: ArrayTree) -> tuple[ArrayTree, ...]:
            places = map(jax.sharding.SingleDeviceSharding, self._devices)
            return tuple(
                jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), entry)  # noqa: B023
                for place in places
            )

        one = self._worker_struct()
        learner = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), self._learner_struct())
        return State(
            learner=meshes.placed(self._mesh, meshes.PER_SEED, learner),
            key=meshes.placed(self._mesh, meshes.PER_SEED, keys),
            server=meshes.placed(self._mesh, meshes.SHARED, jax.eval_shape(server.init, self._gradient_struct())),
            actors=Actors(*map(on_workers, one.actors)),
            replay=on_workers(one.replay),
            pending=on_workers(jax.eval_shape(self._no_pending)),
            status=np.zeros(count, np.int64),
            numbers=np.zeros(count, np.int64),
            schedule=np.zeros(count + 1),
            replay_began=np.zeros((), np.int32),
        )

    def run(
        self, state: State, iteration: int, count: int, total: int, stopped: Callable[[], bool] = base.never
    ) -> tuple[State, base.Metrics]:
        if self._crowd is None or self._state is not state:
            self.close()
            self._start(state, iteration / total)
        threads = self._crowd
        assert threads is not None

        def check() -> None:
            if stopped():
                raise _Stop

        if not count:
            threads.warm(check)
        for i in range(iteration, iteration + count):
            try:
                threads.event(i, total, check)
            except Exception as end:
                fault = None if isinstance(end, _Stop) else end
                raise base.Interrupted(self._light(state), self._metrics(), i - iteration, fault) from None
        return self._light(state), self._metrics()

    def snapshot(self, state: State) -> State:
        if state.pending:
            return state
        threads = self._crowd
        assert threads is not None and self._schedule is not None
        sent, status = threads.rest()
        pending = [self._no_pending() if one is None else one for one in sent]
        states = [one.state for one in self._workers]
        return state._replace(
            actors=Actors(*zip(*(one.actors for one in states), strict=True)),
            replay=tuple(one.replay for one in states),
            pending=tuple(jax.device_put(one, device) for one, device in zip(pending, self._devices, strict=True)),
            status=np.asarray(status),
            numbers=np.asarray([one.number for one in self._workers]),
            schedule=self._schedule.state(),
        )

    def run_failure(self, saved: State, iteration: int, total: int) -> tuple[learners.LearnerState, base.Metrics]:
        state, metrics = self.run(saved, iteration, 1, total)
        return state.learner, metrics

    def run_arguments(self, state: State, iteration: int, count: int, total: int) -> tuple[Any, ...]:
        del count
        learner = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state.learner)
        return self._program_arguments(learner, iteration / total)

    def _program_arguments(self, learner: Any, progress: float) -> tuple[Any, ...]:
        held = worker.Held(learner.params, learner.target_network, learner.updates, np.float32(progress))
        key = jax.eval_shape(lambda: jax.random.key(0))
        common, one = (held, key, np.int32(0), np.asarray(True)), self._worker_struct()
        if self._programs.on_host is None:
            return (*common, jax.ShapeDtypeStruct((self._width,), np.int32), one)
        return (*common, self._rows, one.replay)

    def take_events(self) -> bytes:
        taken, self._log = bytes(self._log), bytearray()
        return taken

    def follow(self, workers: Sequence[int]) -> None:
        self.close()
        self._recorded = workers

    def close(self) -> None:
        if self._crowd is not None:
            self._crowd.close()
        self._crowd, self._state = None, None

    def _start(self, state: State, progress: float) -> None:
        """Puts workers to work where a state leaves them."""
        self._schedule = self._make_schedule(state.key)
        self._schedule.load(np.asarray(state.schedule))
        key = base.seed_keys(state.key[0])
        self._workers = []
        for index, device in enumerate(self._devices):
            actors = unrolls.ActorState(*(part[index] for part in state.actors))
            make = None
            if isinstance(self._environment, envs.HostTask):
                actors = self._reborn(actors, int(state.numbers[index]))
                make = self._maker(self._environment, key.environment, index, int(state.numbers.sum()))
            self._workers.append(
                worker.Worker(
                    self._programs,
                    device,
                    jax.random.fold_in(key.training, index),
                    self._env_ids(index),
                    worker.State(actors, state.replay[index]),
                    int(state.numbers[index]),
                    self._config.unroll_length,
                    make,
                    len(self._devices) == 1,
                )
            )
        learner = jax.tree.map(lambda x: x[0], state.learner)
        if self._receive is None:
            self._receive = server.make_receive(self._judge, self._mesh, learner)
        learner = jax.device_put(learner, jax.tree.map(lambda x: server.sharding(self._mesh, x), learner))
        at_once = self._config.gradients_per_apply == 1
        self._crowd = crowd.Crowd(self._workers, self._schedule, self._receive, learner, state.server, at_once)
        for index, status in enumerate(state.status):
            if status == crowd.FRESH:
                self._crowd.answer(index, progress)
            elif status == crowd.WAITING:
                self._crowd.waiting.append(index)
            else:
                self._crowd.resume(index, state.pending[index])

    def _light(self, state: State) -> State:
        """Returns the state while workers are at work."""
        threads = self._crowd
        assert threads is not None
        where = meshes.sharding(self._mesh, meshes.PER_SEED)
        learner = jax.device_put(jax.tree.map(lambda x: x[None], threads.learner), where)
        none: Any = ()
        self._state = state._replace(
            learner=learner, server=threads.served, actors=Actors(none, none, none), replay=(), pending=()
        )
        return self._state

    def _reborn(self, actors: unrolls.ActorState, number: int) -> unrolls.ActorState:
        timestep: Any = crews.ended(jax.tree.map(np.asarray, actors.timestep)) if number else ()
        return actors._replace(timestep=timestep)

    def _maker(self, task: envs.HostTask, key: Array, index: int, played: int) -> Callable[[], envs.HostEnvironment]:
        """Returns what makes a worker's environments; a resumed run plays others than before."""
        seed = int(jax.random.bits(key, dtype=np.uint32))
        seeds = hosts.seeds(seed, "training 0", played, index * self._width, self._width)
        return lambda: task.make(seeds, self._width, self._config.timeout_s)

    def _make_schedule(self, keys: Array) -> schedules.Schedule:
        config = self._config
        if self._recorded is not None:
            return schedules.Recorded(self._recorded, config.num_workers)
        seed = int(jax.random.bits(base.seed_keys(keys[0]).training, dtype=np.uint32))
        return schedules.make(config.schedule, config.num_workers, config.durations, config.jitter, seed)

    def _env_ids(self, index: int) -> np.ndarray:
        return np.arange(index * self._width, (index + 1) * self._width, dtype=np.int32)

    def _learner_struct(self) -> Any:
        return jax.eval_shape(lambda: self._learner.init(self._agent.init(jax.random.key(0))))

    def _worker_struct(self) -> worker.State:
        return jax.eval_shape(self._init_worker, jax.random.key(0), self._env_ids(0))

    def _gradient_struct(self) -> learners.Gradient:
        return jax.eval_shape(self.program, *self._program_arguments(self._learner_struct(), 0.0))[1]

    def _no_pending(self) -> worker.Sent:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._gradient_struct())
        return worker.Sent(zeros, jax.tree.map(jnp.asarray, unrolls.no_episodes()), jnp.zeros((), jnp.int32))

    def _metrics(self) -> base.Metrics:
        """Returns the sums of the events since the last call, and logs these."""
        assert self._crowd is not None
        events = self._crowd.take()
        for event in events:
            age, *flags = event.verdict
            self._log += logs.encode(event.worker, int(age), [bool(flag) for flag in flags])
        return gauges.gradients(events, self._metric_names)

    @functools.cached_property
    def _metric_names(self) -> tuple[str, ...]:
        gradient, learner = self._gradient_struct(), self._learner_struct()
        arguments = (learner, jax.eval_shape(server.init, gradient), gradient, np.int32(0), np.float32(0))
        return tuple(sorted(jax.eval_shape(self._judge, *arguments)[3]))


class _Stop(Exception):  # noqa: N818
    """A stop was asked for."""


def _check(config: Config, agent: agents.Agent, replay: replays.Replay, num_envs: int) -> int:
    """Returns the environments of a worker.

    Raises:
        UsageError: settings that do not fit together.
    """
    count = config.num_workers
    if config.gradients_per_apply > count:
        raise UsageError(
            f"--layout.gradients_per_apply={config.gradients_per_apply}: there are {count} workers, and each sends its "
            f"next gradient when its last is applied; nearest valid: {count}"
        )
    if replay.host:
        raise UsageError("--replay.storage=host: workers keep their replays on their devices; valid: device")
    if replay.updates[0] != replay.updates[1]:
        wanted = replay.updates[1] / replay.updates[0]
        raise UsageError(
            f"async_gradient takes one gradient per unroll, these settings {1 / wanted:g}; multiply "
            f"--replay.samples_per_insert by {wanted:g}"
        )
    if config.schedule == "virtual":
        schedules.parse_durations(config.durations, count)
    if not server.no_statistics(jax.eval_shape(agent.init, jax.random.key(0))):
        raise UsageError(
            "async_gradient keeps no running statistics; valid: --agent.normalise_observations=false "
            "--agent.scale_rewards=false"
        )
    return num_envs // count
