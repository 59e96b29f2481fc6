"""Reads the command line of training, and checks everything that can be checked before an environment is made."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl_dist import envs, errors, systems
from jaxrl_dist.runs import folder, software
from jaxrl_dist.settings import Field, command_line, sweep
from jaxrl_dist.settings.resolve import Resolved, declared_params
from jaxrl_dist.systems import catalogue

_ACTIONS = {
    "help": "Print the flags of the chosen system, and exit.",
    "list": "Print the systems, the environments, the layouts and the presets, and exit.",
    "dry_run": "Compile everything, train for some seconds, print memory, placement, schedules and speed, and exit.",
    "target": "With --dry_run, a device that is not there: compile for h100, h200:8, v4, v5e:2x2 or v6e:2x2, and print "
    "what the program would start, hold, exchange and wait for.",
    "version": "Print versions, and exit.",
}


class Command(NamedTuple):
    """The wish of the user: text to print, or flags (name -> value) of a run and their checked settings.

    With `dry_run`, the run is to be described, not trained; with `target` for a device that is not there.
    """

    text: str
    flags: dict[str, Any]
    settings: Resolved | None
    dry_run: bool = False
    target: str = ""


def parse(argv: Sequence[str], usage: str = "") -> Command:
    """Reads and checks a command line.

    Args:
        argv: arguments without the program's name.
        usage: how the command is called, for `--help`.

    Raises:
        UsageError: a flag, a value or a name is not valid.
    """
    arguments = command_line.expanded(argv)
    actions = {name: Field(name, "bool", False, about) for name, about in _ACTIONS.items()}
    actions["target"] = Field("target", "str", "", _ACTIONS["target"])
    chosen = {name: Field(name, "str", "", "") for name in ("system", "env", "layout", "preset")}
    first = command_line.read(arguments, {**actions, **chosen}).values
    if first.get("version"):
        return Command("\n".join(software.versions()), {}, None)
    if first.get("list"):
        return Command(catalogue.list_text(), {}, None)
    preset = catalogue.find_preset(first.get("preset", ""))
    system, env, layout = catalogue.choose(first, preset)
    envs.find_suite(env)
    if first.get("help"):
        return Command(catalogue.help_text(system, layout, usage, preset, _ACTIONS), {}, None)
    declared = catalogue.declared(system, layout)
    if "undefok" in command_line.names(arguments):
        # Absl would silently drop the flags it names.
        raise catalogue.unknown_flag(system, declared, "undefok")
    of_dry_run = {name: actions[name] for name in ("dry_run", "target")}
    values, rest = command_line.read(arguments, {**_flags(arguments, declared), **of_dry_run})
    dry_run, target = values.pop("dry_run", False), values.pop("target", "")
    if target and not dry_run:
        raise errors.UsageError(
            errors.given("target", target), " needs ", errors.given("dry_run"), ", and trains nothing"
        )
    if rest:
        raise _unexpected(system, declared, rest[0])
    settings = catalogue.resolved(values)
    software.check_trackers(settings)
    sweep.check_once(settings, values)
    origin = settings["init_from"]
    if origin and not (pathlib.Path(origin) / "config.json").is_file() and folder.held(folder.of(settings)) is None:
        raise errors.UsageError(f"--init_from={origin} is not the folder of a run: it has no config.json")
    return Command("", catalogue.canonical(values), settings, dry_run, target)


def _flags(arguments: Sequence[str], declared: Mapping[str, Field]) -> dict[str, Field]:
    """Returns every flag that the arguments may use."""
    short = {name: declared[full]._replace(name=name) for name, full in catalogue.ALIASES.items()}
    return {**declared, **short, **declared_params(command_line.names(arguments))}


def _unexpected(system: systems.System, declared: Mapping[str, Field], argument: str) -> errors.UsageError:
    """Returns an error for an argument that is no flag of the system."""
    if not argument.startswith("-") or not argument.strip("-"):
        return errors.UsageError(f"unexpected argument {argument!r}: flags are given as --flag=value")
    return catalogue.unknown_flag(system, declared, argument.lstrip("-").partition("=")[0])
