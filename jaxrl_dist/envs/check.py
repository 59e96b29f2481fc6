"""`python -m jaxrl_dist.envs.check suite:name`: plays random actions and says whether an environment keeps the rules.

The rules are those of `envs.HostEnvironment` and `types.TimeStep`; device environments are checked in their own rows.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import episodes, hangs
from jaxrl_dist.settings import command_line, resolve, setting

_USAGE = "python -m jaxrl_dist.envs.check suite:name [--env.params.NAME=VALUE ...] [--flag=value ...]"
_TIMEOUT_S = 60.0
_REPEATED_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the check."""

    num_envs: int = setting(8, "Environments that are played.", low=1)
    steps: int = setting(1000, "Steps of each.", low=1)
    seed: int = setting(0, "Seed of the environments and of the actions.", low=0)


class Fact(NamedTuple):
    """A rule and its verdict.

    Attributes:
        rule: in words.
        broken: the first place that breaks it, "" if it is kept.
    """

    rule: str
    broken: str


class Report(NamedTuple):
    """Holds the results of a check.

    Attributes:
        facts: one per rule.
        episodes: number of episodes that ended.
        mean_return: their mean return, NaN if none ended.
        steps_per_s: steps per second of all environments together, without the time to draw actions.
    """

    facts: list[Fact]
    episodes: int
    mean_return: float
    steps_per_s: float


def main(arguments: Sequence[str]) -> int:
    """Checks the environment that the arguments name and prints what was found.

    Args:
        arguments: of the command.

    Returns:
        0 where every rule holds, 1 where one is broken, 2 for bad input.

    Example:
        >>> from jaxrl_dist.envs import check
        >>> check.main(["toy:walk", "--num_envs=2", "--steps=20"])
        toy:walk
          observation float32[2]
          action      0 to 2
          family      classic
          reward      -inf to inf
          time limit  7 steps
          protocol    none
        holds     the row after LAST is FIRST, and no other
        holds     a FIRST row has reward 0 and discount 1
        holds     the discount is 0 or 1
        holds     the discount is 0 only at a true end or a life loss
        holds     a true end is LAST with discount 0
        holds     episode lengths count the steps
        holds     episode returns sum the raw rewards
        holds     no episode is longer than 7 steps
        holds     numbers are finite and rewards within their range
        holds     observations have the declared shapes and types
        holds     other fields have theirs
        holds     returned arrays are never written to again
        holds     equal seeds and actions give equal rows
        holds     a second reset starts every environment anew
        4 episodes, mean random return ...
        ... steps/s
        0
    """
    try:
        name, options, params = _parse(arguments)
        environment = envs.make(name, params)
        make = _maker(environment, options)
        protocol = environment.protocol if isinstance(environment, envs.HostTask) else ""
        print(_described(environment.spec, protocol), flush=True)
        report = hangs.watched(name, make, lambda remembering: check(remembering, options.steps, options.seed))
    except command_line.Help as text:
        print(text)
        return 0
    except errors.UsageError as error:
        print(errors.as_typed(error), file=sys.stderr)
        return 2
    except errors.EnvironmentFault as error:
        print(f"BROKEN    {errors.as_typed(error)}")
        return 1
    for fact in report.facts:
        print(f"{'BROKEN' if fact.broken else 'holds':10}{fact.rule}{': ' * bool(fact.broken)}{fact.broken}")
    mean = f", mean random return {report.mean_return:.4g}" if report.episodes else ""
    print(f"{report.episodes} episodes{mean}")
    print(f"{report.steps_per_s:,.0f} steps/s")
    return 1 if any(fact.broken for fact in report.facts) else 0


def check(make: Callable[[], envs.HostEnvironment], steps: int, seed: int = 0) -> Report:
    """Plays random actions in fresh environments, and repeats the first of them in others with the same seeds.

    Args:
        make: () -> B environments, equal ones at every call.
        steps: number of steps per environment.
        seed: seed of the actions.

    Returns:
        `Report`.

    Raises:
        errors.EnvironmentFault: an environment failed.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.envs import check
        >>> from jaxrl_dist.envs.host import as_host
        >>> environment = envs.make("toy:walk")
        >>> report = check.check(lambda: as_host.AsHost(environment, 2, jax.random.key(0)), steps=20)
        >>> report.episodes, [fact.rule for fact in report.facts if fact.broken]
        (4, [])
    """
    environment = make()
    try:
        played, seconds = _play(environment, steps, seed)
        again_first = environment.reset()
    finally:
        environment.close()
    twin = make()
    try:
        repeated, _ = _play(twin, min(steps, _REPEATED_STEPS), seed)
    finally:
        twin.close()
    rows = jax.tree.map(lambda *leaves: np.stack(leaves), *(copy for _, copy in played))
    facts = [*_rules(rows, environment.spec), *_rules_of_types(played[0][0], environment.spec)]
    changed = [t for t, (row, copy) in enumerate(played) if not _equal(row, copy)]
    facts.append(Fact("returned arrays are never written to again", f"row {changed[0]}" if changed else ""))
    differs = [t for t, ((_, a), (_, b)) in enumerate(zip(played, repeated, strict=False)) if not _equal(a, b)]
    facts.append(Fact("equal seeds and actions give equal rows", f"row {differs[0]} differs" if differs else ""))
    anew = bool((again_first.step_type == types.FIRST).all())
    facts.append(Fact("a second reset starts every environment anew", "" if anew else "a row is not FIRST"))
    info, num_agents = rows.info, environment.spec.num_agents
    ended, returns, _ = envs.outcomes(num_agents, rows.step_type, info.episode_return, info.episode_length)
    returns = returns[ended]
    mean_return = float(returns.mean()) if returns.size else float("nan")
    return Report(facts, len(returns), mean_return, steps * environment.num_envs / seconds)


def _play(
    environment: envs.HostEnvironment, steps: int, seed: int
) -> tuple[list[tuple[types.TimeStep, types.TimeStep]], float]:
    """Returns every row as it was returned, a copy of each row made at once, and the seconds that `step` took."""
    rng, seconds = np.random.default_rng(seed), 0.0
    row = environment.reset()
    played = [(row, jax.tree.map(np.copy, row))]
    for _ in range(steps):
        columns = environment.num_envs * environment.spec.num_agents
        action = _random_action(rng, environment.spec, row.observation, columns)
        start = time.perf_counter()
        row = environment.step(action)
        seconds += time.perf_counter() - start
        played.append((row, jax.tree.map(np.copy, row)))
    return played, seconds


def _random_action(rng: np.random.Generator, spec: types.EnvironmentSpec, observation: Any, columns: int) -> np.ndarray:
    """Draws actions uniformly, of choices among the legal ones."""
    space = spec.action
    if isinstance(space, types.BoxSpace):
        low, high = (np.clip(bound, -1e3, 1e3) for bound in (space.low, space.high))
        return rng.uniform(low, high, (columns, *space.shape)).astype(np.float32)
    sizes = np.ravel(space.num_values)
    legal = [np.ones((columns, size), bool) for size in sizes]
    if spec.mask:
        legal = _legal(spec, observation, (columns,))
    parts = (part | ~part.any(1, keepdims=True) for part in legal)
    chosen = [np.argmax((1 + rng.random(part.shape)) * part, 1).astype(np.int32) for part in parts]
    return chosen[0] if isinstance(space, types.DiscreteSpace) else np.stack(chosen, 1)


def _legal(spec: types.EnvironmentSpec, observation: Any, lead: tuple[int, ...]) -> list[np.ndarray]:
    """Returns the mask of each number of an action, bool [*lead, A]."""
    assert not isinstance(spec.action, types.BoxSpace)
    mask = np.asarray(types.named_leaves(observation)[spec.mask]).reshape(*lead, -1) != 0
    return np.split(mask, np.cumsum(np.ravel(spec.action.num_values))[:-1], axis=-1)


def _rules(rows: Any, spec: types.EnvironmentSpec) -> list[Fact]:
    """Checks a `TimeStep` with leaves [T, B, ...] of which the first are those of `reset`."""
    step_type, discount, reward, info = rows.step_type, rows.discount, rows.reward, rows.info
    is_first, is_last = step_type == types.FIRST, step_type == types.LAST
    follows_last = np.concatenate([np.ones_like(is_first[:1]), is_last[:-1]])
    is_due = np.repeat(follows_last.reshape(len(is_last), -1, spec.num_agents).all(-1), spec.num_agents, -1)
    is_gone = follows_last & ~is_due
    # Only Atari's protocols know lives; elsewhere a discount of 0 within an episode has no meaning.
    may_be_zero = info.game_over | ((step_type == types.MID) & (spec.family == "atari"))
    length, total = _counted(is_first, is_gone, info.reward)
    rules = {
        "the row after LAST is FIRST, and no other": is_first != is_due,
        "an agent whose episode has ended has LAST rows until all are reset": is_gone & ~is_last,
        "a FIRST row has reward 0 and discount 1": is_first & ((reward != 0) | (discount != 1)),
        "the discount is 0 or 1": (discount != 0) & (discount != 1),
        "the discount is 0 only at a true end or a life loss": (discount == 0) & ~may_be_zero,
        "a true end is LAST with discount 0": info.game_over & (~is_last | (discount != 0)),
        "episode lengths count the steps": info.episode_length != length,
        "episode returns sum the raw rewards": ~np.isclose(info.episode_return, total, rtol=1e-3, atol=1e-3),
        f"no episode is longer than {spec.time_limit} steps": (length > spec.time_limit) & (spec.time_limit > 0),
        "numbers are finite and rewards within their range": np.any(
            list(envs.out_of_range(spec, rows).values()), axis=0
        ),
    }
    if spec.mask and spec.num_agents == 1:
        # An agent beside others may have to wait.
        parts = _legal(spec, rows.observation, step_type.shape)
        can_act = np.all([part.any(-1) for part in parts], axis=0)
        rules["the mask allows an action wherever one is asked for"] = ~is_last & ~can_act
    left_out = [word for word, has in (("longer", spec.time_limit), ("an agent", spec.num_agents > 1)) if not has]
    shown = {rule: wrong for rule, wrong in rules.items() if not any(word in rule for word in left_out)}
    return [Fact(rule, _place(wrong, spec.num_agents)) for rule, wrong in shown.items()]


def _counted(is_first: np.ndarray, is_gone: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts steps and sums rewards [T, B] since each column's last FIRST; an agent that is gone takes no steps."""
    length, total = np.zeros(is_first.shape, np.int64), np.zeros(is_first.shape)
    for t in range(1, len(is_first)):
        length[t] = np.where(is_first[t], 0, length[t - 1] + ~is_gone[t])
        total[t] = np.where(is_first[t], 0, total[t - 1] + reward[t])
    return length, total


def _rules_of_types(row: types.TimeStep, spec: types.EnvironmentSpec) -> list[Fact]:
    structs = episodes.observation_structs(row.observation)
    given = jax.tree.map(lambda x: x.dtype, (*row[:3], *row.info))
    wanted = (np.int8, np.float32, np.float32, np.float32, np.int32, np.float32, np.bool_)
    return [
        Fact("observations have the declared shapes and types", "" if structs == spec.observation else f"{structs}"),
        Fact("other fields have theirs", "" if given == tuple(map(np.dtype, wanted)) else f"{given}"),
    ]


def _equal(left: types.TimeStep, right: types.TimeStep) -> bool:
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), left, right)
    return all(jax.tree.leaves(same))


def _place(wrong: np.ndarray, num_agents: int) -> str:
    if not wrong.any():
        return ""
    row, column = np.argwhere(wrong)[0]
    return f"row {row} of environment {column // num_agents}"


def _described(spec: types.EnvironmentSpec, protocol: str) -> str:
    parts = jax.tree_util.tree_flatten_with_path(spec.observation)[0]
    shapes = (f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}".strip() for path, leaf in parts)
    action = spec.action
    if isinstance(action, types.DiscreteSpace):
        actions = f"0 to {action.num_values - 1}"
    elif isinstance(action, types.MultiDiscreteSpace):
        actions = f"{len(action.num_values)} numbers, each below {', '.join(map(str, action.num_values))}"
    else:
        actions = f"f32{list(action.shape)} in {np.min(action.low):g} to {np.max(action.high):g}"
    lines = {
        "observation": ", ".join(shapes),
        "action": f"{actions}, those of {spec.mask} are legal" if spec.mask else actions,
        **({"agents": f"{spec.num_agents}, columns of their own"} if spec.num_agents > 1 else {}),
        "family": spec.family,
        "reward": f"{spec.reward_range[0]:g} to {spec.reward_range[1]:g}",
        "time limit": f"{spec.time_limit} steps" if spec.time_limit else "none",
        "protocol": protocol or "none",
    }
    return "\n".join([spec.name, *(f"  {key:12}{text}" for key, text in lines.items())])


class _OnDevice:
    """B copies of a device environment; rows are as it returns them, as layouts on the device see them."""

    timeout_s, waiting_since = float("inf"), 0.0

    def __init__(self, environment: envs.Environment, num_envs: int, key: types.Array) -> None:
        self.spec, self.num_envs, self._key = environment.spec, num_envs, key
        columns = envs.columns(environment)
        self._reset, self._step, self._state = jax.jit(columns.reset), jax.jit(columns.step), None

    def reset(self) -> types.TimeStep:
        self._state, row = self._reset(self._key, jnp.arange(self.num_envs))
        return jax.device_get(row)  # type: ignore[no-any-return]

    def step(self, action: np.ndarray) -> types.TimeStep:
        self._state, row = self._step(self._state, action)
        return jax.device_get(row)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._state = None


def _maker(environment: envs.Environment | envs.HostTask, options: Config) -> Any:
    seed, num_envs = options.seed, options.num_envs
    if isinstance(environment, envs.HostTask):
        seeds, task = episodes.seeds(seed, "check", 0, 0, num_envs), environment
        return lambda: task.make(seeds, num_envs, _TIMEOUT_S)
    on_device = environment
    return lambda: _OnDevice(on_device, num_envs, jax.random.key(seed))


def _parse(arguments: Sequence[str]) -> tuple[str, Config, dict[str, str]]:
    params = resolve.declared_params(command_line.names(arguments))
    options, given = command_line.options(Config, arguments, _USAGE, str(__doc__).partition("\n")[0], params)
    if len(given.rest) != 1:
        raise errors.UsageError(f"usage: {_USAGE}")
    return given.rest[0], options, resolve.env_params(given.values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
