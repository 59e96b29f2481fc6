"""The actors of one process in numbers: computed from the settings for these devices, and checked."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import envs, parallel, processes
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.envs.host import episodes as host_episodes
from jaxrl_dist.errors import UsageError, given, nearest
from jaxrl_dist.parallel import placement
from jaxrl_dist.types import Array

# A lag of L keeps L unrolls of each actor, in memory and in every checkpoint.
_LARGEST_LAG = 64
_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
_EXTERNAL = "external:"
# The staleness of agents that learn from rows of the newest policy, and of no other.
_OWN_ROWS = ("none", "own")


class Actors(NamedTuple):
    """Describes the actors of this process, the same over the whole run.

    Attributes:
        parts: the parts of the layout.
        devices: device of each actor.
        local: the learner's devices in this process.
        width: E, environments of one actor.
        ready: number of ready environments that act together; 0 waits for all.
        lag: exact policy lag, None where it is free.
        quorum: number of unrolls that an iteration needs; that of all actors where none may be late.
    """

    parts: parallel.LayoutParts
    devices: tuple[jax.Device, ...]
    local: tuple[jax.Device, ...]
    width: int
    ready: int
    lag: int | None
    quorum: int

    @property
    def num_actors(self) -> int:
        """The number of actors of this process."""
        return len(self.devices)

    @property
    def num_acting(self) -> int:
        """The number of environments whose actions are chosen together."""
        return self.ready or self.width

    @property
    def num_waiting(self) -> int:
        """The number of unrolls of each actor that wait for the learner when all actors rest, and of their versions."""
        return (self.lag or 0) + 1

    @property
    def num_rows(self) -> int:
        """The number of columns B of an actor's unroll, one for each agent of its environments."""
        return self.width * self.parts.num_agents

    @property
    def num_columns(self) -> int:
        """The number of columns of an unroll on each of the learner's devices."""
        return self.num_rows // len(self.local)

    def columns(self, number: int) -> np.ndarray:
        """Returns i32 [B / D], the columns of a device that belong to an actor."""
        return np.arange(number * self.num_columns, (number + 1) * self.num_columns, dtype=np.int32)

    def make_environments(self, key: Array, first: int, iteration: int, life: int) -> envs.HostEnvironment:
        """Makes an actor's environments; a resumed run and a replaced actor get new seeds.

        Args:
            key: typed key of all environments.
            first: global index of the actor's first environment.
            iteration: the iteration at which the threads began.
            life: how many times the actor was replaced.
        """
        task, timeout_s = self.parts.environment, self.parts.config.timeout_s
        return make_environments(task, self.width, self.num_acting, timeout_s, key, first, iteration, life)


def make_environments(
    task: envs.Environment | envs.HostTask,
    width: int,
    num_acting: int,
    timeout_s: float,
    key: Array,
    first: int,
    iteration: int,
    life: int,
) -> envs.HostEnvironment:
    """Makes an actor's environments, on whatever machine; see `Actors.make_environments` and `Actors`."""
    if isinstance(task, envs.Environment):
        key = jax.random.fold_in(jax.random.fold_in(key, iteration), life) if life or iteration else key
        return as_host.AsHost(task, width, key, first_env=first)
    seed = int(jax.random.bits(key, dtype=np.uint32))
    seeds = host_episodes.seeds(seed, f"training {life}", iteration, first, width)
    return task.make(seeds, num_acting, timeout_s)


def make(parts: parallel.LayoutParts) -> Actors:
    """Resolves the settings of this process's actors.

    Raises:
        UsageError: settings that do not fit together.
    """
    config, replay = parts.config, parts.replay
    local = [device for device in parts.mesh.devices.flat if device.process_index == processes.index()]
    _check_divides(parts)
    devices = acting_devices(config.actor_devices, local, parts.devices)
    width = parts.num_envs // (config.num_actors * processes.count())
    lag, ready = _parse_lag(config.policy_lag, parts.agent.staleness), config.ready_envs
    if config.inference == "central":
        _check_central(config, lag)
        devices, ready = local[:1], ready or width
    if config.fleet:
        _check_fleet(parts)
        # Only the parameters pass here on their way to the players.
        devices = local[:1]
    else:
        _check_no_fleet(config)
    if config.refresh_s and lag is not None:
        raise UsageError(
            given("layout.refresh_s", config.refresh_s),
            ": with ",
            given("layout.policy_lag", config.policy_lag),
            " every unroll has its version; valid: 0, or ",
            given("layout.policy_lag", "free"),
        )
    if replay.host and processes.count() > 1:
        raise UsageError(
            given("replay.storage", "host"), f": for runs of one process, this has {processes.count()}; valid: device"
        )
    if config.quorum:
        _check_quorum(parts, lag)
    if ready:
        _check_ready(ready, parts, lag, width)
    devices = tuple(devices[i % len(devices)] for i in range(config.num_actors))
    return Actors(parts, devices, tuple(local), width, ready, lag, config.quorum or config.num_actors)


def acting_devices(
    named: str, learners: Sequence[jax.Device], available: Sequence[jax.Device] = ()
) -> Sequence[jax.Device]:
    """Returns the named devices; if none are named, the learner's, or on CPUs all there are.

    Args:
        named: names, see `placement.parse`.
        learners: devices of the learner in this process.
        available: devices of the run; empty for all that there are.

    Raises:
        UsageError: a name is not that of a device of this process.
    """
    there = placement.here(available, learners[0].platform)
    if named:
        return placement.parse("layout.actor_devices", named, there)
    return there if learners[0].platform == "cpu" else learners


def _parse_lag(text: str, staleness: str) -> int | None:
    """Reads a policy lag: a number, or None for free."""
    if text != "free" and not (text.isdecimal() and int(text) <= _LARGEST_LAG):
        raise UsageError(
            given("layout.policy_lag", text), f": expected a whole number from 0 to {_LARGEST_LAG}, or free"
        )
    if staleness in _OWN_ROWS and text != "0":
        raise UsageError(given("layout.policy_lag", text), ": this agent learns from its own rows only; valid: 0")
    return None if text == "free" else int(text)


def _check_divides(parts: parallel.LayoutParts) -> None:
    """Raises a UsageError unless each actor has environments for every one of the learner's devices."""
    share, count, num_envs = parts.mesh.shape["devices"], parts.config.num_actors, parts.num_envs
    if num_envs % (count * share):
        valid = [n for n in range(1, num_envs + 1) if num_envs % (n * share) == 0]
        nearest = ", ".join(map(str, sorted(valid, key=lambda n: abs(n - count))[:3])) or "none"
        raise UsageError(
            given("layout.num_actors", count),
            f" on {share} learner device(s) does not divide ",
            given("env.num_envs", num_envs),
            f"; nearest valid: {nearest}",
        )


def _check_quorum(parts: parallel.LayoutParts, lag: int | None) -> None:
    """Raises a UsageError where the learner cannot go on without late unrolls."""
    config, num_actors = parts.config, parts.config.num_actors
    flag = given("layout.quorum", config.quorum)
    if config.quorum > num_actors:
        raise UsageError(flag, f": there are {num_actors} actors; valid: 0 to {num_actors}; nearest: {num_actors}")
    if config.ready_envs:
        raise UsageError(
            flag,
            ": with ",
            given("layout.ready_envs", config.ready_envs),
            " no actor waits for its slow environments; valid: 0",
        )
    if lag is None:
        raise UsageError(
            flag,
            ": with ",
            given("layout.policy_lag", "free"),
            f" no unroll is late; valid: 0, or a policy lag from 0 to {_LARGEST_LAG}; nearest: ",
            given("layout.policy_lag", 1),
        )
    if parts.replay.keeps_rows and config.quorum < num_actors:
        raise UsageError(
            flag,
            ": a replay learns from late unrolls too, and ",
            given("layout.policy_lag", "free"),
            f" waits for no actor; valid: 0 or {num_actors}; nearest: {num_actors}",
        )


def _check_central(config: Any, lag: int | None) -> None:
    """Raises a UsageError where one loop cannot choose the actions of all environments."""
    flag = given("layout.inference", "central")
    if lag is not None:
        raise UsageError(
            flag, ": the clock says which environments are ready first; give ", given("layout.policy_lag", "free")
        )
    if config.num_actors != 1:
        raise UsageError(flag, ": one loop acts for all environments; valid: ", given("layout.num_actors", 1))
    if config.actor_devices:
        raise UsageError(
            flag, " is on the learner's device; leave out ", given("layout.actor_devices", config.actor_devices)
        )


def _check_fleet(parts: parallel.LayoutParts) -> None:
    """Raises a UsageError for an address that is none, and for settings that need the actors in this process."""
    config = parts.config
    flag = given("layout.fleet", config.fleet)
    if config.fleet.startswith("ray://"):
        raise UsageError(
            flag, ": every unroll would pass through the proxy of Ray's client; valid: local, auto or HOST:PORT"
        )
    if config.fleet not in ("local", "auto") and not _ADDRESS.fullmatch(config.fleet):
        raise UsageError(flag, ": expected local, auto or HOST:PORT", nearest(config.fleet, ("local", "auto")))
    if config.inference == "central":
        raise UsageError(
            flag, ": its actors act on their own machines; valid: ", given("layout.inference", "per_actor")
        )
    if config.ready_envs:
        raise UsageError(
            flag,
            ": its actors wait for all their environments; leave out ",
            given("layout.ready_envs", config.ready_envs),
        )
    if config.actor_devices:
        raise UsageError(
            flag, ": its actors act on CPUs; leave out ", given("layout.actor_devices", config.actor_devices)
        )
    if config.fleet_parameters != "float32" and parts.agent.staleness in _OWN_ROWS:
        raise UsageError(
            given("layout.fleet_parameters", config.fleet_parameters),
            ": another policy than this agent's own would act, from whose rows alone it learns; valid: float32",
        )
    if parts.environment.spec.name.startswith(_EXTERNAL):
        raise UsageError(
            flag,
            ": simulators connect to the machine of the learner alone; leave it out with ",
            given("env", parts.environment.spec.name),
        )


def _check_no_fleet(config: Any) -> None:
    """Raises a UsageError for a setting that says something of a fleet's players, where threads play."""
    names = [field.name for field in dataclasses.fields(config) if field.name.startswith("fleet_")]
    told = ": threads of this process play; leave it out, or give "
    parallel.check_unread(config, names, told, given("layout.fleet", "local"))


def _check_ready(ready: int, parts: parallel.LayoutParts, lag: int | None, width: int) -> None:
    """Raises a UsageError where environments cannot act as soon as some are ready."""
    flag, environment = given("layout.ready_envs", ready), parts.environment
    if lag is not None:
        raise UsageError(
            flag, ": the clock says which environments are ready first; give ", given("layout.policy_lag", "free")
        )
    if width % ready:
        valid = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
        raise UsageError(flag, f" does not divide the {width} environments of an actor; valid: {valid}")
    if parts.num_agents > 1:
        raise UsageError(flag, f": {environment.spec.name} has {parts.num_agents} agents, who act together; valid: 0")
    if parts.agent.acts_together:
        raise UsageError(
            flag, ": this agent tells environments apart by their places, so that all act together; valid: 0"
        )
    if parts.agent.keeps_sequences and parts.agent.staleness != "any":
        raise UsageError(flag, ": this recurrent policy keeps its parameters for a whole unroll; valid: 0")
    if parts.replay.keeps_rows and parts.mesh.shape["devices"] > 1:
        raise UsageError(
            flag, f": a replay over {parts.mesh.shape['devices']} devices takes whole unrolls in turn; valid: 0"
        )
    if ready < width and isinstance(environment, envs.HostTask) and environment.steps_together:
        raise UsageError(
            given("env", environment.spec.name),
            f": its {width} environments of an actor step together; valid: ",
            given("layout.ready_envs", 0),
        )
