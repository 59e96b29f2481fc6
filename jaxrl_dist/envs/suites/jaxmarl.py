"""The suite JaxMARL (0.2.0): particles, Overcooked and SMAX with several agents each, all on the device.

Each agent is a column: it sees `own`, and `agent`, its index; `all`, for a critic alone, is what all see together, or
the state of the world where the library gives it. Its own `step` also resets; this file uses that without the reset.
"""

import contextlib
import importlib
import io
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.envs.host import episodes
from jaxrl_dist.types import Array, ArrayTree

_NAME = "jaxmarl"
_SPREAD, _TAG, _SMAX, _COOKS = "MPE_simple_spread_v3", "MPE_simple_tag_v3", "HeuristicEnemySMAX", "overcooked"
ENVIRONMENTS = (_SPREAD, _TAG, _SMAX, _COOKS)
_OLDEST = (0, 2)
# What a user may give, for which `_constructed` knows the library's argument.
_PARAMS: dict[str, dict[str, Any]] = {
    _SPREAD: {"num_agents": 3, "num_landmarks": 3, "local_ratio": 0.5, "max_steps": 25},
    _TAG: {"num_good_agents": 1, "num_adversaries": 3, "num_obs": 2, "max_steps": 25},
    _SMAX: {"map": "3m", "max_steps": 100, "see_enemy_actions": True, "walls_cause_death": True},
    _COOKS: {"layout": "cramped_room", "max_steps": 400, "random_reset": False, "shaping": 0.0},
}


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `jaxmarl:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: those of `_PARAMS`: of particles the numbers of agents and of things, `local_ratio` and `max_steps`; of
            SMAX `map`, a scenario, and rules; of Overcooked `layout`, `random_reset`, and `shaping`, the factor of the
            library's rewards for parts of the work, which then count in returns, too.

    Raises:
        errors.UsageError: unknown parameter, a value that does not fit, or JaxMARL is older than 0.2.
        ModuleNotFoundError: JaxMARL is not installed.
    """
    library = _library()
    defaults = _PARAMS[name]
    values = {**defaults, **parameters.parse_params(params, defaults, f"{_NAME}:{name}")}
    counts = ("max_steps", "num_agents", "num_landmarks", "num_good_agents", "num_adversaries", "num_obs")
    parameters.check_least(values, {**dict.fromkeys(counts, 1), "shaping": 0, "local_ratio": 0})
    if values.get("local_ratio", 0) > 1:
        raise parameters.refused("local_ratio", values["local_ratio"], "expected a number from 0 to 1")
    environment = _constructed(library, name, values)
    return wrappers.auto_reset(adapt(environment, name, values))


def _library() -> Any:
    """Imports JaxMARL, which prints lines.

    Raises:
        errors.UsageError: its version is of an interface that this file does not know.
    """
    # Where Brax is installed it sets both streams to those of the process as it is imported, so they are put back; its
    # two lines then appear.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = importlib.import_module("jaxmarl")
    version = str(getattr(library, "__version__", "0.1"))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise errors.UsageError(
            errors.given("env", f"{_NAME}:NAME"), f": JaxMARL {version} is for an older JAX; valid: 0.2 or newer"
        )
    return library


def _constructed(library: Any, name: str, values: dict[str, Any]) -> Any:
    given = {key: value for key, value in values.items() if key not in ("map", "layout", "shaping")}
    if name == _SMAX:
        scenarios = importlib.import_module("jaxmarl.environments.smax.smax_env").MAP_NAME_TO_SCENARIO
        parameters.check_choice("map", values["map"], tuple(scenarios))
        given["scenario"] = scenarios[values["map"]]
    if name == _COOKS:
        layouts = importlib.import_module("jaxmarl.environments.overcooked").overcooked_layouts
        parameters.check_choice("layout", values["layout"], tuple(layouts))
        given["layout"] = layouts[values["layout"]]
    with warnings.catch_warnings():
        # Overcooked warns that there is a second version.
        warnings.simplefilter("ignore")
        return library.make(name, **given)


def adapt(environment: Any, name: str, values: dict[str, Any]) -> envs.BareEnvironment:
    """Gives an environment of JaxMARL the interface of a bare environment.

    Vectors of different lengths, as of predators and prey, are filled up with zeros. Particles and cooks end by the
    limit alone; the particles' limit counts the steps before the last one, so an episode has one more. In SMAX the end
    is true where a side is dead; units that died before stay, with "stop" as their only action, and their team's reward
    is theirs, too.

    Args:
        environment: of JaxMARL, with the same number of actions for all agents.
        name: one of `ENVIRONMENTS`.
        values: its parameters, see `make`.
    """
    agents = tuple(environment.agents)
    observe = _observing(environment, name, agents)
    is_cut = _is_not_decided(environment) if name == _SMAX else lambda state: jnp.bool_(True)

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        seen, state = environment.reset(key)
        return state, observe(seen, state)

    def step(key: Array, state: ArrayTree, action: Array) -> envs.Transition:
        chosen = {agent: action[i] for i, agent in enumerate(agents)}
        seen, state, reward, done, info = environment.step_env(key, state, chosen)
        rewards = jnp.stack([jnp.asarray(reward[agent], jnp.float32) for agent in agents])
        if values.get("shaping"):
            rewards += values["shaping"] * jnp.stack([info["shaped_reward"][agent] for agent in agents])
        # A unit that died earns its team's reward to the end, so that its death is no end for it.
        over, cut = done["__all__"], is_cut(state)
        return envs.Transition(state, observe(seen, state), rewards, over & ~cut, over & cut)

    # All but the kitchen count a step after they look at the limit.
    extra = 0 if name == _COOKS else 1
    has_planes = len(environment.observation_spaces[agents[0]].shape) == 3
    spec = types.EnvironmentSpec(
        name=f"{_NAME}:{name}",
        observation=(),
        action=types.DiscreteSpace(int(environment.action_spaces[agents[0]].n)),
        family="minatar" if has_planes else "classic",
        time_limit=values["max_steps"] + extra,
        mask=episodes.MASK if name == _SMAX else "",
        categories={"agent": (len(agents),)},
        num_agents=len(agents),
        privileged="" if name == _COOKS else "all",
    )
    return envs.BareEnvironment(reset, step, spec)


def _observing(environment: Any, name: str, agents: tuple[str, ...]) -> Callable[[Any, Any], ArrayTree]:
    """Returns (observations by agent, state) -> tree of [A, ...]."""
    shapes = [environment.observation_spaces[agent].shape for agent in agents]
    longest = max(shape[0] for shape in shapes)

    def observe(seen: Any, state: Any) -> ArrayTree:
        index = jnp.arange(len(agents))
        if name == _COOKS:
            # Both see the whole kitchen, each with its own body first. Bytes would be taken for pixels.
            return {"agent": index, "own": jnp.stack([seen[agent].astype(jnp.int16) for agent in agents])}
        filled = [jnp.pad(seen[agent], (0, longest - len(seen[agent]))) for agent in agents]
        own = jnp.stack(filled).astype(jnp.float32)
        every = own.reshape(-1) if name != _SMAX else _world(environment, state)
        found = {"agent": index, "all": jnp.broadcast_to(every, (len(agents), every.size)), "own": own}
        if name == _SMAX:
            legal = environment.get_avail_actions(state)
            found[episodes.MASK] = jnp.stack([legal[agent].astype(bool) for agent in agents])
        return found

    return observe


def _world(environment: Any, state: Any) -> Array:
    """Returns the state of SMAX's world as numbers f32 [D]."""
    world: Array = jnp.asarray(environment.get_world_state(state), jnp.float32).reshape(-1)
    return world


def _is_not_decided(environment: Any) -> Callable[[Any], Array]:
    """Returns (state of SMAX) -> bool [], whether both sides have living units, so that only the limit can end it."""

    def is_not_decided(state: Any) -> Array:
        alive = state.state.unit_alive
        both: Array = alive[: environment.num_allies].any() & alive[environment.num_allies :].any()
        return both

    return is_not_decided


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
