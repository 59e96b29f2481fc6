"""Gives every setting of a run its value, with its origin.

A setting takes, in rising order: the default of its Config class, the value of its system's paper, that of the task
family, what its layout needs, a preset's, what `--layout=auto` measured, a flag's. Nothing here imports JAX.
"""

import dataclasses
import math
import pathlib
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from jaxrl_dist import config, declarations, differences, systems
from jaxrl_dist.config import AUTO, PARAMS, UsageError
from jaxrl_dist.presets import base as presets
from jaxrl_dist.settings import base

ConfigT = TypeVar("ConfigT")

# Rows are counted and permuted in 32 bits.
_MOST_ROWS = 2**31
# What `--layout=auto` may choose of any run, as nothing that is learned depends on it.
_FOR_SPEED = (
    *("layout", "layout.num_devices", "layout.learner_devices", "layout.actor_devices"),
    *("layout.num_actors", "layout.ready_envs"),
)


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
    root: pathlib.Path = config.PACKAGE,
) -> Resolved:
    """Gives every setting its value: default < paper < family < layout < preset < measured < flag.

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
    flags = config.canonical(flags)
    preset = config.find_preset(str(flags.get("preset") or ""), root) if preset is None else preset
    is_auto = flags.get("layout") == AUTO
    named = {**flags, "layout": measured["layout"][0]} if is_auto and "layout" in measured else flags
    system, _, layout = config.choose(named, preset, root)
    catalogue = config.fields(system, layout, root)
    needed = _from_row(system.settings_in(layout, family))
    is_elsewhere = config.choose({**flags, "layout": ""}, preset, root).layout != layout
    above = _in_layout(preset, layout, catalogue, needed if is_elsewhere else ())
    layers: tuple[dict[str, tuple[Any, str]], ...] = (
        {name: (field.default, paper_origin(field.source)) for name, field in catalogue.items()},
        {"layout": (layout, f"system {system.name}")},
        _from_row(system.settings),
        _published(f"family {family}", system.families.get(family or "", {})),
        needed,
        _published(f"preset {preset.name}", above),
        dict(measured) if is_auto else {},
        {name: (value, "flag") for name, value in flags.items() if name != "layout" or value not in ("", AUTO)},
    )
    settings, origins = {}, {}
    for name, (value, origin) in ((name, entry) for layer in layers for name, entry in layer.items()):
        settings[name] = _value(system, catalogue, name, value, root)
        origins[name] = origin
    if settings.get("num_seeds", 1) > 1 and not config.trains_seeds_together(layout, root):
        raise UsageError(
            f"--num_seeds={settings['num_seeds']}: {layout} trains one seed at a time; valid: 1 (scripts/study.py runs "
            "several, one after the other)"
        )
    _check_rows(settings)
    return Resolved(family, settings, origins, catalogue)


def _check_rows(settings: Mapping[str, Any]) -> None:
    """Refuses iterations of more rows than an int32 counts."""
    names = [name for name in ("env.num_envs", "layout.unroll_length") if name in settings]
    if math.prod(settings[name] for name in names) >= _MOST_ROWS:
        given = " × ".join(f"--{name}={settings[name]}" for name in names)
        raise UsageError(f"{given}: expected fewer than {_MOST_ROWS} rows per iteration")


def paper_origin(source: str) -> str:
    """Says where the value of a Config class or of a system's row is from: its paper, this project, or no one's."""
    return f"paper: {source}" if source and not source.startswith(base.OURS) else source or "default"


def restore(contents: Mapping[str, Any], root: pathlib.Path = config.PACKAGE) -> Resolved:
    """Rebuilds the settings of a run from its `config.json`, origins included.

    Raises:
        UsageError: the contents are not those of a `config.json` that this version can read.
    """
    entries = _entries(contents)
    values = {name: entry["value"] for name, entry in entries.items()}
    resolved = resolve(values, contents.get("family"), presets.NONE, root=root)
    origins = {**resolved.origins, **{name: str(entry.get("origin")) for name, entry in entries.items()}}
    return dataclasses.replace(resolved, origins=origins)


def measured_in(contents: Any, asked: Resolved) -> dict[str, tuple[Any, str]]:
    """Returns what `--layout=auto` has chosen in an earlier session, or would have: flag name -> value and origin.

    A run that was begun without it goes on in its own layout, on its own devices.

    Args:
        contents: of a `config.json`, of whatever form.
        asked: settings now; a run of another system or environment says nothing about them.
    """
    try:
        entries = {name: (entry["value"], str(entry.get("origin"))) for name, entry in _entries(contents).items()}
    except UsageError:
        return {}
    if any(entries.get(name, ("", ""))[0] != asked[name] for name in ("system", "env")):
        return {}
    return {name: entry for name, entry in entries.items() if entry[1].startswith(AUTO) or name in _FOR_SPEED}


def resolve_as_in(contents: Mapping[str, Any], flags: Mapping[str, Any], asked: Resolved) -> Resolved:
    """Gives every setting its value as in a run: in the family of its environment, with what auto means there.

    Args:
        contents: of the run's `config.json`.
        flags: flag name -> text or value.
        asked: settings that these give before the environment is known.

    Raises:
        UsageError: a flag is not valid in that family.
    """
    return resolve(flags, contents["family"], measured=measured_in(contents, asked))


def _from_row(settings: Mapping[str, systems.Setting]) -> dict[str, tuple[Any, str]]:
    """Pairs the values of a system with their origin, the source alone."""
    return {name: (value, paper_origin(source)) for name, (value, source) in settings.items()}


def _published(origin: str, settings: Mapping[str, systems.Setting]) -> dict[str, tuple[Any, str]]:
    """Pairs the values of a row with their origin."""
    return {name: (value, f"{origin}: {source}") for name, (value, source) in settings.items()}


def _in_layout(
    preset: presets.Preset, layout: str, catalogue: Container[str], needed: Container[str]
) -> dict[str, systems.Setting]:
    """Returns the settings of a preset; in another layout than its own, without those of its own or that this needs."""
    kept = {
        name: setting
        for name, setting in preset.settings.items()
        if name not in needed and (name in catalogue or not name.startswith("layout."))
    }
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
        raise config.unknown_flag(system, catalogue, name, root)
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
