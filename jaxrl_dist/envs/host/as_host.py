"""Puts a device environment behind `envs.HostEnvironment`: NumPy in and out, saveable, for acting on the host.

It serves tasks and tests, not speed: every step crosses between host and device.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs
from jaxrl_dist.envs.host import checked, episodes
from jaxrl_dist.types import Array, ArrayTree


class Saved(NamedTuple):
    """The state of environments for saving.

    Attributes:
        environments: tree of [B, ...], with keys as their data.
        account: of their episodes.
    """

    environments: ArrayTree
    account: episodes.Account


class AsHost(checked.Checked):
    """B copies of a device environment, stepped on one device (by default the CPU).

    Environment i has the key `fold_in(env_key, first_env + i)`, as in a layout that plays on the device, so equal
    actions give equal timesteps in both.

    Attributes:
        timeout_s: infinite, as a JAX program waits for no other process.
        waiting_since: always 0.
    """

    timeout_s = float("inf")
    waiting_since = 0.0

    def __init__(
        self,
        environment: envs.Environment,
        num_envs: int,
        env_key: Array,
        *,
        first_env: int = 0,
        device: jax.Device | None = None,
    ) -> None:
        """Compiles nothing yet.

        Args:
            environment: one device environment.
            num_envs: B.
            env_key: typed key of the environments of all actors.
            first_env: global index of this object's first environment.
            device: device that steps; the first CPU if not given.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: expected at least 1")
        super().__init__(environment.spec, num_envs, 1)
        self._first_env = first_env
        self._device = jax.local_devices(backend="cpu")[0] if device is None else device
        self._env_key = jax.device_put(env_key, self._device)
        self._reset, self._step = _programs(envs.columns(environment))
        self._some = jax.jit(_take)
        self._put_back = jax.jit(_put_back, donate_argnums=0)
        self._state: ArrayTree = None
        self._ready: collections.deque[tuple[envs.RawStep, np.ndarray]] = collections.deque()

    def raw_reset(self) -> envs.RawStep:
        """Starts every environment anew, as at the first call."""
        self._ready.clear()
        self._busy[:] = False
        self._state, raw = self._reset(self._env_key, self._indices())
        return jax.device_get(raw)

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Steps some environments; `raw_recv` returns the result of the oldest such call."""
        if len(env_ids) == self.num_envs and (env_ids == self._all).all():
            self._state, raw = self._step(self.states(), self._on_device(action))
        else:
            rows = self._on_device(env_ids)
            stepped, raw = self._step(self._some(self.states(), rows), self._on_device(action))
            self._state = self._put_back(self._state, stepped, rows)
        self._busy[env_ids] = True
        self._ready.append((jax.device_get(raw), env_ids))

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        """Returns the result of the oldest `raw_send`."""
        raw, env_ids = self._ready.popleft()
        self._busy[env_ids] = False
        return raw, env_ids

    def states(self) -> ArrayTree:
        """Returns the states of all environments as they are on the device.

        Raises:
            RuntimeError: the environments were never reset.
        """
        if self._state is None:
            raise RuntimeError("reset or load the environments first")
        return self._state

    def state(self) -> Saved:
        """Returns a copy of all environments in NumPy for saving.

        Raises:
            RuntimeError: a result waits for `recv`, or the environments were never reset.
        """
        if self._ready:
            raise RuntimeError(f"{len(self._ready)} results wait for recv: take them before saving")
        plain = jax.tree.map(lambda x: np.array(jax.random.key_data(x) if _is_key(x) else x), self.states())
        return Saved(plain, self._episodes.account())

    def load(self, state: Saved) -> None:
        """Goes on from the saved state of an object that was made with the same arguments.

        Raises:
            ValueError: the saved leaves do not have the shapes and dtypes of this object's state.
        """
        self._ready.clear()
        expected = jax.eval_shape(self._reset, self._env_key, self._indices())[0]
        impl = jax.random.key_impl(self._env_key)

        def restore(saved: Any, target: jax.ShapeDtypeStruct) -> Array:
            x = jax.device_put(saved, self._device)
            x = jax.random.wrap_key_data(x, impl=impl) if _is_key(target) else x
            if (x.shape, x.dtype) != (target.shape, target.dtype):
                raise ValueError(
                    f"saved {x.dtype}{list(x.shape)} where {self.spec.name} with {self.num_envs} environments has "
                    f"{target.dtype}{list(target.shape)}"
                )
            return x

        self._state = jax.tree.map(restore, state.environments, expected)
        self._episodes.go_on(jax.device_get(state.account))

    def close(self) -> None:
        """Frees the environments; `reset` would start them again."""
        self._state = None
        self._ready.clear()

    def _indices(self) -> Array:
        return self._on_device(np.arange(self._first_env, self._first_env + self.num_envs, dtype=np.int32))

    def _on_device(self, x: np.ndarray) -> Array:
        return jax.device_put(np.asarray(x), self._device)


def saved_struct(environment: envs.Environment, num_envs: int) -> Saved:
    """Returns the tree of `AsHost.state` as `jax.ShapeDtypeStruct`."""

    def saved() -> Saved:
        state = envs.columns(environment).reset(jax.random.key(0), jnp.arange(num_envs))[0]
        plain = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, state)
        return Saved(plain, episodes.Episodes(environment.spec, num_envs).account())

    found: Saved = jax.eval_shape(saved)
    return found


@functools.lru_cache(maxsize=8)
def _programs(columns: envs.Columns) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiles once for all objects of the same environment."""

    def raw(function: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any) -> tuple[ArrayTree, envs.RawStep]:
            state, timestep = function(*arguments)
            return state, episodes.raw_step(timestep)

        return stepped

    return jax.jit(raw(columns.reset)), jax.jit(raw(columns.step), donate_argnums=0)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _take(state: ArrayTree, rows: Array) -> ArrayTree:
    return jax.tree.map(lambda x: x[rows], state)


def _put_back(state: ArrayTree, some: ArrayTree, rows: Array) -> ArrayTree:
    return jax.tree.map(lambda x, new: x.at[rows].set(new), state, some)
