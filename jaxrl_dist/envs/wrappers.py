"""Turns a bare environment into one with next-step auto-reset, and changes what is seen of observations."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_batching

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import parameters
from jaxrl_dist.envs.host import checked, episodes
from jaxrl_dist.types import Array, ArrayTree

# The leaf of a vector, where an observation has others beside it.
_OBSERVATION = "observation"


class State(NamedTuple):
    """State of one environment with auto-reset; of A agents `ended` and what follows the environment are [A].

    Attributes:
        key: typed key [], constant; step n consumes its child n.
        steps: i32 [], calls of `step` so far, plus one.
        ended: bool [], whether the last timestep was LAST, so that the next step resets once this holds for all agents.
        environment: tree, the bare environment's state.
        episode_return: f32 [].
        episode_length: i32 [].
    """

    key: Array
    steps: Array
    ended: Array
    environment: ArrayTree
    episode_return: Array
    episode_length: Array


def auto_reset(bare: envs.BareEnvironment) -> envs.Environment:
    """Adds next-step auto-reset and the bookkeeping of episodes.

    The step that ends an episode returns its true last observation with LAST; the next step ignores the action, resets
    and returns FIRST with reward 0 and discount 1. An episode that terminates and is truncated at the same step counts
    as terminated. Real actions are clipped to their bounds. Every leaf is strongly typed, and a step's outputs have the
    types of those of `reset`, so that a scan can carry them.

    An agent of several whose episode has ended before the others' has LAST rows with discount 0 until all have ended;
    what it is given there counts in its return, and teaches nothing, since these rows leave LAST ones. The bare
    environment ends all that are left with the last step of its own.

    Args:
        bare: one environment without resets.

    Returns:
        The environment; the observations of its spec are those that `bare.reset` returns.

    Raises:
        ValueError: `reset` and `step` of the bare environment return different trees or shapes.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, types
        >>> from jaxrl_dist.envs import wrappers
        >>> def reset(key):
        ...     return jnp.int32(0), jnp.zeros(1)  # state, observation
        >>> def step(key, state, action):
        ...     observation = jnp.full(1, state + 1, jnp.float32)
        ...     return envs.Transition(state + 1, observation, reward=1.0, terminated=state + 1 >= 2, truncated=False)
        >>> spec = types.EnvironmentSpec("mine:count", (), types.DiscreteSpace(2), "classic")
        >>> environment = wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))
        >>> state, timestep = environment.reset(jax.random.key(0))
        >>> for _ in range(3):
        ...     state, timestep = environment.step(state, 0)
        ...     print(timestep.step_type, timestep.discount, timestep.observation)
        1 1.0 [1.]
        2 0.0 [2.]
        0 1.0 [0.]
    """
    # Traced once, however often a program needs them; some libraries take a second each time.
    bare = bare._replace(reset=jax.jit(bare.reset, inline=True), step=jax.jit(bare.step, inline=True))
    num_agents, struct = bare.spec.num_agents, _common_struct(bare)
    restart = _restart_where_ended(lambda key: _cast(bare.reset(key), struct))

    shape = (num_agents,) if num_agents > 1 else ()

    def of_each(x: Any) -> Array:
        return jnp.broadcast_to(x, shape) if shape else x

    def reset(key: Array) -> tuple[State, types.TimeStep]:
        environment, observation = _cast(bare.reset(jax.random.fold_in(key, 0)), struct)
        zero, false = jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool)
        length = jnp.zeros(shape, jnp.int32)
        state = State(key, jnp.ones((), jnp.int32), false, environment, zero, length)
        info = types.EpisodeInfo(zero, length, zero, false)
        return state, types.TimeStep(jnp.full(shape, types.FIRST, jnp.int8), zero, zero + 1, observation, info)

    def step(state: State, action: Array) -> tuple[State, types.TimeStep]:
        key = jax.random.fold_in(state.key, state.steps)
        if isinstance(bare.spec.action, types.BoxSpace):
            action = bare.spec.action.clip(action)
        transition = bare.step(key, state.environment, action)
        stepped = _cast((transition.state, transition.observation), struct)
        first = state.ended.all() if shape else state.ended
        environment, observation = restart(state.key, state.steps, first, stepped)

        terminated = of_each(~first & jnp.asarray(transition.terminated, bool))
        ended = terminated | of_each(~first & jnp.asarray(transition.truncated, bool))
        taken: Any = 1
        if shape:
            gone = state.ended & ~first
            terminated, ended, taken = terminated | gone, ended | gone, jnp.where(gone, 0, 1)
        reward = of_each(jnp.where(first, 0.0, jnp.asarray(transition.reward, jnp.float32)))
        episode_return = jnp.where(first, 0.0, state.episode_return + reward)
        episode_length = jnp.where(first, 0, state.episode_length + taken)
        timestep = types.TimeStep(
            step_type=of_each(jnp.where(first, types.FIRST, jnp.where(ended, types.LAST, types.MID)).astype(jnp.int8)),
            reward=reward,
            discount=1.0 - terminated.astype(jnp.float32),
            observation=observation,
            info=types.EpisodeInfo(episode_return, episode_length, reward, terminated),
        )
        return State(state.key, state.steps + 1, ended, environment, episode_return, episode_length), timestep

    observation = struct[1]
    if shape:
        observation = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), observation)
    return envs.Environment(reset, step, bare.spec._replace(observation=observation))


def observe(environment: envs.Environment, indices: tuple[int, ...]) -> envs.Environment:
    """Keeps only some components of a one-dimensional observation, for tasks that need memory.

    Args:
        environment: an environment with observations [D].
        indices: components that are kept, in this order.

    Raises:
        errors.UsageError: the observation is not one-dimensional, or an index is not in it.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.envs import wrappers
        >>> wrappers.observe(envs.make("toy:walk"), indices=(0,)).spec.observation.shape
        (1,)
    """
    return _shown(environment, spec_of(environment.spec, indices), _Components(np.asarray(indices)))


def observe_on_host(task: envs.HostTask, indices: tuple[int, ...]) -> envs.HostTask:
    """Keeps only some components of a one-dimensional observation, as `observe` does on the device.

    Args:
        task: a task with observations [D].
        indices: components that are kept, in this order.

    Raises:
        errors.UsageError: the observation is not one-dimensional, or an index is not in it.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.envs import wrappers
        >>> from jaxrl_dist.envs.host import as_host
        >>> on_device = envs.make("toy:walk")
        >>> def make(seeds, batch_size, timeout_s):
        ...     return as_host.AsHost(on_device, len(seeds), jax.random.key(seeds[0]))
        >>> task = wrappers.observe_on_host(envs.HostTask(on_device.spec, "", make), indices=(1,))
        >>> task.make(np.zeros(1, np.uint32), 1, 60.0).reset().observation.shape
        (1, 1)
    """
    return _shown_on_host(task, spec_of(task.spec, indices), _Components(np.asarray(indices)))


def flatten(environment: envs.Environment) -> envs.Environment:
    """Makes one vector f32 [D] of an observation: all leaves but the mask of actions, categories as one-hot vectors.

    A mask of actions stays a leaf of its own, `action_mask` beside `observation`, and so does what is privileged, as
    one vector.

    Args:
        environment: an environment with any observation.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, types
        >>> from jaxrl_dist.envs import wrappers
        >>> def reset(key):
        ...     return 0, {"pose": jnp.zeros((2, 3)), "time": jnp.int32(0)}  # state, observation
        >>> def step(key, state, action):
        ...     return envs.Transition(state, reset(key)[1], 0.0, terminated=False, truncated=True)
        >>> spec = types.EnvironmentSpec("mine:arm", (), types.DiscreteSpace(2), "classic")
        >>> bare = envs.BareEnvironment(reset, step, spec)
        >>> wrappers.flatten(wrappers.auto_reset(bare)).spec
        EnvironmentSpec(mine:arm: observation float32[7], actions 2, family classic)
    """
    return _shown(environment, *_flat(environment.spec))


def flatten_on_host(task: envs.HostTask) -> envs.HostTask:
    """Makes one vector of the observations of a task on the CPU, as `flatten` does on the device.

    Args:
        task: a task with any observation.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.envs import wrappers
        >>> wrappers.flatten_on_host(envs.make("gymnasium:Blackjack-v1")).spec.observation.shape
        (45,)
    """
    return _shown_on_host(task, *_flat(task.spec))


def _flat(spec: types.EnvironmentSpec) -> tuple[types.EnvironmentSpec, "_Vector"]:
    leaves = types.named_leaves(spec.observation)
    ranks = {name: len(leaf.shape) for name, leaf in leaves.items()}
    show = _Vector(ranks, spec.categories, spec.mask, spec.privileged)
    if not set(leaves) - {spec.mask or None, *show.hidden(leaves)}:
        raise errors.UsageError(
            errors.given("env.params.flatten", "true"), f": {spec.name} shows the policy nothing to make a vector of"
        )
    others = [_OBSERVATION, *([episodes.MASK] if spec.mask else [])]
    if spec.privileged in others:
        raise errors.UsageError(
            errors.given("env.params.flatten", "true"),
            f": {spec.name} calls {spec.privileged} what is for training alone, and a vector needs that name; valid: "
            f"a spec with privileged of another name than {' and '.join(others)}",
        )
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), spec.observation)
    observation = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), show(zeros))
    mask = episodes.MASK if spec.mask else ""
    return spec._replace(observation=observation, mask=mask, categories={}), show


@dataclasses.dataclass(frozen=True)
class _Components:
    """Keeps the components i64 [K] of observations [..., D]."""

    indices: np.ndarray

    def __call__(self, observation: Any) -> Any:
        return observation[..., self.indices]


@dataclasses.dataclass(frozen=True)
class _Vector:
    """Makes vectors f32 [..., D] of observations, in NumPy or in a program."""

    ranks: Mapping[str, int]
    categories: Mapping[str, tuple[int, ...]]
    mask: str
    privileged: str

    def __call__(self, observation: Any) -> Any:
        # The names are those of `types.named_leaves`, which would take longer at each step.
        leaves = dict(zip(self.ranks, jax.tree.leaves(observation), strict=True))
        hidden = self.hidden(leaves)
        apart = (self.mask, *hidden) if self.mask else hidden
        joined = self._joined({name: leaf for name, leaf in leaves.items() if name not in apart})
        found = {_OBSERVATION: joined}
        if hidden:
            found[self.privileged] = self._joined({name: leaves[name] for name in hidden})
        if self.mask:
            mask = leaves[self.mask]
            lead = mask.shape[: mask.ndim - self.ranks[self.mask]]
            found[episodes.MASK] = mask.reshape(*lead, -1)
        return found if len(found) > 1 else joined

    def hidden(self, names: Iterable[str]) -> list[str]:
        """Returns the privileged ones of leaves."""
        return [name for name in names if self.privileged and types.is_within(name, self.privileged)]

    def _joined(self, leaves: Mapping[str, Any]) -> Any:
        numbers: Any = jnp if any(isinstance(leaf, jax.Array) for leaf in leaves.values()) else np
        return numbers.concatenate([self._numbers(name, leaf) for name, leaf in leaves.items()], -1)

    def _numbers(self, name: str, leaf: Any) -> Any:
        lead = leaf.shape[: leaf.ndim - self.ranks[name]]
        if name in self.categories:
            # One index of the last axis after the other, each with its own number of values.
            sizes = self.categories[name]
            columns = [leaf] if len(sizes) == 1 else [leaf[..., i] for i in range(len(sizes))]
            pairs = zip(columns, sizes, strict=True)
            hot = [(column[..., None] == np.arange(size)).reshape(*lead, -1) for column, size in pairs]
            numbers: Any = jnp if isinstance(leaf, jax.Array) else np
            return numbers.concatenate(hot, -1).astype(np.float32)
        # Bytes are pixels, as for networks.
        scale = np.float32(1 / 255 if leaf.dtype == np.uint8 else 1)
        return leaf.reshape(*lead, -1).astype(np.float32) * scale


def _shown(environment: envs.Environment, spec: types.EnvironmentSpec, show: Callable[[Any], Any]) -> envs.Environment:
    """Returns an environment whose observations are what `show` makes of them."""

    def shown(result: tuple[ArrayTree, types.TimeStep]) -> tuple[ArrayTree, types.TimeStep]:
        state, timestep = result
        return state, timestep._replace(observation=show(timestep.observation))

    def reset(key: Array) -> tuple[ArrayTree, types.TimeStep]:
        return shown(environment.reset(key))

    def step(state: ArrayTree, action: Array) -> tuple[ArrayTree, types.TimeStep]:
        return shown(environment.step(state, action))

    evaluation = environment.evaluation
    if evaluation is not None:
        own = evaluation.spec._replace(observation=spec.observation, mask=spec.mask, categories=spec.categories)
        evaluation = _shown(evaluation, own, show)
    return environment._replace(reset=reset, step=step, spec=spec, evaluation=evaluation)


def _shown_on_host(task: envs.HostTask, spec: types.EnvironmentSpec, show: Callable[[Any], Any]) -> envs.HostTask:
    def observed(make: envs.MakeHost) -> envs.MakeHost:
        return lambda seeds, batch_size, timeout_s: _Observed(make(seeds, batch_size, timeout_s), spec, show)

    def film(seed: int, timeout_s: float) -> envs.Film:
        made = task.make_film(seed, timeout_s)  # type: ignore[misc]
        return made._replace(environment=_Observed(made.environment, spec, show))

    make_evaluation = observed(task.make_evaluation or task.make)
    make_film = film if task.make_film is not None else None
    return task._replace(spec=spec, make=observed(task.make), make_evaluation=make_evaluation, make_film=make_film)


def spec_of(spec: types.EnvironmentSpec, indices: tuple[int, ...]) -> types.EnvironmentSpec:
    """Returns the spec of an environment that keeps only some components of its observation [D].

    Args:
        spec: of the whole environment.
        indices: components that remain, in this order.

    Raises:
        errors.UsageError: the observation is not one-dimensional, or an index is not in it.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.envs import wrappers
        >>> wrappers.spec_of(envs.make("toy:walk").spec, (1,)).observation.shape
        (1,)
    """
    shape = getattr(spec.observation, "shape", None)
    if shape is None or len(shape) != 1:
        raise errors.UsageError(
            errors.given("env.params.observe"), f" takes observations of shape [D]; {spec.name} has {shape}"
        )
    if not indices or not all(0 <= index < shape[0] for index in indices):
        given = ",".join(map(str, indices))
        raise parameters.refused("observe", given, f"{spec.name} has components 0 … {shape[0] - 1}")
    # A leaf of several numbers may have numbers of values of its own for each.
    categories = {
        name: tuple(numbers[index] for index in indices) if len(numbers) > 1 else numbers
        for name, numbers in spec.categories.items()
    }
    observation = jax.ShapeDtypeStruct((len(indices),), spec.observation.dtype)
    return spec._replace(observation=observation, categories=categories)


class _Observed(checked.Checked):
    """Environments on the CPU whose observations [N, ...] are what `show` makes of them."""

    def __init__(
        self, environment: envs.HostEnvironment, spec: types.EnvironmentSpec, show: Callable[[Any], Any]
    ) -> None:
        super().__init__(spec, environment.num_envs, environment.batch_size)
        self.timeout_s = environment.timeout_s
        self._environment, self._show = environment, show

    @property
    def waiting_since(self) -> float:
        return self._environment.waiting_since

    @property
    def waiting_for(self) -> np.ndarray:
        return self._environment.waiting_for

    def raw_reset(self) -> envs.RawStep:
        self._busy[:] = False
        return self._shown(self._environment.raw_reset())

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        self._environment.raw_send(action, env_ids)
        self._busy[env_ids] = True

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        raw, env_ids = self._environment.raw_recv()
        self._busy[env_ids] = False
        return self._shown(raw), env_ids

    def close(self) -> None:
        self._environment.close()

    def _shown(self, raw: envs.RawStep) -> envs.RawStep:
        return raw._replace(observation=self._show(raw.observation))


def _restart_where_ended(fresh: Callable[[Array], ArrayTree]) -> Callable[..., ArrayTree]:
    """Makes (key, steps, ended, stepped) -> `fresh(child key)` where ended, else `stepped`.

    Random numbers cost more than a step of a small environment (CartPole, 64 environments on a CPU: 22 of 26 µs), and
    most steps reset nothing. So a batch on a CPU branches on whether any of its rows ended. Accelerators always select,
    since a branch would make the host wait for the predicate.
    """

    @custom_batching.custom_vmap
    def restart(key: Array, steps: Array, ended: Array, stepped: ArrayTree) -> ArrayTree:
        # The child key is derived here, not by the caller, so that the branch that resets nothing skips it.
        reset = fresh(jax.random.fold_in(key, steps))
        return jax.tree.map(lambda new, old: jnp.where(ended, new, old), reset, stepped)

    @restart.def_vmap
    def restart_batch(axis_size: int, in_batched: Any, *args: Any) -> Any:
        def broadcast(x: Array, is_batched: bool) -> Array:
            return x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))

        batch = jax.tree.map(broadcast, args, tuple(in_batched))
        all_rows = jax.vmap(restart.fun)

        def only_if_any(key: Array, steps: Array, ended: Array, stepped: ArrayTree) -> ArrayTree:
            return jax.lax.cond(ended.any(), all_rows, lambda *args: args[-1], key, steps, ended, stepped)

        output = jax.lax.platform_dependent(*batch, cpu=only_if_any, default=all_rows)
        return output, jax.tree.map(lambda _: True, output)

    return restart


def _common_struct(bare: envs.BareEnvironment) -> ArrayTree:
    """Returns (state, observation) as structs, with dtypes that can hold the results of both reset and step."""
    key = jax.eval_shape(jax.random.key, 0)
    from_reset = jax.eval_shape(bare.reset, key)
    action, shape = bare.spec.action.struct, (bare.spec.num_agents,) if bare.spec.num_agents > 1 else ()
    action = jax.ShapeDtypeStruct((*shape, *action.shape), action.dtype)
    transition = jax.eval_shape(bare.step, key, from_reset[0], action)
    from_step = (transition.state, transition.observation)
    for name in ("reward", "terminated", "truncated"):
        number = getattr(transition, name)
        if np.shape(number) not in ((), shape):
            found = f"step returns {name} of shape {list(np.shape(number))}"
            raise ValueError(f"{bare.spec.name}: {found}, expected one number{' or one for each agent' * bool(shape)}")
    for leaf in jax.tree.leaves(from_reset[1]) if shape else ():
        if leaf.shape[:1] != shape:
            found = f"reset returns an observation of shape {list(leaf.shape)}"
            raise ValueError(f"{bare.spec.name}: {found}, expected a leading axis of {bare.spec.num_agents} agents")
    of_reset: Any = jax.tree.structure(from_reset)
    of_step: Any = jax.tree.structure(from_step)
    if of_reset != of_step:
        raise ValueError(f"{bare.spec.name}: reset returns the tree {of_reset}, step {of_step}")

    def join(path: Any, reset: Any, step: Any) -> jax.ShapeDtypeStruct:
        if reset.shape != step.shape:
            leaf = jax.tree_util.keystr(path)
            raise ValueError(f"{bare.spec.name}: reset returns shape {reset.shape} at {leaf}, step {step.shape}")
        dtype = reset.dtype if reset.dtype == step.dtype else jnp.promote_types(reset.dtype, step.dtype)
        return jax.ShapeDtypeStruct(reset.shape, dtype)

    return jax.tree_util.tree_map_with_path(join, from_reset, from_step)


def _cast(tree: ArrayTree, struct: ArrayTree) -> ArrayTree:
    """Casts to strong dtypes; keys stay as they are."""

    def cast(x: Any, target: jax.ShapeDtypeStruct) -> Array:
        if jnp.issubdtype(target.dtype, jax.dtypes.prng_key):
            return x
        return jax.lax.convert_element_type(x, target.dtype)

    return jax.tree.map(cast, tree, struct)
