"""Checks which of Sebulba's settings fit together, and says by them what its actors are."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxrl_dist import blocks, types
from jaxrl_dist import replay as replays
from jaxrl_dist.agents import base as agents
from jaxrl_dist.envs import base as envs
from jaxrl_dist.errors import UsageError
from jaxrl_dist.parallel import first_ready, placement, running
from jaxrl_dist.parallel import unroll as unrolls

# So many unrolls of each actor are kept, and saved with every checkpoint.
_LARGEST_LAG = 64


def make_stage(
    config: Any,
    agent: agents.Agent,
    replay: replays.Replay,
    environment: envs.Environment | envs.HostTask,
    num_envs: int,
    mesh: Mesh,
) -> running.Stage:
    """Makes the stage of this process; arguments as those of `sebulba.make`.

    Raises:
        UsageError: settings that do not fit together.
    """
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    num_actors = _count_actors(config, num_envs, mesh)
    devices = acting_devices(config.actor_devices, local)
    width = num_envs // (num_actors * jax.process_count())
    lag, ready = _parse_lag(config.policy_lag, agent.staleness), config.ready_envs
    if config.inference == "central":
        _check_central(config, lag)
        devices, ready = local[:1], ready or _half(width)
    if replay.host and jax.process_count() > 1:
        raise UsageError(
            f"--replay.storage=host: for runs of one process, this has {jax.process_count()}; valid: device"
        )
    if config.quorum:
        _check_quorum(config, replay, lag, num_actors)
    if ready:
        _check_ready(ready, agent, replay, lag, width, mesh)
        if ready < width and isinstance(environment, envs.HostTask) and environment.steps_together:
            raise UsageError(
                f"--env={environment.spec.name}: its {width} environments of an actor step together; valid: "
                "--layout.ready_envs=0 with --layout.inference=per_actor"
            )
    return running.Stage(
        agent=agent,
        environment=environment,
        programs=_acting_programs(config, ready, agent, environment.spec, num_envs, width, len(local)),
        width=width,
        ready=ready,
        length=config.unroll_length,
        devices=tuple(devices[i % len(devices)] for i in range(num_actors)),
        mesh=mesh,
        local=tuple(local),
        observations=blocks.Observations(environment.spec.observation, config.unroll_length) if replay.host else None,
        lag=lag,
        quorum=config.quorum or num_actors,
        timeout_s=config.timeout_s,
        max_restarts=config.max_actor_restarts,
    )


def acting_devices(named: str, learners: Sequence[jax.Device]) -> Sequence[jax.Device]:
    """Returns the devices that are named; else the learner's, on a CPU all there are.

    Raises:
        UsageError: a name is not that of a device of this process.
    """
    there = jax.local_devices(backend=learners[0].platform)
    if named:
        return placement.parse("--layout.actor_devices", named, there)
    return there if learners[0].platform == "cpu" else learners


def _parse_lag(text: str, staleness: str) -> int | None:
    """Reads a policy lag: a number, or None for free."""
    if text != "free" and not (text.isdecimal() and int(text) <= _LARGEST_LAG):
        raise UsageError(f"--layout.policy_lag={text}: expected a whole number from 0 to {_LARGEST_LAG}, or free")
    if staleness in ("none", "own") and text != "0":
        raise UsageError(f"--layout.policy_lag={text}: this agent learns from its own rows only; valid: 0")
    return None if text == "free" else int(text)


def _count_actors(config: Any, num_envs: int, mesh: Mesh) -> int:
    """Returns the number of actors of this process, each with environments for every one of the learner's devices."""
    share = mesh.shape["devices"]
    count = config.num_actors
    if num_envs % (count * share):
        valid = [n for n in range(1, num_envs + 1) if num_envs % (n * share) == 0]
        nearest = ", ".join(map(str, sorted(valid, key=lambda n: abs(n - count))[:3])) or "none"
        raise UsageError(
            f"--layout.num_actors={count} on {share} learner device(s) does not divide --env.num_envs={num_envs}; "
            f"nearest valid: {nearest}"
        )
    return count


def _acting_programs(
    config: Any, ready: int, agent: agents.Agent, spec: types.EnvironmentSpec, num_envs: int, width: int, parts: int
) -> unrolls.HostUnroll | first_ready.Programs:
    """Returns the programs of an actor."""
    if ready:
        return first_ready.make(agent, spec, num_envs, config.unroll_length, width, ready, parts)
    return unrolls.host_unroll(agent, num_envs, config.unroll_length, parts)


def _check_quorum(config: Any, replay: replays.Replay, lag: int | None, num_actors: int) -> None:
    """Raises a UsageError where the learner cannot go on without late unrolls."""
    flag = f"--layout.quorum={config.quorum}"
    if config.quorum > num_actors:
        raise UsageError(f"{flag}: there are {num_actors} actors; valid: 0 to {num_actors}; nearest: {num_actors}")
    if config.ready_envs:
        raise UsageError(
            f"{flag}: with --layout.ready_envs={config.ready_envs} no actor waits for its slow environments; valid: 0"
        )
    if lag is None:
        raise UsageError(
            f"{flag}: with --layout.policy_lag=free no unroll is late; valid: 0, or a policy lag from 0 to "
            f"{_LARGEST_LAG}; nearest: --layout.policy_lag=1"
        )
    if replay.keeps_rows and config.quorum < num_actors:
        raise UsageError(
            f"{flag}: a replay learns from late unrolls too, and --layout.policy_lag=free waits for no actor; "
            f"valid: 0 or {num_actors}; nearest: {num_actors}"
        )


def _check_central(config: Any, lag: int | None) -> None:
    """Raises a UsageError where one loop cannot choose the actions of all environments."""
    flag = "--layout.inference=central"
    if lag is not None:
        raise UsageError(f"{flag}: the clock says which environments are ready first; give --layout.policy_lag=free")
    if config.num_actors != 1:
        raise UsageError(f"{flag}: one loop acts for all environments; valid: --layout.num_actors=1")
    if config.actor_devices:
        raise UsageError(f"{flag} is on the learner's device; leave out --layout.actor_devices={config.actor_devices}")


def _half(width: int) -> int:
    """Returns the largest number up to half of the environments that divides them."""
    return next(count for count in range(max(width // 2, 1), 0, -1) if width % count == 0)


def _check_ready(
    ready: int, agent: agents.Agent, replay: replays.Replay, lag: int | None, width: int, mesh: Mesh
) -> None:
    """Raises a UsageError where environments cannot act as they get ready."""
    flag = f"--layout.ready_envs={ready}"
    if lag is not None:
        raise UsageError(f"{flag}: the clock says which environments are ready first; give --layout.policy_lag=free")
    if width % ready:
        valid = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
        raise UsageError(f"{flag} does not divide the {width} environments of an actor; valid: {valid}")
    if agent.keeps_sequences and agent.staleness != "any":
        raise UsageError(f"{flag}: this recurrent policy keeps its parameters for a whole unroll; valid: 0")
    if replay.keeps_rows and mesh.shape["devices"] > 1:
        raise UsageError(f"{flag}: a replay over {mesh.shape['devices']} devices takes whole unrolls in turn; valid: 0")
