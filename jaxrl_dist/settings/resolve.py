"""Gives every setting of a run its value, with its origin, from layers of rising rank; compares configurations.

It knows no setting by name; `systems.catalogue` says which layers there are.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from jaxrl_dist import errors
from jaxrl_dist.settings import fields as setting_fields

# Flags of 0.1.0 that were renamed, old -> new; CHANGELOG.md has the same table.
RENAMED = {
    "learner.policy_learning_rate": "agent.policy_learning_rate",
    "learner.policy_period": "agent.policy_period",
}
PARAMS = "env.params."
# Parameters that say how environments run, of any suite: neither the task nor its scores change with them.
_OF_PROCESSES = {f"{PARAMS}{name}" for name in ("num_threads", "workers", "max_restarts")}
EVALUATION = "agent.evaluation_"
# Origins: of a flag, of a choice by measuring, and the beginning of that of a preset, before its name.
FLAG, AUTO, PRESET = "flag", "auto", "preset "

ConfigT = TypeVar("ConfigT")
# Flag name -> value and its origin.
Layer = Mapping[str, tuple[Any, str]]


def is_given(origin: str) -> bool:
    """Says whether a value of this origin was given, by a flag or a preset.

    Example:
        >>> from jaxrl_dist.settings import resolve
        >>> resolve.is_given("flag"), resolve.is_given("family classic: this project")
        (True, False)
    """
    return origin.startswith((FLAG, PRESET))


class Change(NamedTuple):
    """A setting that differs between two configurations; a value is `None` if its configuration lacks it."""

    name: str
    old: Any
    new: Any


class Difference(NamedTuple):
    """Changed settings: those that make it another run, and those that a resumed run may change."""

    identity: tuple[Change, ...]
    tunable: tuple[Change, ...]


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Every setting of a run with its origin.

    Attributes:
        family: task family of the environment, None while it is unknown.
        settings: flag name -> value.
        origins: flag name -> origin of the value.
        fields: flag name -> declaration (none for `env.params.*`).
        row: the `systems.System` whose settings they are; None if none was chosen.

    Example:
        >>> import jaxrl_dist
        >>> from jaxrl_dist.learning import learner
        >>> settings = jaxrl_dist.make("ppo", "toy:walk", settings={"learner.epochs": 2}).settings
        >>> settings["learner.epochs"], settings.origins["learner.epochs"]
        (2, 'flag')
        >>> "learner.epochs" in settings, dict(settings)["agent.discount"]
        (True, 0.99)
        >>> settings.group("learner", learner.Config).epochs
        2
    """

    family: str | None
    settings: Mapping[str, Any]
    origins: Mapping[str, str]
    fields: Mapping[str, setting_fields.Field]
    row: Any = None

    def __repr__(self) -> str:
        named = " ".join(str(self.settings[name]) for name in ("system", "env", "layout") if name in self.settings)
        given = sum(origin == FLAG for origin in self.origins.values())
        return f"Resolved({named}: {len(self.settings)} settings, {given} of them given)"

    def __getitem__(self, name: str) -> Any:
        """Returns the value of a flag."""
        return self.settings[name]

    def __contains__(self, name: object) -> bool:
        """Says whether there is a flag of that name."""
        return name in self.settings

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the flags."""
        return iter(self.settings)

    def keys(self) -> KeysView[str]:
        """Returns the names of the flags, so that `dict(...)` has their values."""
        return self.settings.keys()

    @property
    def env_params(self) -> dict[str, str]:
        """The environment's own parameters, as text."""
        return env_params(self.settings)

    def group(self, owner: str, config_class: type[ConfigT]) -> ConfigT:
        """Builds the Config of an owner ("" for the run's own settings)."""
        prefix = f"{owner}." if owner else ""
        names = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
        return config_class(**{name: self.settings[prefix + name] for name in names})

    def replaced(self, values: Mapping[str, Any]) -> "Resolved":
        """Returns these settings with other values, which may have any type."""
        return dataclasses.replace(self, settings={**self.settings, **values})

    def as_json(self) -> dict[str, Any]:
        """Returns the contents of `config.json`; `entries` reads them back.

        An entry has value, origin and tag, and the default if the value differs from it, so that runs can be compared
        without their code.
        """
        found = {}
        for name, value in self.settings.items():
            tag = "tunable" if name in _OF_PROCESSES else "identity"
            entry = {"value": plain(value), "origin": self.origins[name], "tag": tag}
            if name in self.fields:
                entry["tag"], default = self.fields[name].tag, plain(self.fields[name].default)
                entry |= {"default": default} if default != entry["value"] else {}
            found[name] = entry
        return {"family": self.family, "settings": found}

    def difference(self, old: Mapping[str, Any]) -> Difference:
        """Compares with the contents of another run's `config.json`.

        A setting that the file does not have yet counts as its present default. What a flag changed comes first, then
        what changed with it.

        Raises:
            UsageError: the contents are not those of a `config.json`.
        """
        found = difference(entries(old, self.fields), entries(self.as_json(), self.fields))
        ordered = [sorted(part, key=lambda change: self.origins.get(change.name) != FLAG) for part in found]
        return Difference(*map(tuple, ordered))


def env_params(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment's own parameters, as text, of flag name -> value."""
    return {name.removeprefix(PARAMS): str(value) for name, value in values.items() if name.startswith(PARAMS)}


def task_params(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the parameters that say which task is played, not how its environments run; see `env_params`."""
    return env_params({name: value for name, value in values.items() if name not in _OF_PROCESSES})


def declared_params(names: Iterable[str]) -> dict[str, setting_fields.Field]:
    """Declares, as text, the environment's own parameters among the flags that a command line names."""
    about = "Value of a parameter of the environment."
    return {name: setting_fields.Field(name, "str", "", about) for name in named_under(PARAMS, names)}


def named_under(prefix: str, names: Iterable[str]) -> list[str]:
    """Returns the names that a prefix and an identifier make up; text with a space is no flag."""
    return [name for name in names if name.startswith(prefix) and name.removeprefix(prefix).isidentifier()]


def layered(
    layers: Sequence[Layer],
    parse: Callable[[str, Any], Any],
    declared: Mapping[str, setting_fields.Field],
    family: str | None,
) -> Resolved:
    """Gives every setting the value of the last layer that has it.

    Args:
        layers: in rising rank.
        parse: (name, value of any type) -> valid value; raises a UsageError for an invalid one.
        declared: flag name -> declaration.
        family: task family of the environment.
    """
    settings, origins = {}, {}
    for name, (value, origin) in ((name, entry) for layer in layers for name, entry in layer.items()):
        settings[name], origins[name] = parse(name, value), origin
    return Resolved(family, settings, origins, declared)


def difference(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]], always: Collection[str] = ()
) -> Difference:
    """Compares two configurations; parameters that say how environments run are tunable.

    Args:
        before: name -> entry of `config.json`; a setting that is missing had its default.
        after: likewise.
        always: names of settings that count as identity, whatever their tag is.
    """
    changes, tunable = [], _OF_PROCESSES - set(always)
    for name in dict.fromkeys((*after, *before)):
        known = [one[name] for one in (before, after) if name in one]
        if any(entry.get("tag") == "tunable" for entry in known) and name not in always:
            tunable.add(name)
        old, new = (one[name]["value"] if name in one else _default(name, known[0]) for one in (before, after))
        changes.append(Change(name, old, new))
    changes = [change for change in changes if change.old != change.new]
    return Difference(
        tuple(change for change in changes if change.name not in tunable),
        tuple(change for change in changes if change.name in tunable),
    )


def _default(name: str, entry: Mapping[str, Any]) -> Any:
    """Returns the value of a setting that a `config.json` lacks: its default; None for `env.params.*`."""
    return None if name.startswith(PARAMS) else entry.get("default", entry["value"])


def describe(changes: Sequence[Change], limit: int = 6) -> str:
    """Lists changes in words, such as "seed 0 -> 1, agent.discount 0.99 -> 0.9"."""
    words = [f"{change.name} {change.old} -> {change.new}" for change in changes[:limit]]
    more = [f"and {len(changes) - limit} more"] if len(changes) > limit else []
    return ", ".join(words + more)


def origin_of(source: str) -> str:
    """Describes the source of a value in a Config class or a system: a paper, this project, or no cited source."""
    return f"paper: {source}" if source and not source.startswith(setting_fields.OURS) else source or "default"


def from_row(values: Mapping[str, setting_fields.Cited]) -> dict[str, tuple[Any, str]]:
    """Returns the layer of a system's own values, whose origin is their source alone."""
    return {name: (value, origin_of(source)) for name, (value, source) in values.items()}


def published(origin: str, values: Mapping[str, setting_fields.Cited]) -> dict[str, tuple[Any, str]]:
    """Returns the layer of a family's or a preset's values, whose origin is its name with their source."""
    return {name: (value, f"{origin}: {source}") for name, (value, source) in values.items()}


def plain(value: Any) -> Any:
    """Converts a value to JSON's types: tuples to lists, infinities to text."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def entries(contents: Any, declared: Container[str] = ()) -> dict[str, dict[str, Any]]:
    """Checks the form of a `config.json`'s contents, and returns its settings by their present names.

    Args:
        contents: contents of the file.
        declared: names of the run's settings; a renamed one that is not among them is left out, since the run did not
            use it.

    Raises:
        UsageError: the contents are not those of a `config.json`.
    """
    found = contents.get("settings") if isinstance(contents, Mapping) else None
    named = contents.get("family") if isinstance(contents, Mapping) else None
    are_entries = isinstance(found, dict) and all(isinstance(x, dict) and "value" in x for x in found.values())
    if not isinstance(found, dict) or not are_entries or not isinstance(named, str | None):
        raise errors.UsageError("config.json is not that of a run: it needs settings with values")
    renamed: dict[str, dict[str, Any]] = {RENAMED.get(str(name), str(name)): item for name, item in found.items()}
    return {name: item for name, item in renamed.items() if name in declared or name not in RENAMED.values()}
