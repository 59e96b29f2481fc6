"""Trains for some seconds to see how fast a run would be; nothing is saved or kept."""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, parallel
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.settings import resolve
from jaxrl_dist.training import assemble, records

# Longest wait until a replay is large enough to learn from; after it, a probe measures acting alone.
_PATIENCE_S = 60.0
_PLAYED_AHEAD = 2
# Longest wait until actors have played as far ahead as they can, and time between two checks for it.
_REST_S, _LOOK_S = 2.0, 0.05
# Rows that a cut replay keeps per column: more than a window of any agent.
_ROWS_PER_COLUMN = 256
# Iterations of the whole run: so many that no schedule ends within a probe.
_TOTAL = 2**24


class Probe:
    """A run that is measured; close it.

    Attributes:
        parts: parts of the run, but for a replay that is learned from as soon as it holds a batch.
        state: state of the layout.
        learns: whether updates were made while it was measured.
        iterations: number of measured iterations, which took `seconds`.
        rates: steps per second, all seeds together, of each call of `run`.
    """

    def __init__(
        self,
        settings: resolve.Resolved,
        environment: envs.Environment | envs.HostTask,
        devices: Sequence[jax.Device],
        capacity: int = 0,
        available: Sequence[jax.Device] = (),
    ) -> None:
        """Assembles the run.

        Args:
            settings: settings of the run.
            environment: the environment that they name.
            devices: devices to learn on.
            capacity: number of rows to which a replay is cut, about; 0 keeps it whole.
            available: see `assemble.assemble`.

        Raises:
            UsageError: settings are not valid, or do not go together.
        """
        shorter = _early(settings, capacity, environment.spec.num_agents)
        self.parts = assemble.assemble(shorter, environment, devices, available=available)
        self.state: Any = None
        self.learns, self.iterations, self.seconds = False, 0, 0.0
        self.rates: list[float] = []
        self._sums: dict[str, np.ndarray] = {}
        self._iteration, self._length = 0, 1

    @functools.cached_property
    def keys(self) -> jax.Array:
        """Typed keys [S] of the run's seeds."""
        return assemble.seed_keys(self.parts.settings)

    def warm_up(self) -> None:
        """Compiles, and trains until the first update is made, or until filling the replay has taken too long."""
        self.state = self.parts.init(self.keys)
        self._run(0)
        started_s = time.perf_counter()
        while not self.learns and time.perf_counter() - started_s < _PATIENCE_S:
            self.learns = bool(self._run(1).updates.any())
        # By now the programs that compile at their first use are compiled.
        self._run(1)

    def run(self, seconds: float) -> None:
        """Trains for about so many seconds, at least one iteration, and adds to the measurements."""
        if self.parts.settings["layout"] != "anakin":
            # Actors have played ahead since the last call, so the first iterations would be too fast.
            self._run(_PLAYED_AHEAD)
        started_s, iterations = time.perf_counter(), 0
        while iterations == 0 or time.perf_counter() - started_s < seconds:
            chunk_s = time.perf_counter()
            sums = records.by_path(self._run(self._length))
            self._sums = {name: self._sums.get(name, 0.0) + value for name, value in sums.items()}
            iterations += self._length
            took = max(time.perf_counter() - chunk_s, 1e-6)
            self._length = max(1, round(min(self._length * 0.2 / took, 4 * self._length)))
        took = time.perf_counter() - started_s
        self.iterations, self.seconds = self.iterations + iterations, self.seconds + took
        self.rates.append(records.steps_per_second(self.parts, iterations, {}, took))
        if self.parts.settings["layout"] != "anakin":
            _await_rest()

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second over all calls of `run`, without steps that no environment made."""
        sums = {name: value.tolist() for name, value in self._sums.items()}
        return records.steps_per_second(self.parts, self.iterations, sums, self.seconds)

    @property
    def updates_per_iteration(self) -> float:
        """The mean number of updates per iteration of one seed."""
        return float(self._sums["updates"].mean()) / self.iterations

    def report(self) -> Mapping[str, Any]:
        """Returns the layout's part of a training record."""
        return self.parts.layout.report(self._sums, self._sums, self.seconds)

    def close(self) -> None:
        """Ends threads, and frees the run's memory."""
        self.parts.layout.close()
        self.state = None

    def _run(self, count: int) -> parallel.Metrics:
        try:
            self.state, metrics = self.parts.layout.run(self.state, self._iteration, count, _TOTAL)
        except parallel.Interrupted as end:
            raise end.fault or KeyboardInterrupt from None
        self._iteration += count
        return jax.device_get(metrics)


def _await_rest() -> None:
    """Waits until actors have played ahead and rest, so that they take no core from the next measurement."""
    until_s = time.perf_counter() + _REST_S
    while time.perf_counter() < until_s:
        used_s = time.process_time()
        time.sleep(_LOOK_S)
        if time.process_time() - used_s < 0.1 * _LOOK_S:
            return


def acting_seconds(probe: Probe, iterations: int) -> float:
    """Measures the seconds of an iteration of Anakin without learning: environments and acting alone.

    Args:
        probe: warm probe of a run with its environment on the device; its state must not be used again.
        iterations: number of iterations of which the mean is taken.
    """
    parts = probe.parts
    settings, mesh, environment = parts.settings, parts.layout.mesh, parts.environment
    assert isinstance(environment, envs.Environment)
    num_envs = settings["env.num_envs"] * environment.spec.num_agents
    columns = num_envs // mesh.shape["devices"]
    unroll = unrolls.device_unroll(parts.agent, environment, settings["layout.unroll_length"])

    def play(key: jax.Array, params: Any, actors: Any) -> Any:
        exploration = parts.agent.exploration(params, meshes.global_columns(columns), num_envs, 0.5)
        actors, rows, _ = unroll(params, actors, key, exploration, jnp.int32(0))
        # The sum needs every row, so the compiler drops none.
        return actors, sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(rows.steps)) * jnp.ones(columns)

    per_seed, by_column = meshes.PER_SEED, meshes.COLUMNS
    mapped = meshes.device_map(play, mesh, (per_seed, per_seed, by_column), (by_column, by_column))
    program = meshes.program(mapped, mesh, (by_column, by_column), donate=(2,))
    actors, _ = jax.block_until_ready(program(probe.state.key, probe.state.learner.params, probe.state.actors))
    started_s = time.perf_counter()
    for _ in range(iterations):
        actors, total = program(probe.state.key, probe.state.learner.params, actors)
    jax.block_until_ready(total)
    return (time.perf_counter() - started_s) / iterations


def _early(settings: resolve.Resolved, capacity: int, num_agents: int) -> resolve.Resolved:
    """Returns the settings with a replay that is learned from at once, and is cut if a capacity is given."""
    if "replay.min_size" not in settings.settings:
        return settings
    num_columns = settings["env.num_envs"] * num_agents
    block = num_columns * settings["layout.unroll_length"]
    cut = -(-max(capacity, _ROWS_PER_COLUMN * num_columns) // block) * block
    rows = min(settings["replay.capacity"], cut) if capacity else settings["replay.capacity"]
    changed = {"replay.min_size": 1, "replay.capacity": rows}
    return dataclasses.replace(settings, settings={**settings.settings, **changed})
