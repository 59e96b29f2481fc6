"""The suite envpool (1.2.5): Atari, MuJoCo, dm_control, MiniGrid and more, stepped by a pool of C++ threads.

EnvPool resets in the step after an episode's end, as this project does. It gives a true end on exactly the step of the
time limit as a truncation only; Atari alone tells the two apart (`info["terminated"]`).
"""

import contextlib
import importlib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import parameters
from jaxrl_dist.envs.host import episodes, pooled
from jaxrl_dist.envs.suites import atari
from jaxrl_dist.processes import cgroups

_NAME = "envpool"
_MORE_NAMES = 'python -c "import envpool; print(envpool.list_all_envs())" lists all'

# Listed only where no parameter changes the range.
_REWARD_RANGES = {
    "CartPole-v0": (0.0, 1.0),
    "CartPole-v1": (0.0, 1.0),
    "Acrobot-v1": (-1.0, 0.0),
    "MountainCar-v0": (-1.0, 0.0),
    "Pendulum-v1": (-(math.pi**2 + 0.1 * 8**2 + 0.001 * 2**2), 0.0),
    "Catch-v0": (-1.0, 1.0),
    "FrozenLake-v1": (0.0, 1.0),
    "FrozenLake8x8-v1": (0.0, 1.0),
    "CliffWalking-v0": (-100.0, 0.0),
    "Taxi-v3": (-10.0, 20.0),
}

# Settings that no user may give, since this file or its caller sets them: frames are not stacked, rewards are raw, and
# a life loss ends no episode. The last three name the game itself, and a wrong one ends the process.
_FIXED = frozenset(
    ("num_envs", "batch_size", "seed", "env_seed", "gym_reset_return_info", "base_path", "max_num_players")
    + ("thread_affinity_offset", "stack_num", "frame_stack", "reward_clip", "reward_threshold")
    + ("episodic_life", "zero_discount_on_life_loss", "task", "task_name", "env_name")
)
# Tasks of MiniGrid, whose `image` are codes and whose `mission` is ASCII.
_GRID_TASKS, _GRID, _TEXT, _CHARACTERS = ("MiniGrid-", "BabyAI-"), "image", "mission", (128,)
# VizDoom's buttons as real numbers are pressed by all but 0; combined, an action is one set of buttons.
_COMBINED = "use_combined_action"
_NO_LIMIT = 2**31 - 1
# Families that EnvPool draws without OpenGL. Drawing MuJoCo's bodies without OpenGL ends the process.
_DRAWN = ("atari", "box2d", "classic_control", "highway", "jumanji", "minigrid", "pgx")
_LIMIT = "max_episode_steps"
# Families that keep to a limit of their own, whatever is given, and a task among them that does not.
_KEEP_THEIR_LIMIT, _OBEDIENT = ("gfootball", "highway", "jumanji"), ("Sokoban-v0", "Jumanji/Sokoban-v0")
# Tasks that do not even keep to their own.
_UNLIMITED = ("LaneKeeping-v0", "lane-keeping-v0")
# Atari's simulator shows 60 frames a second.
_SIMULATOR_FRAMES_PER_SECOND, _FRAMES_PER_SECOND = 60.0, 30.0


def make(name: str, params: Mapping[str, str]) -> envs.HostTask:
    """Makes the task `envpool:name`; makes one environment to try parameters out, if any are given.

    Args:
        name: one of `envpool.list_all_envs()`.
        params: those of EnvPool's own settings of this environment that are numbers, truth values or texts, such as
            `max_episode_steps`, `frame_skip` or `num_threads` (by default one per core, at most `batch_size`). Atari
            also takes `protocol`, "deepmind" or "machado", and `life_loss`, whether the discount is 0 where a life is
            lost.

    Raises:
        errors.UsageError: unknown name or parameter, a value that does not fit, or spaces that no agent here takes.
        ModuleNotFoundError: envpool is not installed.
    """
    library = importlib.import_module("envpool")
    parameters.check_name(name, _NAME, library.list_all_envs(), _MORE_NAMES)
    defaults = _native_spec(library, name, {}).config._asdict()
    is_atari = "full_action_space" in defaults
    values = parameters.parse_params(params, _offered(defaults, is_atari), f"{_NAME}:{name}")
    if _LIMIT in values and not _takes_limit(name, defaults[_LIMIT]):
        raise parameters.refused(_LIMIT, values[_LIMIT], f"EnvPool's {name} does not keep to one; leave it out")
    if _COMBINED in defaults:
        values = {_COMBINED: True, **values}
    protocol, life_loss = "", False
    if is_atari:
        protocol, life_loss, values = atari.choose(values)
    atari.check_ranges(values)
    fixed = {key: value for key, value in (("stack_num", 1), ("reward_clip", False)) if key in defaults}
    settings = {**values, **fixed}
    native = _native_spec(library, name, settings)
    if params:
        _try_out(library, name, settings)
    if not is_atari:
        changed = parameters.list_params({key: value for key, value in values.items() if key != "num_threads"})
        version = f"EnvPool {library.__version__}" if "frame_skip" in defaults else ""
        protocol = "; ".join(text for text in (version, changed and f"changed: {changed}") if text)
    spec, convert = _spec(native, f"{_NAME}:{name}", is_atari, bool(set(params) - {"num_threads"}))

    def make_pooled(seeds: np.ndarray, batch_size: int, timeout_s: float, **drawn: str) -> tuple[pooled.Pooled, Any]:
        try:
            pool = _make_pool(library, name, settings, seeds, batch_size, **drawn)
        except (RuntimeError, ValueError) as error:
            raise errors.EnvironmentFault(f"{spec.name}: EnvPool could not make it: {_one_line(error)}") from error
        bare = _Bare(pool)
        return pooled.Pooled(bare, spec, batch_size, timeout_s, convert=convert, life_loss=life_loss), pool

    def make_environments(seeds: np.ndarray, batch_size: int, timeout_s: float) -> envs.HostEnvironment:
        if batch_size < 1 or len(seeds) % batch_size:
            raise ValueError(f"batch_size={batch_size}: expected a divisor of the {len(seeds)} environments")
        return make_pooled(seeds, batch_size, timeout_s)[0]

    def make_film(seed: int, timeout_s: float) -> envs.Film:
        environment, pool = make_pooled(np.asarray([seed], np.uint32), 1, timeout_s, render_mode="rgb_array")
        speed = _SIMULATOR_FRAMES_PER_SECOND / spec.frames_per_step if is_atari else _FRAMES_PER_SECOND
        return envs.Film(environment, lambda _: pool.render()[0], speed)

    return envs.HostTask(spec, protocol, make_environments, make_film=make_film if _is_drawn(name) else None)


def _is_drawn(name: str) -> bool:
    return _family(name) in _DRAWN


def _family(name: str) -> str:
    """Returns the part of EnvPool that a task is of."""
    registry = importlib.import_module("envpool.registration").registry
    found: str = registry.specs[name][0].removeprefix("envpool.")
    return found


def _takes_limit(name: str, default: int) -> bool:
    """Says whether a task keeps to a limit that is given; one that has none by default does not."""
    return name in _OBEDIENT or (_family(name) not in _KEEP_THEIR_LIMIT and _time_limit(name, default) > 0)


def _time_limit(name: str, limit: int) -> int:
    """Returns the steps of a task's longest episode, 0 where there is no limit, from EnvPool's setting."""
    if name in _UNLIMITED or not 0 < limit < _NO_LIMIT:
        return 0
    return limit + (_family(name) == "gfootball")


def _native_spec(library: Any, name: str, settings: Mapping[str, Any]) -> Any:
    try:
        return library.make_spec(name, **settings)
    except ModuleNotFoundError:
        raise
    except (ImportError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise errors.UsageError(errors.given("env", f"{_NAME}:{name}"), f": {_one_line(error)}") from error


def _offered(defaults: Mapping[str, Any], is_atari: bool) -> dict[str, Any]:
    """Returns the parameters that a user may give, with their defaults."""
    own = {k: v for k, v in defaults.items() if k not in _FIXED and isinstance(v, bool | int | float | str)}
    return {**own, **atari.DEFAULTS} if is_atari else own


def _spec(native: Any, name: str, is_atari: bool, changed: bool) -> tuple[types.EnvironmentSpec, pooled.Convert]:
    """Returns the spec, and the function that brings EnvPool's observations into its form."""
    settings = native.config._asdict()
    if settings["max_num_players"] != 1:
        raise errors.UsageError(
            errors.given("env", name), f": it has {settings['max_num_players']} players; only one is supported"
        )
    with _without_known_warnings():
        space, action_space = native.gymnasium_observation_space, native.gymnasium_action_space
    action = _bounded(episodes.plain_space(action_space, name))
    convert, struct = _converter(space, name)
    task = name.removeprefix(f"{_NAME}:")
    time_limit = _time_limit(task, settings[_LIMIT])
    spec = types.EnvironmentSpec(
        name=name,
        observation=struct,
        action=action,
        family="atari" if is_atari else episodes.family(struct, action, time_limit),
        reward_range=(-math.inf, math.inf) if changed else _REWARD_RANGES.get(task, (-math.inf, math.inf)),
        time_limit=time_limit,
        frames_per_step=settings["frame_skip"] if is_atari else 1,
        mask=episodes.mask_of(struct, action),
        privileged=episodes.PRIVILEGED if episodes.PRIVILEGED in types.named_leaves(struct) else "",
        categories={_GRID: episodes.GRID_CODES, _TEXT: _CHARACTERS} if task.startswith(_GRID_TASKS) else {},
    )
    return spec, convert


def _bounded(action: types.ActionSpace) -> types.ActionSpace:
    """Gives actions without declared bounds infinite ones."""
    if not isinstance(action, types.BoxSpace):
        return action
    # Where none is declared, the lower bound is the smallest positive number of float or double.
    is_none = (abs(action.low) <= np.finfo(np.float32).tiny) & np.isposinf(action.high)
    return types.BoxSpace(action.shape, np.where(is_none, np.float32(-np.inf), action.low), action.high)


def _converter(space: Any, name: str) -> tuple[pooled.Convert, Any]:
    """Returns the function of a batch of observations, and `jax.ShapeDtypeStruct`s of one observation."""
    if type(space).__name__ != "Dict":
        return _leaf_converter(space, name)
    leaves = {key: _leaf_converter(part, name) for key, part in space.spaces.items()}

    def convert(observation: Any) -> Any:
        return {key: leaf(observation[key]) for key, (leaf, _) in leaves.items()}

    return convert, {key: struct for key, (_, struct) in leaves.items()}


def _leaf_converter(space: Any, name: str) -> tuple[pooled.Convert, jax.ShapeDtypeStruct]:
    """Makes one-hot f32 of a discrete observation, and [H, W, C] of pictures [C, H, W] and [H, W]."""
    kind = type(space).__name__
    if kind == "Discrete":
        numbers = np.arange(int(space.start), int(space.start) + int(space.n))
        return (
            lambda x: (np.asarray(x).reshape(-1, 1) == numbers).astype(np.float32),
            jax.ShapeDtypeStruct(numbers.shape, np.dtype(np.float32)),
        )
    if kind not in ("Box", "MultiBinary"):
        raise errors.UsageError(
            errors.given("env", name), f": its observations are {kind}; valid: arrays, or a dict of arrays"
        )
    shape, dtype = tuple(space.shape), np.dtype(space.dtype) if kind == "Box" else np.dtype(bool)
    if episodes.is_of_small_bytes(space):
        dtype = np.dtype(np.int16)
    if turned := episodes.turned(space):
        return lambda x: episodes.turn(space, np.asarray(x, dtype)), jax.ShapeDtypeStruct(turned, dtype)
    if dtype == np.int16:
        return lambda x: np.asarray(x, dtype), jax.ShapeDtypeStruct(shape, dtype)
    if episodes.is_of_integers(space):
        return lambda x: np.asarray(x, np.float32), jax.ShapeDtypeStruct(shape, np.dtype(np.float32))
    real = np.dtype(np.float32) if np.issubdtype(dtype, np.floating) else dtype
    return _unchanged, jax.ShapeDtypeStruct(shape, real)


def _unchanged(x: Any) -> Any:
    return x


def _make_pool(
    library: Any, name: str, settings: Mapping[str, Any], seeds: np.ndarray, batch_size: int, **drawn: str
) -> Any:
    threads = settings.get("num_threads") or min(batch_size, cgroups.num_cores())
    sizes = {"num_envs": len(seeds), "batch_size": batch_size, "num_threads": threads, "seed": seeds.tolist()}
    with _without_known_warnings():
        pool = library.make(name, env_type="gymnasium", **{**settings, **sizes}, **drawn)
        # EnvPool makes its spaces when they are first read, which warns; `recv` would read them outside the context.
        pool.observation_space, pool.action_space  # noqa: B018
    return pool


class _Bare:
    """A pool of EnvPool's by its native calls, in the words of its type "gymnasium".

    Its own `send` and `recv` check and copy anew, and make a tree of every column, in 26 to 52 µs per step.
    """

    def __init__(self, pool: Any) -> None:
        keys = list(pool._state_keys)
        at = {key: index for index, key in enumerate(keys)}
        self._pool, self._num_envs = pool, len(pool)
        self._action_dtype, self._num_ids = pool._spec._action_spec[-1][0], len(pool._spec._action_keys) - 1
        self._columns = [at[key] for key in ("reward", "done", "trunc")]
        info = {"env_id": "info:env_id", "elapsed_step": "elapsed_step"}
        info |= {name: f"info:{name}" for name in ("lives", "terminated") if f"info:{name}" in at}
        self._info = [(name, at[key]) for name, key in info.items()]
        observed = [(key.partition(":")[2], index) for key, index in at.items() if key.partition(":")[0] == "obs"]
        self._observed = observed if type(pool.observation_space).__name__ == "Dict" else observed[0][1]

    def __len__(self) -> int:
        return self._num_envs

    def async_reset(self) -> None:
        """Resets every environment; `recv` returns the rows."""
        self._pool.async_reset()

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of some environments."""
        # Copied, since the pool's threads read it later.
        sent = [*[env_ids] * self._num_ids, np.array(action, self._action_dtype, order="C")]
        self._pool._check_action(sent)
        self._pool._send(sent)

    def recv(self) -> Any:
        """Waits for a batch: (observation, reward, terminated, truncated, info)."""
        state = self._pool._recv()
        reward, done, truncated = (state[index] for index in self._columns)
        observed, info = self._observed, {name: state[index] for name, index in self._info}
        observation = state[observed] if isinstance(observed, int) else {name: state[i] for name, i in observed}
        return observation, reward, done & ~truncated, truncated, info


def _try_out(library: Any, name: str, settings: Mapping[str, Any]) -> None:
    """Resets one environment, so that a value that EnvPool refuses is an error in one line before a run begins."""
    try:
        _make_pool(library, name, settings, np.zeros(1, np.uint32), 1).reset()
    except (RuntimeError, ValueError) as error:
        raise errors.UsageError(
            errors.given("env", f"{_NAME}:{name}"), f" with {parameters.list_params(settings)}: {_one_line(error)}"
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@contextlib.contextmanager
def _without_known_warnings() -> Iterator[None]:
    """Drops Gymnasium's warning on spaces whose bounds were declared in f64; all others reach the user."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*Box (low|high)'s precision lowered", category=UserWarning)
        yield


SUITE = envs.Suite(_NAME, "host", make, draws="Atari, Box2D, classic control, Highway, Jumanji, MiniGrid, PGX")
