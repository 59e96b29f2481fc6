"""Fits settings that a user left open to those that were given.

A replay's rows, minibatches and actors are fitted to the environments, atoms to the rewards. Bounds that are meant for
normalised numbers are dropped where nothing normalises them.

A paper's replay of 96,000 rows is as good a choice with 96,256, where 256 environments need a multiple of 256 × 8.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl_dist import networks, systems, types
from jaxrl_dist.networks import torsos
from jaxrl_dist.settings import resolve
from jaxrl_dist.settings.resolve import FLAG, Resolved, entries
from jaxrl_dist.systems.families import lineage

_ENVS, _LENGTH = "env.num_envs", "layout.unroll_length"
_CORE = "network.core"
# Rows through which a memory is taught: those of Stable-Baselines3 Contrib's RecurrentPPO (n_steps).
_MEMORY_ROWS = 128
# Settings whose sum is at least the rows of a window beside its last one.
_WINDOW = (
    *("agent.burn_in", "agent.taught", "agent.unroll_steps", "agent.n_step", "agent.length"),
    "network.num_frames",
)
# Parts of an iteration's environments, each with as many as the others.
_WORKERS, _AGE = "layout.num_workers", "layout.max_gradient_age"
_PLAYERS = ("layout.num_actors", _WORKERS)
# Turns of all workers after which a gradient is too old: 16 updates of 4 workers.
_TURNS = 4
_ATOMS, _LOW, _HIGH = "agent.num_atoms", "agent.value_low", "agent.value_high"
_CLIP = "agent.error_clip"
_DISTRIBUTION, _CATEGORICAL = "agent.distribution", "categorical"
# Schrittwieser et al. 2020, appendix F.
_BOUND = "agent.value_bound"
_WIDE: dict[str, Any] = {_BOUND: 300.0, _ATOMS: 601}
# Bounds, and the switches that make their numbers as small as the bounds are meant for.
_NORMALISED = {
    "agent.clip_observations": "agent.normalise_observations",
    "agent.clip_rewards": "agent.scale_rewards",
    "agent.clip_value": "agent.scale_rewards",
}
_WAIT, _FALL, _FIRST = "agent.epsilon_wait", "agent.epsilon_fraction", "replay.min_size"
# Before the number of rows after which ε falls.
_FALLS_AFTER = f"fitted to {_FIRST}="
# Ends the origin of a value that took the place of one for rewards with bounds.
_WITHOUT_BOUNDS = "fitted to rewards without known bounds"
_TORSO = "network.torso"
# Large pictures with real actions, or of floats, are of families whose networks are for a few numbers.
_CONVOLUTIONS: dict[str, Any] = {_TORSO: "nature_cnn", "network.hidden_sizes": (512,), "network.activation": "relu"}
# Ends the origin of a size that took the place of one for environments of one agent, before the number of agents.
_OF_AGENTS = "fitted to agents of an environment="
# Ends the origin of a value of a network that took the place of one for a few numbers.
_OF_PICTURES = "fitted to pictures"


def fit(found: Resolved) -> Resolved:
    """Returns settings whose sizes fit together wherever one of them was not given by a flag.

    An unroll that teaches a memory becomes shorter, with more environments. The capacity of a replay grows to the next
    multiple of what an iteration adds, and to a window for each environment; learning starts at the latest when the
    replay is full; minibatches and actors are the largest number that divides, up to the one that stood there. An ε
    that would have fallen before learning starts falls from there on. The largest age of a gradient leaves each worker
    its turn. Observations and rewards that a task's values normalise and clip are not clipped where they are not
    normalised; nor is PPO's value where rewards are of real actions. What devices must divide is not known here;
    assembling a run checks it.

    Args:
        found: settings of a system, with origins.

    Example:
        >>> import jaxrl_dist
        >>> settings = jaxrl_dist.make("dqn", "toy:walk", settings={"env.num_envs": 256}).settings
        >>> settings["replay.capacity"], settings.origins["replay.capacity"]
        (10240, 'family classic: PureJaxRL dqn.py (Lu et al. 2022); 10000 fitted to env.num_envs=256')
    """
    found = _of_memory(found)
    found = _fitted(found, dict(_sizes(found)), f"fitted to {_ENVS}={found.settings.get(_ENVS)}")
    found = _fitted(found, dict(_schedule(found)), f"{_FALLS_AFTER}{found.settings.get(_FIRST)}")
    found = _fitted(found, dict(_ages(found)), f"fitted to {_WORKERS}={found.settings.get(_WORKERS)}")
    for name, switch in _bounds(found):
        found = _fitted(found, {name: 0.0}, f"fitted to {switch}=false")
    return found


def _of_memory(found: Resolved) -> Resolved:
    """Returns settings by which a memory is taught through unrolls of 128 rows at most, of as many more environments.

    Minibatches of a memory are of whole unrolls: of one of 2,048 rows there is one minibatch, and so one gradient.
    """
    settings: Any = found.settings
    if _is_given(found, _ENVS) or _is_given(found, _LENGTH) or found.row.replay.keeps_rows:
        return found
    share, rest = divmod(settings[_LENGTH], _MEMORY_ROWS)
    if share <= 1 or rest or not networks.is_recurrent(settings.get(_CORE, "")):
        return found
    values = {_ENVS: settings[_ENVS] * share, _LENGTH: _MEMORY_ROWS}
    return _fitted(found, values, f"fitted to {_CORE}={settings[_CORE]}")


def _bounds(found: Resolved) -> Iterator[tuple[str, str]]:
    """Yields each bound that nobody gave, and its switch, where the switch is on by the task's values and off here.

    A game's rewards are clipped at 1 for their own sake.
    """
    for name, switch in _NORMALISED.items():
        is_off = found.settings.get(switch) is False and _is_on_by_task(found, switch)
        is_of_game = (found.family, name) == ("atari", "agent.clip_rewards")
        is_kept = is_of_game or (name == "agent.clip_value" and not _has_large_values(found, switch))
        if is_off and not is_kept and not _is_given(found, name):
            yield name, switch


def _has_large_values(found: Resolved, switch: str) -> bool:
    """Says whether values of real actions are clipped whose rewards somebody left as they are.

    A worker's old values are its new ones, so that its clip does nothing.
    """
    return found.family == "continuous" and _is_given(found, switch)


def _schedule(found: Resolved) -> Iterator[tuple[str, float]]:
    """Yields when ε begins to fall, where it would have fallen before anything is learned."""
    settings: Any = found.settings
    if _FIRST in settings and not _is_given(found, _WAIT):
        start = settings[_FIRST] / settings["steps"]
        if settings[_WAIT] + settings[_FALL] < start:
            yield _WAIT, min(start, 1.0 - settings[_FALL])


def _ages(found: Resolved) -> Iterator[tuple[str, int]]:
    """Yields the largest age of a gradient, where a limit was not given.

    If workers take turns, a gradient is as many updates old as there are other workers. With more of them than the
    limit the same ones would be too late in each round.
    """
    settings: Any = found.settings
    if settings.get(_AGE, -1) > 0 and not _is_given(found, _AGE):
        yield _AGE, max(settings[_AGE], _TURNS * settings[_WORKERS])


def _is_on_by_task(found: Resolved, switch: str) -> bool:
    """Says whether a switch is on by the values of system and family, below those of layout, preset and flags."""
    layers = [found.row.settings, *(found.row.families.get(one, {}) for one in lineage(found.family or ""))]
    values = {name: cited.value for layer in layers for name, cited in layer.items()}
    return bool(values.get(switch, False))


def fit_to_task(found: Resolved, spec: types.EnvironmentSpec) -> Resolved:
    """Returns settings that fit the rewards, the observations and the agents of a task; what a flag gave stays.

    Where nothing says the lowest and the highest return, a distribution without ends is learned: atoms lie between
    these two. Quantiles need neither and stand in their place, with errors clipped as QR-DQN's; the mean does where an
    agent has no quantiles. MuZero's and AlphaZero's rescaled values get the wide support of the paper. Large pictures
    get the convolutions of Atari's networks. Each agent of an environment adds rows to a replay.

    Args:
        found: settings of a system, with origins.
        spec: of the environment.

    Example:
        >>> import jaxrl_dist
        >>> settings = jaxrl_dist.make("rainbow", "gymnax:FrozenLake-misc").settings
        >>> settings["agent.distribution"], settings.origins["agent.distribution"].rpartition("; ")[2]
        ('quantile', 'categorical fitted to rewards without known bounds')
    """
    found = found if all(map(math.isfinite, spec.reward_range)) else _without_ends(found)
    found = _of_agents(found, spec.num_agents)
    shapes = [leaf.shape for leaf in types.named_leaves(spec.observation).values()]
    is_large = any(torsos.takes(_CONVOLUTIONS[_TORSO], shape) for shape in shapes)
    return _of_pictures(found) if is_large else found


def fit_as_in(found: Resolved, contents: Mapping[str, Any]) -> Resolved:
    """Returns settings fitted to the task as those of an earlier session were.

    Args:
        found: settings of a system, before the environment is known.
        contents: contents of that session's `config.json`.

    Raises:
        UsageError: the contents are not those of a `config.json`.
    """
    saved = entries(contents)
    origins = [str(entry.get("origin")) for entry in saved.values()]
    waits = str(saved.get(_WAIT, {}).get("origin", FLAG)), found.origins.get(_WAIT, FLAG)
    if any(_FALLS_AFTER in one for one in waits) and not any(map(resolve.is_given, waits)):
        # The same number of rows is another share of a run that was made longer.
        found = found.replaced({_WAIT: saved[_WAIT]["value"]})
    for mark, fitted in ((_WITHOUT_BOUNDS, _without_ends), (_OF_PICTURES, _of_pictures)):
        found = fitted(found) if any(origin.endswith(mark) for origin in origins) else found
    agents = [number for origin in origins if (number := origin.partition(_OF_AGENTS)[2]).isdecimal()]
    return _of_agents(found, int(agents[0])) if agents else found


def _of_agents(found: Resolved, num_agents: int) -> Resolved:
    """Returns settings whose replay is a multiple of what an iteration of environments with so many agents adds."""
    sizes = {name: value for name, value in _sizes(found, num_agents) if name.startswith("replay.")}
    return _fitted(found, sizes, f"{_OF_AGENTS}{num_agents}")


def _fitted(found: Resolved, values: Mapping[str, Any], reason: str) -> Resolved:
    """Returns settings with these values in the place of those that no flag gave; their origins end with the reason."""
    changed = {
        name: value for name, value in values.items() if found.origins.get(name, FLAG) != FLAG and value != found[name]
    }
    origins = {name: f"{found.origins[name]}; {found[name]} {reason}" for name in changed}
    return dataclasses.replace(found.replaced(changed), origins={**found.origins, **origins})


def _is_given(found: Resolved, name: str) -> bool:
    """Says whether a flag or a preset gave a setting, or there is none of this name."""
    return resolve.is_given(found.origins.get(name, FLAG))


def _without_ends(found: Resolved) -> Resolved:
    """Returns settings whose distribution needs no two ends, or has wide ones, unless these or the atoms were given."""
    settings: Any = found.settings
    if _BOUND in settings:
        return _with_wide_support(found)
    has_atoms = _LOW in settings and settings[_ATOMS] > 1 and settings.get(_DISTRIBUTION, _CATEGORICAL) == _CATEGORICAL
    if not has_atoms or settings[_LOW] != settings[_HIGH] or settings["agent.clip_rewards"]:
        return found
    name, value = (_DISTRIBUTION, "quantile") if _DISTRIBUTION in settings else (_ATOMS, 1)
    if FLAG in (found.origins[_ATOMS], found.origins[name]):
        return found
    # A rare reward is no part of any quantile whose errors all weigh the same.
    clip = {_CLIP: 1.0} if name == _DISTRIBUTION and not _is_given(found, _CLIP) else {}
    return _fitted(found, {name: value, **clip}, _WITHOUT_BOUNDS)


def _with_wide_support(found: Resolved) -> Resolved:
    """Returns settings whose values may be as large as in the paper, unless a flag or a preset gave how large."""
    return found if any(_is_given(found, name) for name in _WIDE) else _fitted(found, _WIDE, _WITHOUT_BOUNDS)


def _of_pictures(found: Resolved) -> Resolved:
    """Returns settings with a network of convolutions, unless a flag or a preset gave the torso."""
    if _is_given(found, _TORSO) or found[_TORSO] != "mlp":
        return found
    values = {name: value for name, value in _CONVOLUTIONS.items() if found.origins[name] != FLAG}
    origins = {name: f"{found.origins[name]}; {found[name]} {_OF_PICTURES}" for name in values}
    return dataclasses.replace(found.replaced(values), origins={**found.origins, **origins})


def _sizes(found: Resolved, num_agents: int = 1) -> Iterator[tuple[str, int]]:
    """Yields name -> value of every size that depends on the environments and, of a replay, on their agents."""
    settings: Any = found.settings
    if _ENVS not in settings or _LENGTH not in settings:
        return
    num_envs = settings[_ENVS]
    num_columns = num_envs * num_agents
    if "replay.capacity" in settings:
        window = 1 + sum(settings.get(name, 0) for name in _WINDOW)
        capacity = settings["replay.capacity"]
        if found.origins["replay.capacity"] != FLAG:
            block = num_columns * settings[_LENGTH]
            capacity = -(-max(capacity, num_columns * window) // block) * block
        yield "replay.capacity", capacity
        if "replay.min_size" in settings:
            yield "replay.min_size", min(settings["replay.min_size"], capacity)
    if not found.row.replay.keeps_rows:
        yield "learner.minibatches", _divisor(_items(found.row, settings), settings["learner.minibatches"])
    for name in _PLAYERS:
        # 0 stands for another setting's number.
        if settings.get(name, 0):
            yield name, _divisor(num_envs, settings[name])


def _items(system: systems.System, settings: Any) -> int:
    """Returns how many items an iteration has: whole columns for a memory, else rows."""
    is_columns = system.sequences or networks.is_recurrent(settings["network.core"])
    return settings[_ENVS] if is_columns else settings[_ENVS] * settings[_LENGTH]


def _divisor(total: int, wanted: int) -> int:
    """Returns the largest divisor of a number up to another."""
    return next(one for one in range(min(wanted, total), 0, -1) if total % one == 0)
