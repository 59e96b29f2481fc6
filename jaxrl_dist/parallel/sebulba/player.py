"""A player: an actor's environments and its agent in a process of their own, on any machine; it gives packed unrolls.

It is made of settings alone, and knows neither the learner nor what carries its calls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import actors, wire
from jaxrl_dist.runs import software
from jaxrl_dist.types import ArrayTree


class Plan(NamedTuple):
    """The same for all players of a run.

    Attributes:
        rebuild: () -> the agent, and the `envs.Environment` or `envs.HostTask`.
        num_envs: environments of the whole run, for the agent's exploration.
        width: B, environments of one player.
        unroll_length: T.
        timeout_s: longest step of an environment.
    """

    rebuild: Callable[[], tuple[agents.Agent, Any]]
    num_envs: int
    width: int
    unroll_length: int
    timeout_s: float


class Start(NamedTuple):
    """Tells a player for which actor it plays, and from where.

    Attributes:
        environment_key: u32 [K], data of the typed key of all environments.
        actor_key: u32 [K], data of the actor's key.
        first_env: global index of its first environment.
        iteration: the iteration at which the run's session began.
        life: how many times the actor's environments were replaced.
        state: `unroll.ActorState` in NumPy: saved environments, or () for new ones; the timestep that opens the first
            unroll, () for fresh episodes; the acting state.
    """

    environment_key: Any
    actor_key: Any
    first_env: int
    iteration: int
    life: int
    state: unrolls.ActorState


class Player:
    """Plays for one actor at a time. One thread plays; any other may `check`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import jaxrl_dist
        >>> from jaxrl_dist.parallel import unroll
        >>> from jaxrl_dist.parallel.sebulba import player
        >>> made = jaxrl_dist.make("a2c", "toy:walk")
        >>> rebuild = lambda: (made.agent, made.environment)
        >>> one = player.Player(player.Plan(rebuild, num_envs=2, width=2, unroll_length=4, timeout_s=1.0))
        >>> key = jax.random.key_data(jax.random.key(0))
        >>> state = unroll.ActorState((), (), made.agent.init_carry(2))
        >>> one.begin(player.Start(key, key, first_env=0, iteration=0, life=0, state=state))
        >>> published = unroll.Published(made.agent.init(jax.random.key(1)), np.int32(0), np.float32(0))
        >>> data = one.play(0, jax.device_get(published))
        >>> isinstance(data, bytes)
        True
    """

    def __init__(self, plan: Plan) -> None:
        """Builds nothing yet, so that a process answers as soon as it is there."""
        self._plan = plan
        self._environment: Any = None
        self._making: hangs.Making | None = None

    def prepare(self) -> None:
        """Sets up a process that only plays: on one CPU device, in the thread that calls; before JAX has a backend."""
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 1)
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    def warm_up(self, published: unrolls.Published) -> list[str]:
        """Builds the agent and compiles its programs; returns the versions of the software that its rows depend on.

        Args:
            published: parameters in NumPy, as they are or from `wire.rounded`.

        Raises:
            errors.UsageError: the environment cannot be made here.
        """
        plan, device = self._plan, jax.local_devices(backend="cpu")[0]
        self._build()
        width = plan.width * self._task.spec.num_agents
        timestep, carry = unrolls.zero_timestep(self._task.spec, width), self._agent.init_carry(width)
        self._programs.warm_up(jax.device_put(wire.whole(published), device), timestep, carry, device)
        return software.versions()

    def begin(self, start: Start) -> None:
        """Makes the environments of an actor, of which it is to play the next unrolls.

        Raises:
            errors.EnvironmentFault: they cannot be made.
        """
        self._build()
        plan, device = self._plan, jax.local_devices(backend="cpu")[0]
        self._device, self._state = device, start.state
        self._key = jax.device_put(jax.random.wrap_key_data(jnp.asarray(start.actor_key)), device)
        ids = np.arange(start.first_env, start.first_env + plan.width, dtype=np.int32)
        self._env_ids = jax.device_put(ids, device)
        key = jax.random.wrap_key_data(jnp.asarray(start.environment_key))
        of_task = self._task, plan.width, plan.width, plan.timeout_s
        self._making = hangs.Making(self._task.spec.name, plan.timeout_s)
        with self._making:
            self._environment = actors.make_environments(*of_task, key, start.first_env, start.iteration, start.life)

    def play(self, number: int, published: unrolls.Published) -> bytes:
        """Plays the next unroll, and returns it packed by `wire.Wire`.

        Args:
            number: number of the unroll.
            published: parameters in NumPy, as they are or from `wire.rounded`.

        Raises:
            errors.EnvironmentFault: an environment died, or returned an invalid value.
        """
        if self._playing is None:
            self._open()
        played, (_, timestep, carry) = jax.device_put(wire.whole(published), self._device), self._state
        arguments = played, self._key, number, self._env_ids, self._playing, timestep, carry
        (unroll,), rows = self._programs.run(*arguments)
        self._state = unrolls.ActorState((), rows.timestep, rows.carry)
        carry = jax.tree.map(np.asarray, rows.carry)
        seconds = rows.environment_s, rows.inference_s
        return self._wire.pack(
            wire.Played(number, unroll.steps, carry, rows.episodes, *seconds), int(published.updates)
        )

    def check(self) -> None:
        """Checks that environments, or their making, are not overdue; another thread than that which plays calls it.

        Raises:
            errors.EnvironmentFault: they are.
        """
        if self._making is not None:
            hangs.check(self._environment, self._making)

    def state(self) -> ArrayTree:
        """Returns the state of environments that can be saved, in NumPy."""
        return self._environment.state()

    def close(self) -> None:
        """Frees the environments."""
        if self._environment is not None:
            self._environment.close()

    def _build(self) -> None:
        """Builds the agent and its programs, once."""
        if hasattr(self, "_programs"):
            return
        plan = self._plan
        self._agent, self._task = plan.rebuild()
        spec = self._task.spec
        rows = unrolls.rows_struct(self._agent, spec, plan.unroll_length, plan.width * spec.num_agents)
        self._wire = wire.Wire(spec, rows)
        self._programs = unrolls.HostUnroll(self._agent, spec, plan.num_envs, plan.unroll_length, 1)
        self._playing: Any = None

    def _open(self) -> None:
        """Begins the first unroll: in saved environments, behind a closing timestep, or with fresh episodes."""
        saved, timestep, carry = self._state
        self._playing = self._environment
        if jax.tree.leaves(saved):
            self._environment.load(saved)
        elif timestep:
            self._playing = unrolls.ResetOnFirstStep(self._environment)
        else:
            timestep = self._environment.reset()._replace(info=())
        self._state = unrolls.ActorState((), timestep, jax.device_put(carry, self._device))
