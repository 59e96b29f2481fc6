"""Declares settings and resolves their values, each with its origin.

A setting takes, in rising order: the default of its Config class, the value of its system's paper, that of the task
family, a preset's, a flag's. Nothing here imports JAX, so that wrong flags are refused within milliseconds.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from jaxrl_dist import declarations, differences, systems

PACKAGE = pathlib.Path(__file__).resolve().parent
PARAMS = "env.params."
ALIASES = {"network": "network.torso"}

ConfigT = TypeVar("ConfigT")


class UsageError(ValueError):
    """What the user asked for cannot be; the message is one line that names the valid values."""


def setting(
    default: Any,
    help: str,
    *,
    source: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
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


def default_system(root: pathlib.Path = PACKAGE) -> str:
    """Returns the system that is trained where no flag names one."""
    return str(run_default("system", root))


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
        hint = declarations.nearest(name, system.layouts)
        raise UsageError(f"--layout={name}: {system.name} runs in {', '.join(system.layouts)}{hint}")
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


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Every setting of a run with its origin.

    Attributes:
        family: task family of the environment, None while it is unknown.
        settings: flag name -> value.
        origins: flag name -> where the value comes from.
        fields: flag name -> declaration (none for `env.params.*`).
    """

    family: str | None
    settings: Mapping[str, Any]
    origins: Mapping[str, str]
    fields: Mapping[str, declarations.Field]

    def __getitem__(self, name: str) -> Any:
        """Returns the value of a flag."""
        return self.settings[name]

    @property
    def env_params(self) -> dict[str, str]:
        """The environment's own parameters, as text."""
        return {name[len(PARAMS) :]: value for name, value in self.settings.items() if name.startswith(PARAMS)}

    def group(self, owner: str, config_class: type[ConfigT]) -> ConfigT:
        """Builds the Config of an owner ("" for the run's own settings)."""
        prefix = f"{owner}." if owner else ""
        names = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
        return config_class(**{name: self.settings[prefix + name] for name in names})

    def as_json(self) -> dict[str, Any]:
        """Returns what `config.json` holds; `restore` reads it back."""
        settings = {
            name: {"value": _plain(value), "origin": self.origins[name]} for name, value in self.settings.items()
        }
        return {"family": self.family, "settings": settings}

    def difference(self, old: Mapping[str, Any]) -> differences.Difference:
        """Compares with the contents of another run's `config.json`.

        A setting that the file does not know yet had its present default.

        Raises:
            UsageError: the contents are not those of a `config.json`.
        """
        before = {name: entry["value"] for name, entry in _entries(old).items()}
        after = {name: entry["value"] for name, entry in self.as_json()["settings"].items()}
        defaults = {name: _plain(field.default) for name, field in self.fields.items()}
        tunable = {name for name, field in self.fields.items() if field.tag == "tunable"}
        return differences.between(before, after, defaults, tunable)


def resolve(
    flags: Mapping[str, Any],
    family: str | None = None,
    preset: Mapping[str, Any] | None = None,
    *,
    preset_name: str = "",
    root: pathlib.Path = PACKAGE,
) -> Resolved:
    """Gives every setting its value: default < paper < family < preset < flag.

    Args:
        flags: flag name -> text or value, as the user gave them; `system` and `layout` among them choose the others.
        family: task family of the environment; None before its spec is known (to check flags only).
        preset: flag name -> value, below the flags.
        preset_name: name of the preset, for the origins.
        root: folder of the package's sources.

    Raises:
        UsageError: a flag is unknown, or a value is not valid.
    """
    flags, preset = canonical(flags), canonical(preset or {})
    system = find_system(str(flags.get("system") or preset.get("system") or default_system(root)))
    env = str(flags.get("env") or preset.get("env") or run_default("env", root))
    layout = choose_layout(system, str(flags.get("layout") or preset.get("layout") or ""), env, root)
    catalogue = fields(system, layout, root)
    layers: tuple[dict[str, tuple[Any, str]], ...] = (
        {
            name: (field.default, f"paper: {field.source}" if field.source else "default")
            for name, field in catalogue.items()
        },
        {"layout": (layout, f"system {system.name}")},
        _published("paper", system.settings_in(layout)),
        _published(f"family {family}", system.families.get(family or "", {})),
        {name: (value, f"preset {preset_name}".rstrip()) for name, value in preset.items()},
        {name: (value, "flag") for name, value in flags.items() if (name, value) != ("layout", "")},
    )
    settings, origins = {}, {}
    for name, (value, origin) in ((name, entry) for layer in layers for name, entry in layer.items()):
        settings[name] = _value(system, catalogue, name, value, root)
        origins[name] = origin
    if settings.get("num_seeds", 1) > 1 and not trains_seeds_together(layout, root):
        raise UsageError(
            f"--num_seeds={settings['num_seeds']}: {layout} trains one seed at a time; valid: 1 (scripts/study.py runs "
            "several, one after the other)"
        )
    return Resolved(family, settings, origins, catalogue)


def restore(contents: Mapping[str, Any], root: pathlib.Path = PACKAGE) -> Resolved:
    """Rebuilds the settings of a run from its `config.json`, origins included.

    Raises:
        UsageError: the contents are not those of a `config.json` that this version can read.
    """
    entries = _entries(contents)
    values = {name: entry["value"] for name, entry in entries.items()}
    resolved = resolve(values, contents.get("family"), root=root)
    origins = {**resolved.origins, **{name: str(entry.get("origin")) for name, entry in entries.items()}}
    return dataclasses.replace(resolved, origins=origins)


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
    candidates = [f"--{flag}" for flag in (*catalogue, *ALIASES)]
    # A setting given without its owner, or with the wrong one, is nearest to its namesake.
    namesakes = [flag for flag in candidates if flag.strip("-").split(".")[-1] == name.split(".")[-1]]
    hint = f"; did you mean {namesakes[0]}?" if namesakes else declarations.nearest(f"--{name}", candidates)
    return UsageError(f"--{name}: {system.name} has no such flag{hint} (--help lists them)")


def _published(origin: str, settings: Mapping[str, systems.Setting]) -> dict[str, tuple[Any, str]]:
    """Pairs the values of a row with their origin."""
    return {name: (value, f"{origin}: {source}") for name, (value, source) in settings.items()}


def _value(
    system: systems.System,
    catalogue: Mapping[str, declarations.Field],
    name: str,
    value: Any,
    root: pathlib.Path,
) -> Any:
    """Checks one value; parameters of the environment's own stay text."""
    if name.startswith(PARAMS) and name[len(PARAMS) :].isidentifier():
        return str(value)
    if name not in catalogue:
        raise unknown_flag(system, catalogue, name, root)
    try:
        return declarations.parse(catalogue[name], value)
    except ValueError as error:
        raise UsageError(f"--{name}={value}: {error}") from None


def _plain(value: Any) -> Any:
    """Returns the value as JSON has it: tuples as lists, infinities as text."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _entries(contents: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the settings of a `config.json`'s contents, checked in form."""
    entries = contents.get("settings") if isinstance(contents, Mapping) else None
    if not isinstance(entries, dict) or not all(
        isinstance(item, dict) and "value" in item for item in entries.values()
    ):
        raise UsageError("config.json is not that of a run: it needs settings with values")
    return entries
