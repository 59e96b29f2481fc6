"""Seeds, checks of actions and rows, and bookkeeping of episodes, for all adapters of CPU environments."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, errors, types

_LARGEST = 3e38
# Bounds so large are none: of actions drawn from so wide a range nothing is learned.
_NO_BOUND = 1e9
# Smaller images are too small for the convolutions of the family of Atari.
PIXELS = 36
# Steps of the longest episodes of classic control, whose settings are tuned to them.
_LONG = 500
# Name of the leaf of an observation that says which actions are legal, as PettingZoo's and Gymnasium's tasks have it.
MASK = "action_mask"
# Bytes of MiniGrid's pictures are no pixels but codes: kinds, colours and states (minigrid/core/constants.py), where a
# state is that of a door, or a direction.
GRID_CODES = (11, 6, 4)
# The leaf that Playground and its ports show to critics alone.
PRIVILEGED = "privileged_state"


def seeds(seed: int, purpose: str, session: int, first_env: int, num_envs: int) -> np.ndarray:
    """Returns u32 [B] of 31 bits, one seed per environment, independent over runs, purposes, sessions and indices.

    Args:
        seed: seed of the run.
        purpose: such as "training" or "evaluation".
        session: number of the run's session, or of the evaluation, so that no episode is played twice.
        first_env: global index of the first environment.
        num_envs: B.
    """
    tag = int.from_bytes(purpose.encode(), "little")
    words = [
        np.random.SeedSequence((seed, tag, session, env)).generate_state(1)[0]
        for env in range(first_env, first_env + num_envs)
    ]
    return np.asarray(words, np.uint32) >> 1


def check_action(spec: types.EnvironmentSpec, action: np.ndarray, env_ids: np.ndarray | None = None) -> np.ndarray:
    """Checks actions, since native code checks none, and returns them in the spec's dtype, reals clipped.

    Args:
        spec: of the environment.
        action: i32 [N] or [N, K], or f32 [N, ...].
        env_ids: i32 [N], for the message; by default 0 … N − 1.

    Raises:
        ValueError: wrong shape, an integer out of range, or a number that is not finite.
    """
    action, space = np.asarray(action), spec.action
    _check_kind(spec, action)
    valid = _valid(space, action)
    if not valid.all():
        row = int((~valid).argmax())
        env = row if env_ids is None else env_ids[row // spec.num_agents]
        expected = "finite numbers"
        if not isinstance(space, types.BoxSpace):
            expected = f"0 to {np.subtract(space.num_values, 1).tolist()}"
        raise ValueError(f"{spec.name}: action {action[row]} for environment {env}; valid: {expected}")
    if isinstance(space, types.BoxSpace):
        return np.ascontiguousarray(np.clip(action, space.low, space.high), np.float32)
    return np.ascontiguousarray(action, np.int32)


def check_actions(spec: types.EnvironmentSpec, actions: np.ndarray) -> None:
    """Checks the actions [T, N, ...] of T rows, of which `safe_action` was sent.

    Raises:
        ValueError: as `check_action`, for the first such row.
    """
    if not _valid(spec.action, actions).all():
        for action in actions:
            check_action(spec, action)


def safe_action(spec: types.EnvironmentSpec, action: jax.Array) -> jax.Array:
    """Makes actions [N, ...] in a program that no native code can go wrong with: reals clipped, and zero where invalid.

    Raises:
        ValueError: wrong shape or type.
    """
    _check_kind(spec, action)
    space, valid = spec.action, _valid(spec.action, action)
    finite = jnp.where(valid.reshape(-1, *(1,) * (action.ndim - 1)), action, 0)
    if not isinstance(space, types.BoxSpace):
        return finite.astype(np.int32)
    return jnp.clip(finite, space.low, space.high).astype(np.float32)


def _check_kind(spec: types.EnvironmentSpec, action: Any) -> None:
    space, shape = spec.action, spec.action.struct.shape
    if action.shape[1:] != shape or action.ndim == 0:
        raise ValueError(f"{spec.name}: actions of shape {list(action.shape)}, expected [N, {list(shape)}]")
    if not isinstance(space, types.BoxSpace) and action.dtype.kind not in "iu":
        raise ValueError(f"{spec.name}: actions of type {action.dtype}, expected integers")


def _valid(space: types.ActionSpace, action: Any) -> Any:
    """Returns bool [...], whether an action [...] or [..., *shape] is one of the space, of any finite reals."""
    if isinstance(space, types.DiscreteSpace):
        return (action >= 0) & (action < space.num_values)
    if isinstance(space, types.MultiDiscreteSpace):
        return ((action >= 0) & (action < np.asarray(space.num_values))).all(-1)
    numbers: Any = jnp if isinstance(action, jax.Array) else np
    lead = action.ndim - len(space.shape)
    return numbers.isfinite(action).reshape(*action.shape[:lead], -1).all(-1)


def check_ids(spec: types.EnvironmentSpec, env_ids: np.ndarray, num_actions: float, num_envs: int) -> np.ndarray:
    """Checks which environments are to be stepped, and returns their indices as i32 [N].

    Args:
        spec: spec of one environment.
        env_ids: integers [N].
        num_actions: number of actions for them, or of the actions of all their agents.
        num_envs: B.

    Raises:
        ValueError: there are no indices, or more or fewer than actions, or one is out of range or comes twice.
    """
    ids = np.asarray(env_ids, np.int32)
    is_within = ids.ndim == 1 and len(ids) == num_actions > 0 and ids.min() >= 0 and ids.max() < num_envs
    if not is_within or np.bincount(ids).max() > 1:
        raise ValueError(
            f"{spec.name}: env_ids={ids.tolist()} for {num_actions:g} actions: expected as many distinct indices in "
            f"0 … {num_envs - 1}"
        )
    return ids


def check_idle(spec: types.EnvironmentSpec, env_ids: np.ndarray, busy: np.ndarray) -> None:
    """Raises a ValueError where one of the environments i32 [N] is being stepped, as bool [B] says."""
    if busy[env_ids].any():
        wrong = env_ids[busy[env_ids]].tolist()
        raise ValueError(f"{spec.name}: env_ids={wrong} are being stepped: receive them first")


def check_timestep(spec: types.EnvironmentSpec, timestep: types.TimeStep, env_ids: np.ndarray, steps: Any) -> None:
    """Refuses a timestep with numbers that are not finite, or out of the range that the environment declares.

    Args:
        spec: of the environment.
        timestep: leaves [N, ...].
        env_ids: i32 [N].
        steps: i64 [N], steps of each environment so far, for the message.

    Raises:
        errors.EnvironmentFault: names the first such field, environment and step.
    """
    if _is_within_range(spec, timestep):
        return
    for field, wrong in envs.out_of_range(spec, timestep).items():
        if np.any(wrong):
            row = int(np.argmax(wrong))
            ranges = {"reward": spec.reward_range, "discount": (0.0, 1.0)}
            found = "is not finite"
            if field in ranges:
                low, high = ranges[field]
                found = f"is {getattr(timestep, field)[row]:g}, expected a finite number from {low:g} to {high:g}"
            raise errors.EnvironmentFault(
                f"the {field} of {spec.name}, environment {env_ids[row]}, at its step {np.asarray(steps)[row]} {found}"
            )


def _is_within_range(spec: types.EnvironmentSpec, timestep: types.TimeStep) -> bool:
    """Says whether a batch is known to be within range by few reductions; a wrong row's name takes many (64 µs of 180).

    NaN compares as False with everything. Of floats other than float32 nothing is known.
    """
    low, high = (min(spec.reward_range[0], 0.0), max(spec.reward_range[1], 0.0))
    inside = timestep.reward.min() >= max(low, -_LARGEST) and timestep.reward.max() <= min(high, _LARGEST)
    inside = inside and timestep.discount.min() >= 0 and timestep.discount.max() <= 1
    # Those of JAX that NumPy lacks, such as bfloat16, are of the kind V.
    reals = [leaf for leaf in jax.tree.leaves(timestep.observation) if leaf.dtype.kind in "fV" and leaf.size]
    if not inside or any(leaf.dtype != np.float32 for leaf in reals):
        return False
    return all(leaf.min() >= -_LARGEST and leaf.max() <= _LARGEST for leaf in reals)


def timestep(raw: envs.RawStep) -> types.TimeStep:
    """Makes the timestep of raw columns, in NumPy or in a program, with the same bits in both.

    Args:
        raw: leaves [..., N, ...].

    Returns:
        Leaves [..., N, ...], real numbers as f32; `info` is ().
    """
    numbers: Any = jnp if isinstance(raw.is_first, jax.Array) else np
    # Selected, not multiplied by 0, since a library may return any reward for a reset, even NaN.
    reward = numbers.where(raw.is_first, np.float32(0), raw.reward).astype(np.float32)
    # FIRST 0, MID 1, LAST 2.
    step_type = numbers.where(raw.is_last, np.int8(types.LAST), (~raw.is_first).astype(np.int8))
    discount = (raw.discount | raw.is_first).astype(np.float32)
    return types.TimeStep(step_type, reward, discount, jax.tree.map(_cast, raw.observation), ())


def raw_step(timestep: types.TimeStep) -> envs.RawStep:
    """Returns the columns [..., N, ...] of which `timestep` makes these timesteps, whose discounts are 0 or 1."""
    is_first, is_last = timestep.step_type == types.FIRST, timestep.step_type == types.LAST
    return envs.RawStep(timestep.observation, timestep.reward, is_first, is_last, timestep.discount != 0)


def lost(raw: envs.RawStep) -> np.ndarray:
    """Returns bool [..., N], rows that cut an episode short since its environment was lost."""
    both: np.ndarray = raw.is_first & raw.is_last
    return both


class Account(NamedTuple):
    """The account that `Episodes` keeps of B environments; with A agents all are [B·A].

    Attributes:
        steps: i32 [B], rows so far.
        ended: bool [B], whether the last row was LAST.
        episode_return: f32 [B], so far.
        episode_length: i32 [B], so far.
    """

    steps: Any
    ended: Any
    episode_return: Any
    episode_length: Any


class Episodes:
    """Follows the episodes of B environments with next-step reset by their rows, and checks these.

    Attributes:
        steps: i64 [B], rows so far; with A agents it and `ended` are [B·A].
        ended: bool [B], whether the last row was LAST, so that the next is FIRST; at first True. With A agents it holds
            for each, and the next is FIRST once it holds for all.
    """

    def __init__(self, spec: types.EnvironmentSpec, num_envs: int) -> None:
        """Starts with no episode.

        Args:
            spec: of one environment.
            num_envs: B.
        """
        self._spec = spec
        columns = num_envs * spec.num_agents
        self.steps = np.zeros(columns, np.int64)
        self.ended = np.ones(columns, bool)
        self._return = np.zeros(columns, np.float32)
        self._length = np.zeros(columns, np.int32)

    def account(self) -> Account:
        """Returns a copy of the account."""
        return Account(self.steps.astype(np.int32), self.ended.copy(), self._return.copy(), self._length.copy())

    def go_on(self, account: Account) -> None:
        """Takes over the account of saved environments."""
        self.steps = np.array(account.steps, np.int64)
        self.ended = np.array(account.ended, bool)
        self._return = np.array(account.episode_return, np.float32)
        self._length = np.array(account.episode_length, np.int32)

    def add(self, rows: types.TimeStep, lost: np.ndarray, env_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Checks and follows the next rows of some environments, see `envs.HostEnvironment.account`."""
        is_first, is_last = rows.step_type == types.FIRST, rows.step_type == types.LAST
        num_agents = self._spec.num_agents
        self._check_resets(is_first, is_last, env_ids)
        env_ids = envs.column_ids(env_ids, num_agents)
        if not _is_within_range(self._spec, rows):
            for t in range(len(is_first)):
                row = jax.tree.map(lambda x: x[t], rows)  # noqa: B023
                check_timestep(self._spec, row, env_ids // num_agents, self.steps[env_ids] + t + 1)
        returns, total = np.empty(is_first.shape, np.float32), self._return[env_ids]
        for t, some_begin in enumerate(is_first.any(1).tolist()):
            # Added one by one, as an environment on the device does.
            total = np.add(total, rows.reward[t], out=returns[t])
            if some_begin:
                np.copyto(total, 0, where=is_first[t])
        if num_agents == 1:
            count: Any = np.arange(1, len(is_first) + 1, dtype=np.int32)[:, None]
        else:
            # Once its episode has ended, an agent acts no more until all are reset.
            count = np.cumsum(~np.concatenate([self.ended[env_ids][None], is_last[:-1]]), 0, dtype=np.int32)
        lengths = count - np.maximum.accumulate(np.where(is_first, count, -self._length[env_ids]), 0)
        self._return[env_ids], self._length[env_ids], self.ended[env_ids] = returns[-1], lengths[-1], is_last[-1]
        self.steps[env_ids] += len(is_first)
        if lost.any():
            returns[lost], lengths[lost] = 0, 0
        self._check_limit(lengths, is_last, env_ids)
        return returns, lengths

    def _check_limit(self, lengths: np.ndarray, is_last: Any, env_ids: np.ndarray) -> None:
        limit = self._spec.time_limit
        if limit and lengths.max() >= limit:
            too_long = ((lengths >= limit) & ~is_last).any(0)
            if too_long.any():
                # An evaluation would count its beginning as a whole episode.
                raise errors.EnvironmentFault(
                    f"{self._spec.name}: environment {env_ids[too_long.argmax()] // self._spec.num_agents} did not end "
                    f"its episode by its time limit of {limit} steps"
                )

    def _check_resets(self, is_first: Any, is_last: Any, env_ids: np.ndarray) -> None:
        num_agents = self._spec.num_agents
        before = np.concatenate([self.ended[envs.column_ids(env_ids, num_agents)][None], is_last[:-1]])
        misplaced = is_first != before
        if num_agents > 1:
            agents = before.reshape(len(before), -1, num_agents)
            all_ended = np.repeat(agents.all(-1), num_agents, -1)
            misplaced = (is_first != all_ended) | (before & ~all_ended & ~is_last)
        if misplaced.any():
            env = env_ids[misplaced.any(0).argmax() // num_agents]
            raise errors.EnvironmentFault(
                f"{self._spec.name}: environment {env} was not reset in the step after its episode's end, or elsewhere"
            )


class Actions(NamedTuple):
    """Actions of a space of Gymnasium's.

    Attributes:
        space: as agents see it; an array of choices is a vector of them.
        dtype: of an action for the environment.
        shape: likewise.
        start: the environment's action less the agent's, a number or an array of this shape; None if they are equal.
    """

    space: types.ActionSpace
    dtype: str
    shape: tuple[int, ...]
    start: Any = None


def actions(space: Any, name: str) -> Actions:
    """Reads an action space of Gymnasium's.

    Args:
        space: the space.
        name: full name of the environment, for the message.

    Raises:
        errors.UsageError: it is neither of choices, nor a `Box` of real numbers.
    """
    kind, start = type(space).__name__, getattr(space, "start", 0)
    start = start if np.any(start) else None
    if kind == "Discrete":
        return Actions(types.DiscreteSpace(int(space.n)), space.dtype.str, (), start)
    if kind in ("MultiDiscrete", "MultiBinary"):
        shape = tuple(space.shape)
        numbers = np.broadcast_to(space.nvec if kind == "MultiDiscrete" else 2, shape)
        return Actions(types.MultiDiscreteSpace(tuple(numbers.ravel().tolist())), space.dtype.str, shape, start)
    if kind == "Box" and np.issubdtype(space.dtype, np.floating):
        low, high = map(_bound, (space.low, space.high))
        # Rounding to f32 must not lead out of the f64 bounds, which some environments check.
        low = np.where(np.isfinite(low) & (low < space.low), np.nextafter(low, np.float32(np.inf)), low)
        high = np.where(np.isfinite(high) & (high > space.high), np.nextafter(high, np.float32(-np.inf)), high)
        return Actions(types.BoxSpace(tuple(space.shape), low, high), space.dtype.str, tuple(space.shape))
    raise errors.UsageError(
        errors.given("env", name),
        f": its actions are {space}; valid: Discrete, MultiDiscrete, MultiBinary, or a Box of real numbers; a module "
        "that registers the environment within gymnasium's TransformAction makes them of others",
    )


def plain_space(space: Any, name: str) -> types.ActionSpace:
    """Returns the actions of a space of Gymnasium's whose environment takes them as agents choose them.

    Raises:
        errors.UsageError: it does not, or they are of another kind.
    """
    found = actions(space, name)
    if found.start is not None or found.shape != found.space.struct.shape:
        raise errors.UsageError(errors.given("env", name), f": its actions are {space}; valid: those that count from 0")
    return found.space


def mask_of(observation: Any, action: types.ActionSpace) -> str:
    """Returns the name of the leaf of an observation, called action_mask, that says which actions are legal, or ""."""
    count = getattr(action, "num_values", 0)
    for name, leaf in types.named_leaves(observation).items():
        if name.rpartition("/")[2] == MASK and leaf.size == np.sum(count) and leaf.dtype.kind in "bui":
            return name
    return ""


def family(observation: Any, action: types.ActionSpace, time_limit: int) -> str:
    """Returns the family of a task by its observation, a tree of structs, its actions, and its time limit (0: none)."""
    if isinstance(action, types.BoxSpace):
        return "continuous"
    leaves = jax.tree.leaves(observation)
    images = [leaf for leaf in leaves if leaf.dtype == np.uint8 and len(leaf.shape) == 3]
    if any(min(leaf.shape[:2]) >= PIXELS for leaf in images):
        return "atari"
    if any(len(leaf.shape) == 3 and min(leaf.shape[:2]) < PIXELS for leaf in leaves):
        return "grid"
    return "long" if time_limit > _LONG and all(len(leaf.shape) < 2 for leaf in leaves) else "classic"


def is_of_small_bytes(space: Any) -> bool:
    """Says whether a space is a `Box` of bytes that end below 255: numbers or flags, and no pixels.

    An agent sees them as i16, since networks divide bytes, the pixels of all suites, by 255.
    """
    return type(space).__name__ == "Box" and space.dtype == np.uint8 and bool(np.max(space.high, initial=0) < 255)


def is_of_integers(space: Any) -> bool:
    """Says whether a space is a `Box` of integers of 32 or 64 bits, and not of flags.

    An agent sees them as f32, since it normalises no integers of a tree.
    """
    is_wide = type(space).__name__ == "Box" and space.dtype.kind in "iu" and space.dtype.itemsize >= 4
    return is_wide and not bool(np.all(space.low >= 0) and np.all(space.high <= 1))


def turned(space: Any) -> tuple[int, ...]:
    """Returns [H, W, C] of a `Box` of bytes that are pictures [C, H, W], or grey ones [H, W]; () of other spaces."""
    shape = tuple(space.shape or ())
    if type(space).__name__ != "Box" or space.dtype != np.uint8:
        return ()
    if len(shape) == 2 and min(shape) >= PIXELS and not is_of_small_bytes(space):
        return (*shape, 1)
    return (*shape[1:], shape[0]) if len(shape) == 3 and shape[0] < min(shape[1:]) else ()


def turn(space: Any, x: np.ndarray) -> np.ndarray:
    """Returns arrays [..., *shape] of a space as the agent sees them: pictures with their channels last."""
    if not turned(space):
        return x
    return x[..., None] if len(space.shape) == 2 else np.ascontiguousarray(np.moveaxis(x, -3, -1))


def _bound(x: Any) -> np.ndarray:
    """Casts a bound to f32; one that no action comes near becomes ±inf."""
    with np.errstate(over="ignore"):
        bound = np.asarray(x, np.float32)
    return np.where(np.abs(bound) >= _NO_BOUND, np.copysign(np.float32(np.inf), bound), bound)


def cast(x: Any) -> np.ndarray:
    """Casts real numbers to f32, without a copy if they are f32 already."""
    found: np.ndarray = _cast(np.asarray(x))
    return found


def observation_structs(observations: Any) -> Any:
    """Returns the tree of `jax.ShapeDtypeStruct` of one observation, from a batch [B, ...] of them."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(cast(x).shape[1:], cast(x).dtype), observations)


def _cast(x: Any) -> Any:
    return x.astype(np.float32) if x.dtype in (np.float64, np.float16) else x
