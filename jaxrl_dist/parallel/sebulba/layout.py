"""The Sebulba layout: actor threads play CPU environments, learners on the accelerators take their unrolls.

Source: Hessel et al. 2021, "Podracer architectures for scalable reinforcement learning"; the exact policy lag as in
Huang et al. 2023, "Cleanba".
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_dist import parallel, types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import placement, unroll
from jaxrl_dist.parallel.sebulba import actors, channels, host_tier, metrics, queue, tiers
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
        "Actor threads of a process, each with its share of the environments. One is fastest where steps are short; "
        "two let one act while the other's environments step, which pays where steps are long and cores are many.",
        low=1,
    )
    actor_devices: str = setting(
        "",
        "Devices of the actors in turn, such as cpu:0 or gpu:0,gpu:1; empty takes those of the learner, and where "
        "these are CPUs all there are.",
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
    inference: str = setting(
        "per_actor",
        "Who chooses actions: each actor with its own copy of the parameters, or one loop on the learner's device for "
        "all environments, as they get ready (central): no parameters are copied. Needs a free policy lag.",
        choices=("per_actor", "central"),
        source="Espeholt et al. 2020 (SEED RL), section 3; Babaeizadeh et al. 2017 (GA3C)",
    )
    quorum: int = setting(
        0,
        "Actors of a process whose unrolls of an iteration suffice to go on; those that come later are dropped, so the "
        "clock says what is learned from. 0 waits for all. Needs a number as policy lag.",
        low=0,
        source="Heess et al. 2017 (DPPO), algorithm 2 (W − D workers)",
    )
    ready_envs: int = setting(
        0,
        "Environments of an actor that act together as soon as so many are ready, so that a slow one delays itself "
        "only; 0 waits for all, or under central inference for half. Needs a free policy lag.",
        low=0,
        source="Espeholt et al. 2020 (SEED RL); Weng et al. 2022 (EnvPool)",
    )
    timeout_s: float = setting(60.0, "Longest step of an environment; one that takes longer is a fault.", above=0.0)
    max_actor_restarts: int = setting(
        0, "Actors that may be started anew after a fault; the next fault ends the run.", low=0, tag="tunable"
    )


def choose_devices(settings: Mapping[str, Any], devices: Sequence[jax.Device], keeps_rows: bool) -> list[jax.Device]:
    """Returns the learner's devices, of those there are.

    Raises:
        UsageError: a name is not that of a device.
    """
    if settings["layout.learner_devices"]:
        return placement.parse("--layout.learner_devices", settings["layout.learner_devices"], devices)
    return [devices[0]] if devices[0].platform == "cpu" else list(devices)


def replay_shards(settings: Mapping[str, Any], num_devices: int) -> int:
    """Returns the shards of a replay: one for each of the learner's devices."""
    del settings
    return num_devices


class Sebulba(parallel.Layout):
    """Runs the actors and the learner of a run; made of `parallel.LayoutParts`.

    Raises:
        UsageError: actors that do not divide the environments, unknown devices, or a policy lag that the agent cannot
            bear.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        config, agent, replay, learner, environment, num_envs, mesh = parts
        self.mesh, self.rows_per_iteration = mesh, num_envs * config.unroll_length
        self._stage = actors.make_stage(config, agent, replay, environment, num_envs, mesh)
        num_actors, devices = self._stage.num_actors, self._stage.devices
        setting = tiers.Setting(
            agent, replay, learner, environment.spec, num_envs, num_actors, config.unroll_length, mesh
        )
        self._tier: tiers.Tier = tiers.DeviceTier(setting)
        if replay.host:
            self._tier = host_tier.HostTier(setting, replay.host)
        acting = placement.table([(device, self._stage.width) for device in devices], self._stage.local)
        self.placement = (*acting, *self._tier.notes)
        self._is_compiled = False
        self._running: actors.Running | None = None
        self._failure: parallel.Failure | None = None
        self.program = self._tier.program
        self.diagnosis = parallel.Diagnosis(self._tier.failing_template, self._run_again, lambda: self._failure)

    def init(self, keys: Array) -> actors.State:
        keys = meshes.put_keys(self._stage.mesh, keys)
        learner_state, replay_state = self._tier.init(keys)
        timesteps = (self._zero_timestep(),) * self._stage.num_actors
        acting = actors.Actors((), timesteps, ())
        return actors.State(learner_state, keys, acting, replay_state, (), np.zeros((), np.int32))

    def template(self, keys: Array) -> actors.State:
        return saved.template(self._stage, self._tier, keys)

    def run(
        self, state: actors.State, iteration: int, count: int, total: int, stopped: Callable[[], bool] = parallel.never
    ) -> tuple[actors.State, parallel.Metrics]:
        self._compile(state)
        if count and (self._running is None or self._running.state is not state):
            self.close()
            self._running = self._start(state, iteration, iteration / total)
        sums = tiers.Sums(self._metric_names)
        for i in range(iteration, iteration + count):
            threads = self._running
            assert threads is not None
            try:
                state = self._iterate(threads, state, i, total, stopped, sums)
            except Exception as end:
                fault = None if isinstance(end, _Stop) else end
                raise parallel.Interrupted(state, self._metrics(sums), i - iteration, fault) from None
            threads.state, threads.iteration = state, i + 1
            if self._failure is not None:
                break
        return state, self._metrics(sums)

    def snapshot(self, state: actors.State) -> actors.State:
        snapshot = state
        if not state.pending and saved.is_exact(self._stage):
            if self._running is None or self._running.state is not state:
                # Only a run that has not begun has neither threads nor pending unrolls.
                self.close()
                self._running = self._start(state, 0, 0.0)
            if not self._running.is_whole:
                raise RuntimeError("an iteration was cut short, and the unrolls that it took are lost")
            snapshot = saved.snapshot(self._stage, self._running)
        return snapshot._replace(replay=self._tier.saved(snapshot.replay))

    def report(self, sums: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
        return metrics.report(sums, seconds) | {"inference_batch_mean": self._stage.inference_batch}

    def summary(self, sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        workers = self._stage.num_actors * jax.process_count()
        return metrics.summary(sums) | {"inference_batch_mean": self._stage.inference_batch, "workers": workers}

    def run_arguments(self, state: actors.State, iteration: int, count: int, total: int) -> tuple[Any, ...]:
        del count
        return self._tier.arguments(_clock(state, iteration, total), state.learner, state.key, state.replay)

    def close(self) -> None:
        if self._running is not None:
            self._running.crew.close()
            self._running = None
        self._tier.close()

    def _run_again(self, failing: Any, iteration: int, total: int) -> tuple[learners.LearnerState, parallel.Metrics]:
        result = self._tier.learn_again(tiers.Clock(iteration, total, 0), failing)
        sums = tiers.Sums(self._metric_names)
        sums.add([], result)
        return result.learner, sums.metrics({})

    def _compile(self, state: actors.State) -> None:
        """Compiles the learner's programs and those of each actor's device, once."""
        if self._is_compiled:
            return
        self._is_compiled = True
        self._tier.compile(_clock(state, 0, 1), state.learner, state.key, state.replay)
        timestep = self._zero_timestep()
        for device in dict.fromkeys(self._stage.devices):
            published = jax.device_put(self._published(state.learner, 0.0), device)
            self._warm_up(published, timestep, device)

    def _warm_up(self, published: channels.Published, timestep: types.TimeStep, device: jax.Device) -> None:
        """Compiles an actor's programs for a device by running each once; those that act on few compile as they go."""
        programs = self._stage.programs
        if isinstance(programs, unroll.HostUnroll):
            programs.warm_up(published, timestep, self._stage.agent.init_carry(self._stage.width), device)

    def _published(self, learner_state: learners.LearnerState, progress: float) -> channels.Published:
        params, updates = jax.tree.map(lambda x: x.addressable_data(0), self._tier.publish(learner_state))
        return channels.Published(params, updates, np.float32(progress))

    def _iterate(
        self,
        threads: actors.Running,
        state: actors.State,
        i: int,
        total: int,
        stopped: Callable[[], bool],
        sums: tiers.Sums,
    ) -> actors.State:
        def check() -> None:
            if stopped():
                raise _Stop
            threads.crew.check()

        check()
        clock = _clock(state, i, total)
        self._tier.check(clock, state.replay)
        started_s = time.perf_counter()
        depth = threads.queue.depth()
        items = take(self._stage, threads, i, check)
        threads.is_whole = False
        threads.gauges.add_items(items, i, depth)
        learning_s = time.perf_counter()
        filled = queue.fill(items, threads.stand_ins)
        result, failing = self._tier.learn(clock, state.learner, state.key, state.replay, filled)
        if failing is None:
            threads.store.publish(i + 1, self._published(result.learner, (i + 1) / total))
        else:
            self._failure = parallel.Failure(i, failing, None)
        threads.gauges.add_seconds(learning_s - started_s, time.perf_counter() - learning_s)
        sums.add([item.episodes for item in items], result)
        threads.is_whole = True
        return advance(state, result, items)

    def _start(self, state: actors.State, iteration: int, progress: float) -> actors.Running:
        return actors.start(self._stage, state, iteration, self._published(state.learner, progress))

    def _metrics(self, sums: tiers.Sums) -> parallel.Metrics:
        threads = self._running
        own = threads.measured() if threads else {}
        return sums.metrics(own | self._tier.report())

    def _zero_timestep(self) -> types.TimeStep:
        return tiers.zero_timestep(self._stage.environment.spec, self._stage.width)

    @functools.cached_property
    def _metric_names(self) -> tuple[str, ...]:
        state = self.template(tiers.keys_struct())
        result = jax.eval_shape(self.program, *self.run_arguments(state, 0, 1, 1))
        return tuple(result.metrics)


def _clock(state: actors.State, iteration: int, total: int) -> tiers.Clock:
    return tiers.Clock(iteration, total, int(state.replay_began))


class _Stop(Exception):  # noqa: N818
    """A stop was asked for."""


LAYOUT = parallel.LayoutSpec(
    name="sebulba",
    summary="The Sebulba layout: actor threads play CPU environments, learners on the accelerators take their unrolls.",
    config=Config,
    make=Sebulba,
    serves=("host", "device"),
    seeds_together=False,
    axis=meshes.AXIS,
    choose_devices=choose_devices,
    replay_shards=replay_shards,
)


def take(stage: actors.Stage, threads: actors.Running, iteration: int, check: Callable[[], None]) -> list[queue.Item]:
    """Takes the unrolls of an iteration: those of its number, or, where the lag is free, those that came first.

    Args:
        stage: what the actors are.
        threads: the actors, running.
        iteration: that begins.
        check: called while waiting; what it raises is raised here, and nothing was taken.
    """
    if stage.lag is None:
        return threads.queue.take(stage.num_actors, check)
    return threads.queue.take_number(iteration, stage.quorum, check)


def advance(state: actors.State, learned: tiers.Learned, items: Sequence[queue.Item]) -> actors.State:
    """Returns the state after an iteration that took these items."""
    timesteps = list(state.actors.timestep)
    for item in items:
        timesteps[item.actor] = item.timestep
    acting = actors.Actors((), tuple(timesteps), ())
    return actors.State(learned.learner, state.key, acting, learned.replay, (), state.replay_began)
