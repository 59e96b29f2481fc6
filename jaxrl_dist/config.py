"""Declares settings and resolves their values, each with its origin.

A setting takes, in rising order: the default of its Config class, the value of its system's paper, that of the task
family, a preset's, what `--layout=auto` measured, a flag's. Nothing here imports JAX, so that wrong flags are refused
within milliseconds.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from jaxrl_dist import declarations, differences, systems
from jaxrl_dist.presets import base as presets

PACKAGE = pathlib.Path(__file__).resolve().parent
PARAMS = "env.params."
ALIASES = {"network": "network.torso"}
AUTO = "auto"

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
    preset: presets.Preset | None = None,
    measured: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
    *,
    root: pathlib.Path = PACKAGE,
) -> Resolved:
    """Gives every setting its value: default < paper < family < preset < measured < flag.

    Args:
        flags: flag name -> text or value, as the user gave them; `system`, `layout` and `preset` among them choose the
            others.
        family: task family of the environment; None before its spec is known (to check flags only).
        preset: instead of the one that the flags name.
        measured: flag name -> value and origin of what `--layout=auto` has chosen; before that, the layout is the
            system's own.
        root: folder of the package's sources.

    Raises:
        UsageError: a flag is unknown, or a value is not valid.
    """
    flags = canonical(flags)
    preset = find_preset(str(flags.get("preset") or ""), root) if preset is None else preset
    is_auto = flags.get("layout") == AUTO
    named = {**flags, "layout": measured["layout"][0]} if is_auto and "layout" in measured else flags
    system, _, layout = choose(named, preset, root)
    catalogue = fields(system, layout, root)
    layers: tuple[dict[str, tuple[Any, str]], ...] = (
        {
            name: (field.default, f"paper: {field.source}" if field.source else "default")
            for name, field in catalogue.items()
        },
        {"layout": (layout, f"system {system.name}")},
        _published("paper", system.settings_in(layout)),
        _published(f"family {family}", system.families.get(family or "", {})),
        _published(f"preset {preset.name}", _in_layout(preset, layout, catalogue)),
        dict(measured) if is_auto else {},
        {name: (value, "flag") for name, value in flags.items() if name != "layout" or value not in ("", AUTO)},
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
    resolved = resolve(values, contents.get("family"), presets.NONE, root=root)
    origins = {**resolved.origins, **{name: str(entry.get("origin")) for name, entry in entries.items()}}
    return dataclasses.replace(resolved, origins=origins)


def measured_in(contents: Any) -> dict[str, tuple[Any, str]]:
    """Returns what `--layout=auto` has chosen in an earlier session: flag name -> value and origin.

    Args:
        contents: of a `config.json`, of whatever form.
    """
    try:
        entries = {name: (entry["value"], str(entry.get("origin"))) for name, entry in _entries(contents).items()}
    except UsageError:
        return {}
    return {name: entry for name, entry in entries.items() if entry[1].startswith(AUTO)}


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
    candidates = [f"--{flag}" for flag in (*catalogue, *ALIASES)]
    # A setting given without its owner, or with the wrong one, is nearest to its namesake.
    namesakes = [flag for flag in candidates if flag.strip("-").split(".")[-1] == name.split(".")[-1]]
    hint = f"; did you mean {namesakes[0]}?" if namesakes else declarations.nearest(f"--{name}", candidates)
    return UsageError(f"--{name}: {system.name} has no such flag{hint} (--help lists them)")


def _published(origin: str, settings: Mapping[str, systems.Setting]) -> dict[str, tuple[Any, str]]:
    """Pairs the values of a row with their origin."""
    return {name: (value, f"{origin}: {source}") for name, (value, source) in settings.items()}


def _in_layout(
    preset: presets.Preset, layout: str, catalogue: Mapping[str, declarations.Field]
) -> dict[str, systems.Setting]:
    """Returns the settings of a preset; in another layout than its own, without those of that layout."""
    kept = {name: one for name, one in preset.settings.items() if name in catalogue or not name.startswith("layout.")}
    if "layout" in kept and kept["layout"].value != layout:
        del kept["layout"]
    return kept


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
