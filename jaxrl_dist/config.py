"""Declares settings, lists those of a system, and chooses system, environment and layout.

Nothing here imports JAX, so that wrong flags are refused within milliseconds.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxrl_dist import declarations, systems
from jaxrl_dist.presets import base as presets

PACKAGE = pathlib.Path(__file__).resolve().parent
PARAMS = "env.params."
ALIASES = {"network": "network.torso"}
AUTO = "auto"


class UsageError(ValueError):
    """What the user asked for cannot be; the message is one line that names the valid values."""


def missing_package(what: str, package: str | None, extra: str) -> UsageError:
    """Explains that something needs a package, which an extra of this one installs; this one is on no index."""
    return UsageError(f'{what} needs the package {package}: pip install -e ".[{extra}]" in the checkout')


def setting(
    default: Any,
    help: str,
    *,
    source: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] | None = None,
    tag: Literal["identity", "tunable"] = "identity",
) -> Any:
    """Declares one field of a frozen Config dataclass.

    Every argument is a literal, so that `declarations.read` reads it from the source file without importing the module.

    Args:
        default: value without a preset, a family or a flag.
        help: one sentence for `--help`.
        source: where the default was published; empty for a default of this project.
        low: smallest valid value, inclusive.
        high: largest valid value, inclusive.
        above: exclusive lower bound.
        below: exclusive upper bound.
        choices: valid values, where they are few; "module:Class" among them admits any class of the user's.
        tag: "identity" if a resume with another value must be refused, "tunable" if it may change.

    Returns:
        A `dataclasses.field` with the default, and the declaration in its metadata.
    """
    metadata = {
        "help": help,
        "source": source,
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "choices": None if choices is None else tuple(choices),
        "tag": tag,
    }
    return dataclasses.field(default=default, metadata=metadata)


def fields(system: systems.System, layout: str, root: pathlib.Path = PACKAGE) -> dict[str, declarations.Field]:
    """Reads every setting of a system in a layout: flag name (`owner.name`, or `name` for the run's own) -> `Field`."""
    sources = (
        ("", "runner.py", "Config"),
        ("agent.", f"agents/{system.agent}.py", "Config"),
        ("learner.", "learner.py", "Config"),
        ("replay.", "replay.py", f"{system.replay.title()}Config"),
        ("layout.", f"parallel/{layout}.py", "Config"),
        ("network.", "networks.py", "Config"),
        ("env.", "envs/base.py", "Config"),
        ("evaluation.", "evaluation.py", "Config"),
        ("checkpoint.", "checkpoint.py", "Config"),
        ("log.", "loggers.py", "Config"),
    )
    return {
        prefix + field.name: field for prefix, path, name in sources for field in declarations.read(root / path, name)
    }


class Choice(NamedTuple):
    """What the other settings depend on: the row of the table, the environment, and the layout."""

    system: systems.System
    env: str
    layout: str


def choose(flags: Mapping[str, Any], preset: presets.Preset, root: pathlib.Path = PACKAGE) -> Choice:
    """Returns what flags name, or else a preset, or else the defaults.

    Raises:
        UsageError: there is no such system or layout, or the preset is of another system.
    """
    named = {name: str(flags.get(name) or "") for name in ("system", "env", "layout")}
    beneath = {name: str(preset.settings[name].value) for name in named if name in preset.settings}
    if beneath and named["system"] not in ("", beneath["system"]):
        raise UsageError(
            f"--system={named['system']}: --preset={preset.name} is of {beneath['system']}; leave out one of them"
        )
    system, _, layout = (named[name] or beneath.get(name, "") for name in named)
    row = find_system(system or str(run_default("system", root)))
    # One that is named without text is refused where environments are checked.
    env = named["env"] if "env" in flags else beneath.get("env", str(run_default("env", root)))
    return Choice(row, env, choose_layout(row, "" if layout == AUTO else layout, env, root))


def find_preset(name: str, root: pathlib.Path = PACKAGE) -> presets.Preset:
    """Returns the preset of a name; one without settings for none.

    Raises:
        UsageError: there is no such preset.
    """
    try:
        return presets.load(name, root)
    except ValueError as error:
        raise UsageError(f"--preset={name}: {error}") from None


def suites(root: pathlib.Path = PACKAGE) -> dict[str, tuple[str, ...]]:
    """Returns the environments of each suite, () where a suite has no fixed list, from the sources of `envs/`."""
    found = {}
    for path in sorted((root / "envs").glob("*.py")):
        suite = declarations.constant(path, "SUITE")
        if suite is not None:
            found[suite] = tuple(declarations.constant(path, "ENVIRONMENTS") or ())
    return found


def check_environment(name: str, root: pathlib.Path = PACKAGE) -> None:
    """Checks an environment's name, `suite:name`, without importing its suite.

    Raises:
        UsageError: the suite or the environment is unknown.
    """
    by_suite = suites(root)
    full_names = [f"{suite}:{member}" for suite, members in by_suite.items() for member in members]
    suite, separator, member = name.partition(":")
    if not separator or not member:
        namesakes = [full for full in full_names if full.split(":")[1].casefold() == name.casefold()]
        hint = f"; did you mean {namesakes[0]}?" if namesakes else declarations.nearest(name, full_names)
        if suite in by_suite:
            hint = f"; did you mean {suite}:{(by_suite[suite] or ('NAME',))[0]}?"
        raise UsageError(f"--env={name}: expected suite:name, suites are {', '.join(by_suite)}{hint}")
    if suite not in by_suite:
        hint = declarations.nearest(name, full_names) or declarations.nearest(suite, by_suite)
        raise UsageError(f"--env={name}: no suite {suite}, expected one of {', '.join(by_suite)}{hint}")
    if by_suite[suite] and member not in by_suite[suite]:
        hint = declarations.nearest(member, by_suite[suite])
        raise UsageError(f"--env={name}: {suite} has {', '.join(by_suite[suite])}{hint}")


def choose_layout(system: systems.System, name: str, env: str, root: pathlib.Path = PACKAGE) -> str:
    """Returns the layout that was named, or else the system's first that serves the environment natively.

    Args:
        system: row of the table.
        name: of the layout; empty for none.
        env: suite:name.
        root: folder of the package's sources.

    Raises:
        UsageError: the system does not run in it, or it cannot serve the environment.
    """
    if name and name not in system.layouts:
        hint = declarations.nearest(name, (*system.layouts, AUTO))
        raise UsageError(f"--layout={name}: {system.name} runs in {', '.join(system.layouts)} or {AUTO}{hint}")
    suite = root / "envs" / f"{env.partition(':')[0]}.py"
    runs_on = declarations.constant(suite, "RUNS_ON") if suite.is_file() else None
    if runs_on is None:
        return name or system.layouts[0]
    serves = {
        layout: declarations.constant(root / "parallel" / f"{layout}.py", "SERVES") or () for layout in system.layouts
    }
    able = [layout for layout in system.layouts if runs_on in serves[layout]]
    if name and name not in able:
        raise UsageError(
            f"--layout={name}: {env} runs on the {'CPU' if runs_on == 'host' else runs_on} only; valid: "
            f"{', '.join(able) or 'none'}"
        )
    natively = [layout for layout in system.layouts if serves[layout][:1] == (runs_on,)]
    return name or (natively or able or list(system.layouts))[0]


def trains_seeds_together(layout: str, root: pathlib.Path = PACKAGE) -> bool:
    """Whether a layout trains several seeds in one program."""
    return declarations.constant(root / "parallel" / f"{layout}.py", "SEEDS_TOGETHER") is not False


def run_default(name: str, root: pathlib.Path) -> Any:
    """Returns the default of one of the run's own settings."""
    return next(field.default for field in declarations.read(root / "runner.py") if field.name == name)


def find_system(name: str) -> systems.System:
    """Returns the row of the table.

    Raises:
        UsageError: there is no such system.
    """
    if name not in systems.SYSTEMS:
        valid = ", ".join(systems.SYSTEMS)
        raise UsageError(f"--system={name}: expected one of {valid}{declarations.nearest(name, systems.SYSTEMS)}")
    return systems.SYSTEMS[name]


def systems_for(actions: str, root: pathlib.Path = PACKAGE) -> str:
    """Names the systems whose agents declare, in the literal `ACTIONS`, that they take such actions.

    Args:
        actions: `discrete`, or `bounded` or `unbounded` vectors of real numbers.
        root: folder of the package's sources.
    """
    by_agent = {row.agent: root / "agents" / f"{row.agent}.py" for row in systems.SYSTEMS.values()}
    able = {agent for agent, path in by_agent.items() if actions in (declarations.constant(path, "ACTIONS") or ())}
    return ", ".join(row.name for row in systems.SYSTEMS.values() if row.agent in able)


def canonical(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces short flag names by the full ones.

    Raises:
        UsageError: both the short and the full name are given.
    """
    for short, full in ALIASES.items():
        if short in flags and full in flags:
            raise UsageError(f"--{short} is short for --{full}: give one of them")
    return {ALIASES.get(name, name): value for name, value in flags.items()}


def unknown_flag(
    system: systems.System, catalogue: Mapping[str, declarations.Field], name: str, root: pathlib.Path = PACKAGE
) -> UsageError:
    """Explains that a system has no such flag, and names the nearest that it has."""
    others = [layout for layout in system.layouts if name in fields(system, layout, root) and name not in catalogue]
    if others:
        return UsageError(f"--{name}: a flag of --layout={', --layout='.join(others)}, which this run does not have")
    owners = [row.name for row in systems.SYSTEMS.values() if name in fields(row, row.layouts[0], root)]
    if owners:
        return UsageError(f"--{name}: {system.name} has no such flag; --system={', '.join(owners)} have it")
    candidates = (*catalogue, *ALIASES)
    # A setting given without its owner, or with the wrong one, is nearest to its namesake.
    namesakes = [flag for flag in candidates if flag.split(".")[-1] == name.split(".")[-1]]
    hint = f"; did you mean --{namesakes[0]}?" if namesakes else declarations.nearest_flag(name, candidates)
    return UsageError(f"--{name}: {system.name} has no such flag{hint} (--help lists them)")
