"""The interface of environments; suites/ has one file per suite, which alone imports the suite's library."""

import dataclasses
import functools
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import errors, types
from jaxrl_dist.envs import parameters
from jaxrl_dist.numeric import vectors
from jaxrl_dist.settings import setting, synonyms, user_code
from jaxrl_dist.types import Array, ArrayTree

# An installed package adds the suite NAME by `NAME = "module:SUITE"` under this entry point.
ENTRY_POINTS = "jaxrl_dist.envs"

_LARGEST = 3e38


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the environments; `env.params.NAME=value` goes to the suite as text."""

    num_envs: int = setting(8, "Environments per seed, over all devices.", low=1)


class Transition(NamedTuple):
    """Holds the result of one step of a bare environment; with A agents, numbers [] are [A], or one for all.

    Attributes:
        state: tree, the environment's state after the step.
        observation: tree, the true observation of that state, also at the end of an episode; leaves [A, ...] of agents.
        reward: number [], for arriving there.
        terminated: bool [], whether the environment itself ended.
        truncated: bool [], whether a time limit was reached; `terminated` wins if both are true.
    """

    state: ArrayTree
    observation: ArrayTree
    reward: Array
    terminated: Array
    truncated: Array


class BareEnvironment(NamedTuple):
    """One environment without resets, as a suite offers it to `wrappers.auto_reset`.

    Attributes:
        reset: (key) -> (state, observation).
        step: (key, state, action) -> `Transition`. The action is i32 [] of a `DiscreteSpace`, i32 [K] of a
            `MultiDiscreteSpace`, f32 of its shape of a `BoxSpace`, within its bounds; of A agents with a leading axis
            [A]. It is also called on a state that ended, where what it returns is
            dropped, as compiled programs step all environments at once; so it must come to an end there, too.
        spec: its `observation` may be `()`: `wrappers.auto_reset` reads it from `reset`.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, types
        >>> def reset(key):
        ...     return jnp.int32(0), jnp.zeros(1)  # state, observation
        >>> def step(key, state, action):
        ...     state = state + action
        ...     observation = jnp.full(1, state, jnp.float32)
        ...     return envs.Transition(state, observation, reward=1.0, terminated=state >= 3, truncated=False)
        >>> spec = types.EnvironmentSpec("mine:count", (), types.DiscreteSpace(2), "classic")
        >>> bare = envs.BareEnvironment(reset, step, spec)  # `wrappers.auto_reset` makes an `Environment` of it
        >>> print(bare.step(None, 2, 1).terminated)
        True
    """

    reset: Callable[[Array], tuple[ArrayTree, ArrayTree]]
    step: Callable[[Array, ArrayTree, Array], Transition]
    spec: types.EnvironmentSpec


class Picture(NamedTuple):
    """Draws a device environment.

    Attributes:
        draw: (state of one environment, in NumPy) -> u8 [H, W, 3].
        frames_per_second: at the simulator's own speed.
        page: (such states, frames per second) -> an HTML page that shows them; None if the suite makes none.
    """

    draw: Callable[[ArrayTree], np.ndarray]
    frames_per_second: float
    page: Callable[[Sequence[ArrayTree], float], str] | None = None


class Environment(NamedTuple):
    """One environment on the device: pure, unbatched (`columns` maps it), its state carries its key.

    The step that ends an episode returns its true last observation; the next one ignores the action and resets. With A
    agents, actions and all leaves of timesteps are [A, ...]: an agent whose episode ends before the others' has LAST
    rows until all have ended, and all are reset at once.

    Attributes:
        reset: (key) -> (state, timestep).
        step: (state, action) -> (state, timestep).
        spec: facts that an agent may know of it.
        make_picture: () -> `Picture`, called only to film an episode, so that it may import libraries that draw; None
            if the suite draws nothing.
        evaluation: environment whose episodes are scored, such as one against an opponent where training is self-play;
            its states are this one's, so that an agent may go on from them in thought. None if this one serves both.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs
        >>> environment = envs.make("toy:episode")
        >>> state, timestep = environment.reset(jax.random.key(0))
        >>> state, timestep = environment.step(state, 2)
        >>> print(timestep.observation, timestep.reward)
        [1. 2.] 2.0
    """

    reset: Callable[[Array], tuple[ArrayTree, types.TimeStep]]
    step: Callable[[ArrayTree, Array], tuple[ArrayTree, types.TimeStep]]
    spec: types.EnvironmentSpec
    make_picture: Callable[[], Picture] | None = None
    evaluation: "Environment | None" = None

    def __repr__(self) -> str:
        return types.short_repr(self)


class Columns(NamedTuple):
    """E environments of A agents on the device, which are B = E·A columns.

    Attributes:
        reset: (key, indices i32 [E]) -> (state, leaves [E, ...]; timestep, leaves [B, ...]); environment i has the key
            `fold_in(key, i)`.
        step: (state, action [B, ...]) -> (state, timestep).
    """

    reset: Callable[[Array, Array], tuple[ArrayTree, types.TimeStep]]
    step: Callable[[ArrayTree, Array], tuple[ArrayTree, types.TimeStep]]


def columns(environment: Environment) -> Columns:
    """Maps an environment over columns; returns equal functions for equal environments, so that they compile once.

    Nothing else maps environments, or knows that column e·A + a is agent a of environment e; `column_ids` and
    `outcomes` are the same rule for indices and for ends of episodes.

    Args:
        environment: one on the device.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs
        >>> columns = envs.columns(envs.make("toy:walk"))
        >>> state, timestep = columns.reset(jax.random.key(0), jnp.arange(3))
        >>> state, timestep = columns.step(state, jnp.zeros(3, jnp.int32))
        >>> timestep.observation.shape
        (3, 2)
    """
    return _columns(environment.reset, environment.step, environment.spec.num_agents)


@functools.lru_cache(maxsize=8)
def _columns(reset: Callable[..., Any], step: Callable[..., Any], num_agents: int) -> Columns:
    def reset_all(key: Array, indices: Array) -> tuple[ArrayTree, types.TimeStep]:
        return jax.vmap(lambda index: reset(jax.random.fold_in(key, index)))(indices)  # type: ignore[no-any-return]

    if num_agents == 1:
        return Columns(reset_all, jax.vmap(step))

    def reset_agents(key: Array, indices: Array) -> tuple[ArrayTree, types.TimeStep]:
        state, timestep = reset_all(key, indices)
        return state, vectors.flat(timestep)

    def step_agents(state: ArrayTree, action: Array) -> tuple[ArrayTree, types.TimeStep]:
        state, timestep = jax.vmap(step)(state, action.reshape(-1, num_agents, *action.shape[1:]))
        return state, vectors.flat(timestep)

    return Columns(reset_agents, step_agents)


def column_ids(env_ids: Any, num_agents: int) -> Any:
    """Returns the columns i32 [N·A] of environments i32 [N], in NumPy or in a program.

    Args:
        env_ids: environments.
        num_agents: A.

    Example:
        >>> import numpy as np
        >>> from jaxrl_dist import envs
        >>> print(envs.column_ids(np.array([2, 0]), num_agents=3))
        [6 7 8 0 1 2]
    """
    if num_agents == 1:
        return env_ids
    return (env_ids[:, None] * num_agents + np.arange(num_agents, dtype=np.int32)).reshape(-1)


class Outcomes(NamedTuple):
    """Ends of episodes; an episode of several agents is one, and ends once, with the last of them.

    Attributes:
        ended: bool [..., E], whether the episode ends here.
        episode_return: f32 [..., E], so far: the mean over the environment's agents.
        episode_length: i32 [..., E], steps of the environment so far.
    """

    ended: Any
    episode_return: Any
    episode_length: Any


def outcomes(num_agents: int, step_type: Any, episode_return: Any, episode_length: Any) -> Outcomes:
    """Joins the columns of each environment, in NumPy or in a program.

    Args:
        num_agents: A.
        step_type: i8 [..., B] with B = E·A.
        episode_return: f32 [..., B], of each agent.
        episode_length: i32 [..., B], likewise.

    Example:
        >>> import numpy as np
        >>> from jaxrl_dist import envs, types
        >>> step_type = np.array([types.LAST, types.LAST, types.LAST, types.MID])
        >>> found = envs.outcomes(2, step_type, np.array([1.0, 3.0, 5.0, 7.0]), np.array([4, 2, 9, 9]))
        >>> print(found.ended, found.episode_return, found.episode_length)
        [ True False] [2. 6.] [4 9]
    """
    ended = step_type == types.LAST
    if num_agents == 1:
        return Outcomes(ended, episode_return, episode_length)
    ended, returns, lengths = (
        x.reshape(*x.shape[:-1], -1, num_agents) for x in (ended, episode_return, episode_length)
    )
    return Outcomes(ended.all(-1), returns.mean(-1), lengths.max(-1))


class RawStep(NamedTuple):
    """Columns of N environments on the CPU, as cheap as their library gives them; `host.episodes.timestep` reads them.

    Attributes:
        observation: tree of [N, ...] as in the spec; f64 where the spec has f32.
        reward: [N], real; anything where `is_first`.
        is_first: bool [N], whether the environment was reset instead of stepped.
        is_last: bool [N], whether its episode has ended. Both: it was lost, and its episode is cut short here, at its
            last observation, with reward 0 and discount 1; the episode is not counted.
        discount: bool [N], False where it terminated or lost a life; anything where `is_first`.
    """

    observation: ArrayTree
    reward: Any
    is_first: Any
    is_last: Any
    discount: Any


class HostEnvironment(Protocol):
    """B environments on the CPU, batched, in NumPy, with the same reset rule as `Environment`.

    With A agents in each, arrays of timesteps and actions have B·A columns, where B stands below, and N·A for N;
    environments are still named by B indices.

    It has two faces. `reset`, `step`, `send` and `recv` check what they take and what they give, at every step. The raw
    ones check nothing, for actors, who check the rows of a whole unroll at once with `account`; `host.checked.Checked`
    makes the first of the second.

    One thread at a time uses it. Returned arrays are never written to again. Some libraries wait for ever, in native
    code, for an environment that hangs; another thread therefore calls `hangs.check_waiting` now and then, which reads
    the three attributes below.

    Attributes:
        spec: facts that an agent may know of one of them.
        num_envs: B.
        batch_size: number of environments that `recv` returns at a time, B if it waits for all.
        timeout_s: a step that takes longer is a fault.
        waiting_since: `hangs.now()` when a call began to wait for environments; 0 while none waits, and always 0
            if the environments end a wait of `timeout_s` themselves.
        waiting_for: i32 [N], environments that are being stepped.
    """

    spec: types.EnvironmentSpec
    num_envs: int
    batch_size: int

    @property
    def timeout_s(self) -> float: ...
    @property
    def waiting_since(self) -> float: ...
    @property
    def waiting_for(self) -> np.ndarray: ...

    def reset(self) -> types.TimeStep:
        """Starts every environment anew, and returns the first timesteps, leaves [B, ...].

        Raises:
            EnvironmentFault: one of them died, hung or returned an invalid value.
        """

    def step(self, action: np.ndarray) -> types.TimeStep:
        """Steps every environment with action [B, ...] and returns leaves [B, ...].

        Raises:
            EnvironmentFault: one of them died, hung or returned an invalid value.
            ValueError: an action is not one of the action space.
        """

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of the environments i32 [N], none of which is being stepped, with action [N, ...].

        Raises:
            ValueError: an action is not one of the action space.
        """

    def recv(self) -> tuple[types.TimeStep, np.ndarray]:
        """Waits for the first `batch_size` environments that have stepped: leaves [N, ...], their indices i32 [N].

        Raises:
            EnvironmentFault: one of them died, hung or returned an invalid value.
        """

    def raw_reset(self) -> RawStep:
        """Starts every environment anew, waiting first for those that are being stepped; leaves [B, ...].

        Raises:
            EnvironmentFault: one of them died or hung.
        """

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of the environments i32 [N] with action i32 [N] or f32 [N, ...], and checks neither."""

    def raw_recv(self) -> tuple[RawStep, np.ndarray]:
        """Waits as `recv` does; leaves [N, ...] that nothing has checked, and their indices i32 [N].

        Raises:
            EnvironmentFault: one of them died or hung.
        """

    def account(self, rows: types.TimeStep, lost: np.ndarray, env_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Checks rows of the raw face, and follows their episodes; every row comes once, in order.

        Args:
            rows: leaves [T, N, ...] in NumPy, the next T rows of each environment.
            lost: bool [T, N], rows where an episode was cut short.
            env_ids: i32 [N], all different.

        Returns:
            Return f32 [T, N] and length i32 [T, N] of the episode so far, both 0 where it was cut short.

        Raises:
            EnvironmentFault: a number is not finite or out of range, or a reset is out of place.
        """

    def close(self) -> None:
        """Ends threads and processes of the environments and frees their memory; further calls do nothing.

        If an environment hangs, it does not wait for that, and any thread may call it.
        """


class Film(NamedTuple):
    """One environment on the CPU that can be drawn while it is played.

    Attributes:
        environment: with B = 1.
        frame: (its last observation, without the batch axis) -> u8 [H, W, 3].
        frames_per_second: at the simulator's own speed.
        page: (frames per second) -> an HTML page of all frames so far; None if the suite makes none.
    """

    environment: HostEnvironment
    frame: Callable[[ArrayTree], np.ndarray]
    frames_per_second: float
    page: Callable[[float], str] | None = None


MakeHost = Callable[[np.ndarray, int, float], HostEnvironment]


class HostTask(NamedTuple):
    """A task of a suite on the CPU, from which environments are made.

    Attributes:
        spec: facts that an agent may know of one environment.
        protocol: one line on the rules on which scores depend, printed with every result; "" if there are none.
        make: (seeds u32 [B], batch_size, timeout_s) -> `HostEnvironment`. Environment i is seeded with `seeds[i]` (31
            bits); `recv` returns `batch_size` rows at a time, B waits for all; a step longer than `timeout_s` is a
            fault.
        make_evaluation: as `make`, for environments whose episodes are scored; None if `make` serves both.
        make_film: (seed of 31 bits, timeout_s) -> `Film`; None if the suite draws nothing.
        steps_together: whether the environments of one `make` all step together, so that `batch_size` must be B.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.envs.host import as_host
        >>> on_device = envs.make("toy:episode")
        >>> def make(seeds, batch_size, timeout_s):
        ...     return as_host.AsHost(on_device, len(seeds), jax.random.key(seeds[0]))
        >>> task = envs.HostTask(on_device.spec, protocol="", make=make)
        >>> environment = task.make(np.arange(2, dtype=np.uint32), 2, 60.0)
        >>> environment.reset().observation.shape
        (2, 2)
    """

    spec: types.EnvironmentSpec
    protocol: str
    make: MakeHost
    make_evaluation: MakeHost | None = None
    make_film: Callable[[int, float], Film] | None = None
    steps_together: bool = False

    def __repr__(self) -> str:
        return types.short_repr(self)


class Suite(NamedTuple):
    """Describes a suite before its library is imported; the record `SUITE` of a file of `envs/suites`.

    For a device suite, `make` builds a `BareEnvironment` (reset and step without resets, terminated and truncated
    apart) and returns `wrappers.auto_reset` of it; `parameters.parse_params` reads its parameters. Only `make` imports
    the library. The library is an extra of `pyproject.toml` with the suite's name, so that the error for a missing
    package names what to install. `tests/envs/test_conformance.py` plays a known episode through the adapter and
    compares its rows. A suite that draws gives its environments a `make_picture` or its tasks a `make_film`; an
    observation that is a picture needs neither.

    Attributes:
        name: before the colon of an environment's name.
        runs_on: `device` or `host`.
        make: (name of the task, its parameters as text) -> `Environment` or `HostTask`.
        environments: names of its tasks; () if `make` checks the name itself.
        draws: its tasks that can be filmed, in words; "" if it draws nothing.
    """

    name: str
    runs_on: str
    make: Callable[[str, dict[str, str]], Environment | HostTask]
    environments: tuple[str, ...] = ()
    draws: str = ""


def _contradictions(spec: types.EnvironmentSpec) -> Iterator[str]:
    """Yields each fact of a spec that does not fit the others or the observation, and what would fit."""
    space, leaves = spec.action, types.named_leaves(spec.observation)
    names = f"the observation has {', '.join(leaves)}" if types.is_tree(spec.observation) else "it is one array"
    if isinstance(space, types.BoxSpace):
        try:
            low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
        except ValueError:
            yield f"an action of shape {list(space.shape)} with bounds of another"
            return
        if not (low <= high).all():
            yield f"an action from {space.low} to {space.high}; expected low <= high everywhere"
    elif not isinstance(space, types.DiscreteSpace | types.MultiDiscreteSpace):
        yield f"an action of {type(space).__name__}; expected a DiscreteSpace, MultiDiscreteSpace or BoxSpace"
        return
    elif not np.size(space.num_values) or np.min(space.num_values) < 1:
        yield f"an action of num_values={space.num_values}; expected at least 1"
    if not spec.reward_range[0] <= spec.reward_range[1]:
        yield f"reward_range={spec.reward_range}; expected (lowest, highest)"
    for fact, name in (("mask", spec.mask), *(("categories", name) for name in spec.categories)):
        if name not in leaves and (name or fact == "categories"):
            yield f"{fact} of {name!r}; {names}{errors.nearest(name, leaves)}"
            return
    if spec.privileged and not any(types.is_within(name, spec.privileged) for name in leaves):
        yield f"privileged={spec.privileged!r}; {names}{errors.nearest(spec.privileged, leaves)}"
    if spec.mask:
        size = math.prod(leaves[spec.mask].shape)
        numbers = 0 if isinstance(space, types.BoxSpace) else int(np.sum(space.num_values))
        if size != numbers:
            yield f"mask={spec.mask!r}, a leaf of {size}; the action has {numbers} choices"
    for name, sizes in spec.categories.items():
        shape, dtype = leaves[name].shape, np.dtype(leaves[name].dtype)
        if not (np.issubdtype(dtype, np.integer) or dtype == np.bool_):
            yield f"categories of {name!r}, a leaf of {dtype}; expected whole numbers"
        if len(sizes) != 1 and shape[-1:] != (len(sizes),):
            yield f"{len(sizes)} categories of {name!r}, a leaf of shape {list(shape)}; expected one, or one for each"
        if min(sizes, default=0) < 1:
            yield f"categories={dict(spec.categories)}; expected at least 1 of {name!r}"


@functools.cache
def registry() -> Mapping[str, Suite]:
    """Returns the suites by name: those of this package, and those that installed packages offer.

    Raises:
        errors.UsageError: a package cannot be imported, or does not offer a `Suite`.

    Example:
        >>> from jaxrl_dist import envs
        >>> envs.registry()["gymnax"].runs_on, envs.registry()["envpool"].runs_on
        ('device', 'host')
    """
    package = importlib.import_module("jaxrl_dist.envs.suites")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."))
    found = [getattr(importlib.import_module(name), "SUITE", None) for name in names]
    by_name = {suite.name: suite for suite in found if suite is not None}
    for name, text in user_code.installed(ENTRY_POINTS).items():
        point = f"the entry point {name} of {ENTRY_POINTS}"
        suite = user_code.load(
            errors.Worded(point, point), text, "Suite", lambda value: isinstance(value, Suite), is_offered=True
        )
        by_name.setdefault(name, suite._replace(name=name))
    return by_name


def find_suite(name: str) -> Suite:
    """Returns the suite of an environment's name; its library is not imported.

    Args:
        name: `suite:name`.

    Raises:
        errors.UsageError: the suite or the environment is unknown.

    Example:
        >>> from jaxrl_dist import envs
        >>> envs.find_suite("gymnax:CartPole-v1").name
        'gymnax'
        >>> envs.find_suite("gymnax:CartPol-v1")
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: env=gymnax:CartPol-v1: gymnax has CartPole-v1, …; did you mean CartPole-v1?
    """
    by_name = registry()
    full_names = [f"{suite.name}:{member}" for suite in by_name.values() for member in suite.environments]
    suite, separator, member = name.partition(":")
    if not separator or not member:
        namesakes = [full for full in full_names if full.split(":")[1].casefold() == name.casefold()]
        hint = f"; did you mean {namesakes[0]}?" if namesakes else errors.nearest(name, full_names)
        if suite in by_name:
            hint = f"; did you mean {suite}:{(by_name[suite].environments or ('NAME',))[0]}?"
        raise errors.UsageError(
            errors.given("env", name), f": expected suite:name, suites are {', '.join(by_name)}{hint}"
        )
    if suite not in by_name and suite in synonyms.REFUSED:
        raise errors.UsageError(errors.given("env", name), f": {synonyms.REFUSED[suite]}")
    if suite not in by_name:
        ours = synonyms.SUITES.get(suite)
        hint = f"; did you mean {ours}:{member}?" if ours else errors.nearest(name, full_names)
        hint = hint or errors.nearest(suite, by_name)
        raise errors.UsageError(
            errors.given("env", name), f": no suite {suite}, expected one of {', '.join(by_name)}{hint}"
        )
    found = by_name[suite]
    if found.environments and member not in found.environments:
        hint = errors.nearest(member, found.environments)
        raise errors.UsageError(errors.given("env", name), f": {suite} has {', '.join(found.environments)}{hint}")
    return found


def make(name: str, params: Mapping[str, str] | None = None) -> Environment | HostTask:
    """Makes a device environment, or the task from which environments on the CPU are made.

    Args:
        name: `suite:name`, such as `gymnax:CartPole-v1`.
        params: texts for the suite's own parameters. Three are handled here for every suite: by `flatten=true` an
            observation is one vector, by `observe=0,2` only these components of a vector are shown to the agent, and by
            `mask=false` the mask of legal actions forbids none, and is a leaf like others.

    Returns:
        `Environment` on the device, or `HostTask`.

    Raises:
        errors.UsageError: the suite, its package, the name or a parameter does not exist, a value does not fit or is
            not trusted, or the facts of the environment's spec contradict each other.

    Example:
        >>> from jaxrl_dist import envs
        >>> envs.make("toy:walk", {"length": "10"}).spec.time_limit
        10
        >>> envs.make("toy:walk", {"observe": "1"}).spec.observation.shape
        (1,)
    """
    suite, task = find_suite(name), name.partition(":")[2]
    remaining = dict(params or {})
    parameters.check_trusted(remaining)
    kept, flatten = remaining.pop(parameters.OBSERVE, None), remaining.pop(parameters.FLATTEN, "false")
    flattens = parameters.parse(parameters.FLATTEN, flatten, False)
    masks = parameters.parse(parameters.MASK, remaining.pop(parameters.MASK, "true"), True)
    try:
        environment = suite.make(task, remaining)
    except ModuleNotFoundError as error:
        raise errors.missing_package(errors.given("env", name), error.name, suite.name) from error
    for wrong in _contradictions(environment.spec):
        raise errors.UsageError(errors.given("env", name), f": its spec has {wrong}")
    if not masks:
        if not environment.spec.mask:
            raise parameters.refused(parameters.MASK, "false", f"{name} has no mask of actions")
        environment = environment._replace(spec=environment.spec._replace(mask=""))
    # These build on this module's records, so they cannot be imported above.
    from jaxrl_dist.envs import wrappers

    if flattens:
        if isinstance(environment, HostTask):
            environment = wrappers.flatten_on_host(environment)
        else:
            environment = wrappers.flatten(environment)
    if kept is None:
        return environment
    indices = tuple(int(parameters.parse(parameters.OBSERVE, index, 0)) for index in kept.split(","))
    if isinstance(environment, HostTask):
        return wrappers.observe_on_host(environment, indices)
    return wrappers.observe(environment, indices)


def out_of_range(spec: types.EnvironmentSpec, timestep: types.TimeStep) -> dict[str, Any]:
    """Finds rows whose numbers are not finite, or outside the ranges that the environment declares.

    Args:
        spec: spec of the environment.
        timestep: leaves [..., B, ...], in NumPy or on the device.

    Returns:
        Field of the timestep -> bool, of the shape of `timestep.reward`.

    Example:
        >>> import numpy as np
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.parallel import unroll
        >>> spec = envs.make("toy:walk").spec
        >>> timestep = unroll.zero_timestep(spec, width=2)._replace(reward=np.array([1.0, np.nan], np.float32))
        >>> envs.out_of_range(spec, timestep)["reward"]
        array([False,  True])
    """
    low, high = (bound + sign * 1e-5 * (1 + abs(bound)) for bound, sign in zip(spec.reward_range, (-1, 1), strict=True))
    reward, discount, lead = timestep.reward, timestep.discount, timestep.reward.ndim
    # The reward of a FIRST row is 0 by rule, even if the range excludes 0; NaN compares as False with everything.
    wrong = {
        "reward": ~((abs(reward) <= _LARGEST) & (reward >= min(low, 0.0)) & (reward <= max(high, 0.0))),
        "discount": ~((discount >= 0) & (discount <= 1)),
    }
    for name, leaf in types.named_leaves(timestep.observation).items():
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            # A number that a narrow float does not hold is infinite there.
            largest = min(_LARGEST, float(jnp.finfo(leaf.dtype).max))
            finite = (abs(leaf) <= largest).reshape(*leaf.shape[:lead], -1).all(-1)
            wrong[f"observation/{name}".rstrip("/")] = ~finite
    return wrong
