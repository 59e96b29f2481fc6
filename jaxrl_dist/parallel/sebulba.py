"""The Sebulba layout: actor threads play CPU environments, learners on the accelerators take their unrolls.

Source: Hessel et al. 2021, "Podracer architectures for scalable reinforcement learning"; the exact policy lag as in
Huang et al. 2023, "Cleanba".
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import learner as learners
from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.agents import base as agents
from jaxrl_dist.config import UsageError, setting
from jaxrl_dist.envs import as_host
from jaxrl_dist.envs import base as envs
from jaxrl_dist.envs import host as hosts
from jaxrl_dist.parallel import actor as actors
from jaxrl_dist.parallel import base, channels, gauges, learning, placement
from jaxrl_dist.parallel import crew as crews
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.types import Array, ArrayTree

SERVES = ("host", "device")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the layout."""

    unroll_length: int = setting(
        128, "Rows per environment between updates (T).", low=1, source="Schulman et al. 2017, table 5"
    )
    num_actors: int = setting(
        0,
        "Actor threads of a process, each with its share of the environments; 0 makes two where that divides: one acts "
        "while the other's environments step.",
        low=0,
    )
    actor_devices: str = setting(
        "", "Devices of the actors in turn, such as cpu:0 or gpu:0,gpu:1; empty takes all there are."
    )
    learner_devices: str = setting(
        "", "Devices of the learner, such as gpu:2,gpu:3; empty takes all accelerators, or the first CPU."
    )
    policy_lag: str = setting(
        "1",
        "Versions by which the acting policy is behind: a number makes it exact, so that runs on environments that can "
        "be saved repeat bit by bit; free lets actors take the newest, and the learner whichever unrolls come first.",
        source="Huang et al. 2023 (Cleanba), section 3",
    )
    timeout_s: float = setting(60.0, "Longest step of an environment; one that takes longer is a fault.", above=0.0)
    max_actor_restarts: int = setting(
        0, "Actors that may be started anew after a fault; the next fault ends the run.", low=0, tag="tunable"
    )


class Actors(NamedTuple):
    """Where the actors of this process go on, one entry each: environments and carries only where they are saveable."""

    environment: tuple[ArrayTree, ...]
    timestep: tuple[types.TimeStep, ...]
    carry: tuple[ArrayTree, ...]


class Pending(NamedTuple):
    """An unroll that waits for the learner, and the sums of its episodes."""

    unroll: types.Unroll
    episodes: unrolls.EpisodeSums


class State(NamedTuple):
    """Everything of a run that is not in a thread.

    Attributes:
        learner: `LearnerState`, leaves [1, ...].
        key: typed keys [1], constant.
        actors: as of the last finished iteration, or, in a snapshot of what can be saved, after all of `pending`.
        replay: leaves [1, B, ...].
        pending: in such a snapshot, for each actor what the learner has not taken.
    """

    learner: learners.LearnerState
    key: Array
    actors: Actors
    replay: ArrayTree
    pending: tuple[tuple[Pending, ...], ...]


class Failing(NamedTuple):
    """What an update that went wrong began with; the replay holds its unrolls already, unless it is `latest`."""

    learner: learners.LearnerState
    key: Array
    replay: ArrayTree
    unrolls: tuple[types.Unroll, ...]
    blocks: Any


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
        replay: one shard of it.
        learner: built with `mesh.AXIS`.
        environment: on the device, then stepped through `as_host`; or of a suite on the CPU.
        num_envs: environments over all actors of all processes.
        mesh: of the learner's devices, from `mesh.make`.

    Raises:
        UsageError: several seeds, actors that do not divide the environments, unknown devices, or a policy lag that the
            agent cannot bear.
    """
    layout = _Sebulba(config, agent, replay, learner, environment, num_envs, mesh)
    return base.Layout(
        mesh=mesh,
        rows_per_iteration=num_envs * config.unroll_length,
        init=layout.init,
        template=layout.template,
        run=layout.run,
        snapshot=layout.snapshot,
        kept_failure=lambda: layout.failure,
        find_source=lambda state, iteration, total: None,
        failure_template=layout.failure_template,
        run_failure=layout.run_failure,
        report=layout.report,
        placement=layout.placement,
        close=layout.close,
        program=layout.program,
        run_arguments=layout.run_arguments,
    )


def choose_devices(settings: Mapping[str, Any], devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Returns the learner's devices, of those there are.

    Raises:
        UsageError: a name is not that of a device.
    """
    if settings["layout.learner_devices"]:
        return placement.parse("--layout.learner_devices", settings["layout.learner_devices"], devices)
    return [devices[0]] if devices[0].platform == "cpu" else list(devices)


class _Sebulba:
    """The layout's programs, and the threads while it runs."""

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
        self._config, self._agent, self._environment, self._mesh = config, agent, environment, mesh
        self._lag = _parse_lag(config.policy_lag, agent.staleness)
        self._num_actors = _count_actors(config, num_envs, mesh)
        self._width = num_envs // (self._num_actors * jax.process_count())
        self._replayable = self._lag is not None and isinstance(environment, envs.Environment)
        local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
        named = config.actor_devices
        available = jax.local_devices() if local[0].platform == "cpu" else local
        devices = placement.parse("--layout.actor_devices", named, available) if named else available
        self._actor_devices = [devices[i % len(devices)] for i in range(self._num_actors)]
        self._local = local
        self.placement = placement.table([(device, self._width) for device in self._actor_devices], local)
        self._programs = learning.make(
            agent, replay, learner, environment.spec, num_envs, self._num_actors, config.unroll_length, mesh
        )
        self._unroll = unrolls.host_unroll(agent, num_envs, config.unroll_length, len(local))
        self._learn: Any = None
        self._running: _Running | None = None
        self.failure: base.Failure | None = None
        self.program = self._programs.learn

    def init(self, keys: Array) -> State:
        if keys.shape[0] != 1:
            raise UsageError(f"--num_seeds={keys.shape[0]}: sebulba trains one seed; scripts/study.py runs several")
        keys = jax.device_put(keys, meshes.sharding(self._mesh, meshes.PER_SEED))
        learner_state, replay_state = self._programs.init(keys)
        timesteps = (learning.zero_timestep(self._environment.spec, self._width),) * self._num_actors
        return State(learner_state, keys, Actors((), timesteps, ()), replay_state, ())

    def template(self, keys: Array) -> State:
        mesh = self._mesh
        learner_state, replay_state = jax.eval_shape(self._programs.init, keys)
        timestep = jax.eval_shape(lambda: learning.zero_timestep(self._environment.spec, self._width))
        acting = Actors((), (timestep,) * self._num_actors, ())
        pending: Any = ()
        if self._lag is not None and isinstance(self._environment, envs.Environment):
            saved = as_host.saved_struct(self._environment, self._width)
            carry = jax.eval_shape(lambda: self._agent.init_carry(self._width))
            acting = acting._replace(environment=(saved,) * self._num_actors, carry=(carry,) * self._num_actors)
            one = meshes.placed(mesh, meshes.UNROLL, self._programs.unroll)
            episodes = jax.eval_shape(unrolls.no_episodes)
            pending = ((Pending(one, episodes),) * (self._lag + 1),) * self._num_actors
        return State(
            meshes.placed(mesh, meshes.PER_SEED, learner_state),
            meshes.placed(mesh, meshes.PER_SEED, keys),
            acting,
            meshes.placed(mesh, meshes.COLUMNS, replay_state),
            pending,
        )

    def run(
        self, state: State, iteration: int, count: int, total: int, stopped: Callable[[], bool] = base.never
    ) -> tuple[State, base.Metrics]:
        self._compile(state)
        if count and (self._running is None or self._running.state is not state):
            self.close()
            self._running = self._start(state, iteration, total)
        sums = _Sums(self._metric_names)
        for i in range(iteration, iteration + count):
            running = self._running
            assert running is not None
            try:
                state = self._iterate(running, state, i, total, stopped, sums)
            except Exception as end:
                fault = None if isinstance(end, _Stop) else end
                raise base.Interrupted(state, sums.metrics(running), i - iteration, fault) from None
            running.state, running.iteration = state, i + 1
            if self.failure is not None:
                break
        return state, sums.metrics(self._running)

    def snapshot(self, state: State) -> State:
        if self._lag is None or not self._replayable or state.pending:
            return state
        if self._running is None or self._running.state is not state:
            # Only a run that has not begun has neither threads nor pending unrolls.
            self.close()
            self._running = self._start(state, 0, 1)
        running = self._running
        points = running.crew.resting_points(running.iteration + self._lag + 1)
        pending = tuple(
            tuple(Pending(item.unroll, item.episodes) for item in running.queue.pending(actor))
            for actor in range(self._num_actors)
        )
        acting = Actors(*zip(*((at.environment, at.timestep, at.carry) for at in points), strict=True))
        return state._replace(actors=acting, pending=pending)

    def failure_template(self, keys: Array) -> Failing:
        state = self.template(keys)
        unroll = meshes.placed(self._mesh, meshes.UNROLL, self._programs.unroll)
        blocks = jax.ShapeDtypeStruct((self._num_actors,), np.int32)
        return Failing(state.learner, state.key, state.replay, (unroll,) * self._num_actors, blocks)

    def run_failure(self, saved: Failing, iteration: int, total: int) -> tuple[learners.LearnerState, base.Metrics]:
        state = State(saved.learner, saved.key, Actors((), (), ()), saved.replay, ())
        arguments = self._arguments(state, iteration, total, np.asarray(saved.blocks), saved.unrolls)
        result = self._programs.learn_again(*arguments)
        sums = _Sums(self._metric_names)
        sums.add([], result)
        return result.learner, sums.metrics(None)

    def report(self, sums: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
        return gauges.report(sums, seconds, self._num_actors)

    def run_arguments(self, state: State, iteration: int, count: int, total: int) -> tuple[Any, ...]:
        del count
        unroll = meshes.placed(self._mesh, meshes.UNROLL, self._programs.unroll)
        blocks = np.arange(self._num_actors, dtype=np.int32)
        return self._arguments(state, iteration, total, blocks, (unroll,) * self._num_actors)

    def close(self) -> None:
        if self._running is not None:
            self._running.crew.close()
            self._running = None

    def _arguments(self, state: State, iteration: int, total: int, blocks: Any, unrolled: Any) -> tuple[Any, ...]:
        numbers = (np.int32(iteration), np.float32(total), self._programs.credit(iteration), blocks)
        return (*numbers, state.key, state.learner, state.replay, *unrolled)

    def _compile(self, state: State) -> None:
        """Compiles the learner's program and those of each actor's device, once."""
        if self._learn is not None:
            return
        self._learn = self._programs.learn.lower(*self.run_arguments(state, 0, 1, 1)).compile()
        timestep = learning.zero_timestep(self._environment.spec, self._width)
        for device in dict.fromkeys(self._actor_devices):
            published = jax.device_put(self._published(state.learner, 0.0), device)
            self._unroll.warm_up(published, timestep, self._agent.init_carry(self._width), device)

    def _published(self, learner_state: learners.LearnerState, progress: float) -> channels.Published:
        params, updates = jax.tree.map(lambda x: x.addressable_data(0), self._programs.publish(learner_state))
        return channels.Published(params, updates, np.float32(progress))

    def _iterate(
        self, running: "_Running", state: State, i: int, total: int, stopped: Callable[[], bool], sums: "_Sums"
    ) -> State:
        def check() -> None:
            if stopped():
                raise _Stop
            running.crew.check()

        check()
        started_s = time.perf_counter()
        depth = running.queue.depth()
        items = running.queue.take(None if self._lag is None else range(self._num_actors), self._num_actors, check)
        running.gauges.add_items(items, i, depth)
        learning_s = time.perf_counter()
        blocks = np.asarray([item.actor for item in items], np.int32)
        unrolled = tuple(item.unroll for item in items)
        result = self._learn(*self._arguments(state, i, total, blocks, unrolled))
        if np.asarray(result.sound.addressable_data(0)).all():
            running.store.publish(i + 1, self._published(result.learner, (i + 1) / total))
        else:
            saved = Failing(result.learner, state.key, result.replay, unrolled, blocks)
            self.failure = base.Failure(i, saved, None)
        running.gauges.add_seconds(learning_s - started_s, time.perf_counter() - learning_s)
        sums.add(items, result)
        timesteps = list(state.actors.timestep)
        for item in items:
            timesteps[item.actor] = item.timestep
        return State(result.learner, state.key, Actors((), tuple(timesteps), ()), result.replay, ())

    def _start(self, state: State, iteration: int, total: int) -> "_Running":
        """Starts the actors where a state leaves them."""
        lag = 0 if self._lag is None else self._lag
        store = channels.ParamStore(self._actor_devices, lag + 1)
        queue = channels.UnrollQueue(self._num_actors, self._num_actors if self._lag is None else lag + 1)
        store.publish(iteration, self._published(state.learner, iteration / total))
        version_of = functools.partial(_version, self._lag, iteration, store)
        key = base.seed_keys(state.key.addressable_data(0)[0])
        plans, starts = [], []
        for number, device in enumerate(self._actor_devices):
            index = jax.process_index() * self._num_actors + number
            first = index * self._width
            env_ids = jax.device_put(np.arange(first, first + self._width, dtype=np.int32), device)
            actor_key = jax.device_put(jax.random.fold_in(key.training, index), device)
            make = functools.partial(self._make_environments, key.environment, first, iteration)
            plans.append(actors.Plan(number, env_ids, actor_key, device, version_of, make, self._config.timeout_s))
            starts.append(self._start_of(state, number, iteration))
            for ahead, pending in enumerate(state.pending[number] if state.pending else ()):
                j = iteration + ahead
                item = channels.Item(
                    number, j, max(0, j - lag), pending.unroll, (), jax.tree.map(np.asarray, pending.episodes), {}
                )
                queue.put(item, lambda: True)
        send = channels.Sender(self._mesh, self._local)
        parts = crews.Parts(self._unroll, store, queue, send)
        crew = crews.Crew(plans, starts, parts, self._config.max_actor_restarts)
        return _Running(state, iteration, store, queue, send, crew, gauges.Gauges())

    def _start_of(self, state: State, number: int, iteration: int) -> actors.Start:
        """Says where an actor begins: from a snapshot, afresh, or where its lost environments ended."""
        if state.pending:
            acting = jax.tree.map(_to_host, state.actors)
            index = iteration + len(state.pending[number])
            return actors.Start(index, acting.timestep[number], acting.carry[number], acting.environment[number])
        carry = self._agent.init_carry(self._width)
        timestep = crews.ended(jax.tree.map(np.asarray, state.actors.timestep[number])) if iteration else ()
        return actors.Start(iteration, timestep, carry, ())

    def _make_environments(self, key: Array, first: int, iteration: int, life: int) -> envs.HostEnvironment:
        """Makes an actor's environments; a resumed run and a replaced actor play others than those before."""
        if isinstance(self._environment, envs.Environment):
            key = jax.random.fold_in(key, life) if life else key
            return as_host.AsHost(self._environment, self._width, key, first_env=first)
        seed = int(jax.random.bits(key, dtype=np.uint32))
        seeds = hosts.seeds(seed, f"training {life}", iteration, first, self._width)
        return self._environment.make(seeds, self._width, self._config.timeout_s)

    @functools.cached_property
    def _metric_names(self) -> tuple[str, ...]:
        keys = jax.eval_shape(lambda: jax.vmap(jax.random.key)(jnp.zeros(1, jnp.uint32)))
        result = jax.eval_shape(self._programs.learn, *self.run_arguments(self.template(keys), 0, 1, 1))
        return tuple(result.metrics)


@dataclasses.dataclass
class _Running:
    """The threads of a run and what they share, and the state that they go on from."""

    state: State
    iteration: int
    store: channels.ParamStore
    queue: channels.UnrollQueue
    send: channels.Sender
    crew: crews.Crew
    gauges: gauges.Gauges


class _Sums:
    """Sums of a call's iterations; the learner's own stay on the devices until asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._episodes = unrolls.no_episodes()
        self._updates: list[Array] = []
        self._metrics: dict[str, list[Array]] = {name: [] for name in names}

    def add(self, items: Sequence[channels.Item], result: learning.Learned) -> None:
        for item in items:
            self._episodes = jax.tree.map(np.add, self._episodes, item.episodes)
        self._updates.append(result.updates.addressable_data(0))
        for name, values in self._metrics.items():
            values.append(result.metrics[name].addressable_data(0))

    def metrics(self, running: _Running | None) -> base.Metrics:
        updates, metrics = jax.device_get((self._updates, self._metrics))
        own = running.gauges.take(running.send.transfers, running.store.transfers) if running else {}
        total: Any = functools.partial(np.sum, axis=0)
        learned = {name: total([np.zeros(1, np.float32), *values]) for name, values in metrics.items()}
        return base.Metrics(self._episodes, total([np.zeros(1, np.int32), *updates]), learned, own)


class _Stop(Exception):  # noqa: N818
    """A stop was asked for."""


def _version(lag: int | None, first: int, store: channels.ParamStore, index: int) -> int:
    """Returns the version to act with in an unroll."""
    return store.newest() if lag is None else max(first, index - lag)


def _to_host(x: Any) -> Any:
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def _parse_lag(text: str, staleness: str) -> int | None:
    """Reads a policy lag: a number, or None for free."""
    if text != "free" and not text.isdecimal():
        raise UsageError(f"--layout.policy_lag={text}: expected a whole number >= 0, or free")
    if staleness == "none" and text != "0":
        raise UsageError(f"--layout.policy_lag={text}: this agent learns from its own rows only; valid: 0")
    return None if text == "free" else int(text)


def _count_actors(config: Config, num_envs: int, mesh: Mesh) -> int:
    """Returns the number of actors of this process, each with environments for every one of the learner's devices."""
    share = mesh.shape["devices"]
    count = config.num_actors or (2 if num_envs % (2 * share) == 0 else 1)
    if num_envs % (count * share):
        valid = [n for n in range(1, num_envs + 1) if num_envs % (n * share) == 0]
        nearest = ", ".join(map(str, sorted(valid, key=lambda n: abs(n - count))[:3])) or "none"
        raise UsageError(
            f"--layout.num_actors={count} on {share} learner device(s) does not divide --env.num_envs={num_envs}; "
            f"nearest valid: {nearest}"
        )
    return count
