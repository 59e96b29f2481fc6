"""Seeds, checks of actions and timesteps, and bookkeeping of episodes, for all adapters of CPU environments."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs, errors, types

_LARGEST = 3e38
# Smaller images are too small for the convolutions of the family of Atari.
_NATURE_CNN_PIXELS = 36


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
        action: i32 [N], or f32 [N, ...].
        env_ids: i32 [N], for the message; by default 0 … N − 1.

    Raises:
        ValueError: wrong shape, an integer out of range, or a number that is not finite.
    """
    action, space = np.asarray(action), spec.action
    shape = space.shape if isinstance(space, types.BoxSpace) else ()
    if action.shape[1:] != shape or action.ndim == 0:
        raise ValueError(f"{spec.name}: actions of shape {list(action.shape)}, expected [N, {list(shape)}]")
    if isinstance(space, types.DiscreteSpace):
        if action.dtype.kind not in "iu":
            raise ValueError(f"{spec.name}: actions of type {action.dtype}, expected integers")
        wrong, valid = (action < 0) | (action >= space.num_values), f"0 to {space.num_values - 1}"
    else:
        wrong, valid = ~np.isfinite(action), "finite numbers"
    if wrong.any():
        row = int(wrong.reshape(len(action), -1).any(1).argmax())
        env = row if env_ids is None else env_ids[row]
        raise ValueError(f"{spec.name}: action {action[row]} for environment {env}; valid: {valid}")
    if isinstance(space, types.BoxSpace):
        return np.ascontiguousarray(np.clip(action, space.low, space.high), np.float32)
    return np.ascontiguousarray(action, np.int32)


def check_ids(spec: types.EnvironmentSpec, env_ids: np.ndarray, num_actions: int, num_envs: int) -> np.ndarray:
    """Checks which environments are to be stepped, and returns their indices as i32 [N].

    Args:
        spec: spec of one environment.
        env_ids: integers [N].
        num_actions: number of actions for them.
        num_envs: B.

    Raises:
        ValueError: there are no indices, or more or fewer than actions, or one is out of range or comes twice.
    """
    ids = np.asarray(env_ids, np.int32)
    is_within = ids.ndim == 1 and len(ids) == num_actions > 0 and ids.min() >= 0 and ids.max() < num_envs
    if not is_within or np.bincount(ids).max() > 1:
        raise ValueError(
            f"{spec.name}: env_ids={ids.tolist()} for {num_actions} actions: expected as many distinct indices in "
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
    """Says whether a batch is within range, with few reductions; naming a wrong row would take many (64 µs of 180).

    NaN compares as False with everything.
    """
    low, high = (min(spec.reward_range[0], 0.0), max(spec.reward_range[1], 0.0))
    inside = timestep.reward.min() >= max(low, -_LARGEST) and timestep.reward.max() <= min(high, _LARGEST)
    inside = inside and timestep.discount.min() >= 0 and timestep.discount.max() <= 1
    reals = (leaf for leaf in jax.tree.leaves(timestep.observation) if leaf.dtype.kind == "f" and leaf.size)
    return bool(inside) and all(leaf.min() >= -_LARGEST and leaf.max() <= _LARGEST for leaf in reals)


class Episodes:
    """Follows the episodes of B environments with next-step reset, and makes their timesteps.

    Attributes:
        steps: i64 [B], timesteps so far.
        ended: bool [B], whether the last timestep was LAST, so that the next is FIRST.
    """

    def __init__(
        self, spec: types.EnvironmentSpec, num_envs: int, own: Callable[[Any], np.ndarray] | None = None
    ) -> None:
        """Starts with no episode.

        Args:
            spec: of one environment.
            num_envs: B.
            own: takes over an array of an observation: `copied` by default, or `cast` if the library never writes to
                its memory again.
        """
        self._spec = spec
        self._own = copied if own is None else own
        self.steps = np.zeros(num_envs, np.int64)
        self.ended = np.zeros(num_envs, bool)
        self._return = np.zeros(num_envs, np.float32)
        self._length = np.zeros(num_envs, np.int32)

    def first(self, env_ids: np.ndarray, observation: Any) -> types.TimeStep:
        """Opens an episode in each of the environments i32 [N] with observation [N, ...]."""
        zeros, false = np.zeros(len(env_ids), np.float32), np.zeros(len(env_ids), bool)
        self.ended[env_ids] = True
        return self.step(env_ids, observation, zeros, false, false)

    def step(
        self,
        env_ids: np.ndarray,
        observation: Any,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        life_lost: np.ndarray | None = None,
    ) -> types.TimeStep:
        """Makes the timestep of environments that have stepped, or have been reset after the end of an episode.

        Args:
            env_ids: i32 [N].
            observation: tree of [N, ...]; copied (see `own`), with real numbers cast to f32.
            reward: [N], as the library returns it.
            terminated: bool [N]; wins over `truncated`.
            truncated: bool [N].
            life_lost: bool [N], rows with discount 0 in an episode that goes on.

        Raises:
            errors.EnvironmentFault: a number is not finite or out of range.
        """
        is_first = self.ended[env_ids]
        goes_on = ~is_first
        terminated = np.asarray(terminated, bool) & goes_on
        ended = terminated | (np.asarray(truncated, bool) & goes_on)
        # Selected, not multiplied by 0, since a library may return any reward for a reset, even NaN.
        raw: Any = np.where(is_first, np.float32(0), reward).astype(np.float32, copy=False)
        episode_return: Any = np.where(is_first, np.float32(0), self._return[env_ids] + raw)
        episode_length: Any = (self._length[env_ids] + 1) * goes_on
        self._return[env_ids], self._length[env_ids] = episode_return, episode_length
        self.steps[env_ids] += 1
        self.ended[env_ids] = ended
        cut = terminated if life_lost is None else terminated | (np.asarray(life_lost, bool) & goes_on)
        discount: Any = (~cut).astype(np.float32)
        # FIRST 0, MID 1, LAST 2.
        step_type: Any = goes_on.astype(np.int8) + ended
        over: Any = terminated
        timestep = types.TimeStep(
            step_type=step_type,
            reward=raw,
            discount=discount,
            observation=jax.tree.map(self._own, observation),
            info=types.EpisodeInfo(episode_return, episode_length, raw, over),
        )
        check_timestep(self._spec, timestep, env_ids, self.steps[env_ids])
        return timestep


def cut_short(timestep: types.TimeStep, rows: Any = slice(None)) -> types.TimeStep:
    """Ends the episodes of rows whose environment was lost, at their last observation.

    This is a truncation, so that no sequence joins the episodes of two processes. The length 0 tells `parallel.unroll`
    not to count the episode.

    Args:
        timestep: leaves [N, ...] as last received.
        rows: indices of these rows.
    """
    kept = jax.tree.map(lambda x: x[rows], timestep)
    zeros = np.zeros_like(kept.reward)
    info = types.EpisodeInfo(zeros, zeros.astype(np.int32), zeros, zeros.astype(bool))
    return types.TimeStep(np.full_like(kept.step_type, types.LAST), zeros, zeros + 1, kept.observation, info)


def plain_space(space: Any, name: str) -> types.DiscreteSpace | types.BoxSpace:
    """Converts an action space of Gymnasium's.

    Raises:
        errors.UsageError: it is neither `Discrete` from 0 nor a `Box` of real numbers.
    """
    kind = type(space).__name__
    if kind == "Discrete" and int(getattr(space, "start", 0)) == 0:
        return types.DiscreteSpace(int(space.n))
    if kind == "Box" and np.issubdtype(space.dtype, np.floating):
        low, high = map(_bound, (space.low, space.high))
        # Rounding to f32 must not lead out of the f64 bounds, which some environments check.
        low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
        high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
        return types.BoxSpace(tuple(space.shape), low, high)
    raise errors.UsageError(
        errors.given("env", name),
        f": its actions are {space}; valid: Discrete from 0, or a Box of real numbers; a module that registers the "
        "environment within gymnasium's TransformAction makes them of others",
    )


def family(observation: Any, action: types.DiscreteSpace | types.BoxSpace) -> str:
    """Returns the family of a task by its observation, a tree of structs, and its actions."""
    if isinstance(action, types.BoxSpace):
        return "continuous"
    is_image = getattr(observation, "dtype", None) == np.uint8 and len(observation.shape) == 3
    return "atari" if is_image and min(observation.shape[:2]) >= _NATURE_CNN_PIXELS else "classic"


def _bound(x: Any) -> np.ndarray:
    """Casts a bound to f32; one beyond the largest f32 becomes ±inf."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32)


def copied(x: Any) -> np.ndarray:
    """Copies an array, real numbers as f32."""
    x = np.asarray(x)
    kept = cast(x)
    return kept.copy() if kept is x else kept


def cast(x: Any) -> np.ndarray:
    """Casts real numbers to f32, without a copy if they are f32 already."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype in (np.float64, np.float16) else x


def observation_structs(observations: Any) -> Any:
    """Returns the tree of `jax.ShapeDtypeStruct` of one observation, from a batch [B, ...] of them."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(cast(x).shape[1:], cast(x).dtype), observations)
