"""Reads the command line of `scripts/train.py` and refuses what cannot be, before JAX or any suite is imported."""

import contextlib
import itertools
import json
import os
import pathlib
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags as absl_flags

from jaxrl_dist import config, declarations, differences, faults, resolution, software, sweeps, systems
from jaxrl_dist.presets import base as presets

CONSOLE = "jaxrl-dist"
_SCRIPT = "train.py"
_ACTIONS = {
    "help": "Print the flags of the chosen system, and exit.",
    "list": "Print the systems, the environments, the layouts and the presets, and exit.",
    "dry_run": "Compile everything, train for some seconds, print memory, placement, schedules and speed, and exit.",
    "version": "Print versions, and exit.",
}


class Command(NamedTuple):
    """What the user asks for: text to print, or flags (name -> text) to run with and their checked settings.

    With `dry_run`, only what such a run would be is wanted.
    """

    text: str
    flags: dict[str, str]
    settings: resolution.Resolved | None
    dry_run: bool = False


def program() -> str:
    """Returns the name by which this program was called: that of the script, or of the installed command."""
    return CONSOLE if pathlib.Path(sys.argv[0]).stem == CONSOLE else _SCRIPT


def print_error(error: BaseException) -> None:
    """Prints an error and the notes beside it, a line each, but for the one that JAX adds on its own frames."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("-----")]
    for line in (str(error), *(" ".join(note.split()) for note in notes)):
        print(f"{program()}: {line}", file=sys.stderr)


def parse(argv: Sequence[str], root: pathlib.Path = config.PACKAGE) -> Command:
    """Reads and checks a command line.

    Args:
        argv: arguments without the program's name.
        root: folder of the package's sources.

    Raises:
        config.UsageError: a flag, a value or a name is not valid.
    """
    arguments = _with_flag_files(argv)
    chosen = dict.fromkeys(("system", "env", "layout", "preset"), False)
    first = _parse_known(arguments, {**chosen, **dict.fromkeys(_ACTIONS, True)})[0]
    if "version" in first:
        return Command("\n".join(software.versions()), {}, None)
    if "list" in first:
        return Command(catalogue_text(root), {}, None)
    preset = config.find_preset(first.get("preset", ""), root)
    system, env, layout = config.choose(first, preset, root)
    config.check_environment(env, root)
    fields = config.fields(system, layout, root)
    if "help" in first:
        return Command(help_text(system, layout, fields, preset), {}, None)
    if "undefok" in _given(arguments):
        # Absl would silently drop the flags it names.
        raise config.unknown_flag(system, fields, "undefok", root)
    values, rest = _parse_known(arguments, {**_names(arguments, fields), "dry_run": True})
    dry_run = _truth("dry_run", values.pop("dry_run", "false"))
    if rest:
        raise _unexpected(system, fields, rest[0], root)
    settings = resolution.resolve(values, root=root)
    software.check_trackers(settings)
    sweeps.check_once(settings, values)
    origin = settings.settings.get("init_from")
    if origin and not (pathlib.Path(origin) / "config.json").is_file() and held(run_folder(settings)) is None:
        raise config.UsageError(f"--init_from={origin} is not the folder of a run: it has no config.json")
    return Command("", config.canonical(values), settings, dry_run)


def run_folder(settings: resolution.Resolved) -> pathlib.Path:
    """Returns the folder of a run: `--out`, or one named after system, environment and seed under `runs`."""
    env = settings["env"].replace(":", "-").replace("/", "-")
    return pathlib.Path(settings["out"] or f"runs/{settings['system']}-{env}-seed{settings['seed']}")


def held(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns the `config.json` of the run that a folder holds, None where nothing was saved or recorded of one.

    Raises:
        config.UsageError: it cannot be read.
    """
    path, records = folder / "config.json", folder / "metrics.jsonl"
    has_begun = any(folder.glob("checkpoints/*")) or (records.is_file() and records.stat().st_size > 0)
    if not path.exists() or not has_begun:
        return None
    try:
        contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not {"family", "settings"} <= contents.keys():
            raise LookupError("not what a run writes")
    except (OSError, ValueError, LookupError, AttributeError) as error:
        raise config.UsageError(f"{path} cannot be read ({error}): give another --out") from None
    return contents


def check_folder(command: Command) -> pathlib.Path:
    """Returns the run folder, which may be missing, unless it holds another run.

    Raises:
        config.UsageError: it holds a run of another configuration.
    """
    assert command.settings is not None
    folder = run_folder(command.settings)
    changes = _changes(command, folder).identity
    if changes:
        raise config.UsageError(
            f"--out={folder} holds a run of another configuration ({differences.describe(changes)}); "
            "give its settings to resume it, or another --out"
        )
    return folder


@contextlib.contextmanager
def open_folder(command: Command) -> Iterator[pathlib.Path]:
    """Makes the run folder where it is missing, and checks that this run may write to it.

    A run that is refused within the context leaves no folder that was not there before.

    Raises:
        config.UsageError: the folder cannot be written, holds a run of another configuration, or is in use.
    """
    folder = check_folder(command)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(faults.made(folder))
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            with faults.lock(folder):
                pass
        except faults.LockError as error:
            raise config.UsageError(f"--out={folder} is in use by a running trainer: {error}") from None
        except OSError as error:
            raise config.UsageError(f"--out={folder} cannot be written: {error.strerror or error}") from None
        yield folder


def help_text(
    system: systems.System,
    layout: str,
    fields: dict[str, declarations.Field],
    preset: presets.Preset = presets.NONE,
) -> str:
    """Describes every flag of a system in a layout: default, range and origin, the values of families and preset."""
    usage = CONSOLE if program() == CONSOLE else f"python scripts/{_SCRIPT}"
    lines = [
        f"usage: {usage} --system={system.name} --env=suite:name [--flag=value ...]",
        f"{system.name}: {system.summary} Layouts: {', '.join(system.layouts)}.",
        "Values rise in rank from default or paper over family (of the environment) and preset to flag.",
        *preset.head,
        "The same command on the same folder resumes. --flagfile=FILE reads flags from a file.",
    ]
    for owner, names in itertools.groupby(fields, key=lambda name: name.rpartition(".")[0]):
        lines += ["", f"{owner or 'run'}:"]
        lines += [line for name in names for line in _flag_lines(system, layout, name, fields[name], preset)]
        if owner == "env":
            lines += [f"  --{config.PARAMS}NAME=VALUE", "      Parameter NAME of the environment's own."]
    lines += ["", "other:", *(f"  --{action}\n      {text}" for action, text in _ACTIONS.items())]
    return "\n".join(lines)


def catalogue_text(root: pathlib.Path = config.PACKAGE) -> str:
    """Lists the systems, the environments of each suite, the layouts, and the presets."""
    rows = [f"{row.name}: {row.summary} Layouts: {', '.join(row.layouts)}." for row in systems.SYSTEMS.values()]
    names = [f"{suite}: {', '.join(members) or 'any name'}" for suite, members in config.suites(root).items()]
    layouts = dict.fromkeys(layout for row in systems.SYSTEMS.values() for layout in row.layouts)
    ways = [f"{layout}: {declarations.summary(root / 'parallel' / f'{layout}.py')}" for layout in layouts]
    ways.append(f"{config.AUTO}: The fastest of those above that learn the same, measured when the run begins.")
    ready = [f"{name}: {config.find_preset(name, root).head[0]}" for name in presets.names(root)]
    groups = {"systems": rows, "environments": names, "layouts": ways, "presets": ready}
    return "\n".join(line for title, items in groups.items() for line in (f"{title}:", *map(_wrapped, items)))


def _given(arguments: Sequence[str]) -> list[str]:
    """Returns what may be flag names among the arguments."""
    return [argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-")]


def _names(arguments: Sequence[str], fields: Mapping[str, declarations.Field]) -> dict[str, bool]:
    """Returns every flag name that the arguments may use, and whether it is a switch."""
    params = [name for name in _given(arguments) if name.startswith(config.PARAMS)]
    switches = {name: field.kind == "bool" for name, field in fields.items()}
    return {**switches, **dict.fromkeys([*config.ALIASES, *params], False)}


def _parse_known(arguments: Sequence[str], names: Mapping[str, bool]) -> tuple[dict[str, str], list[str]]:
    """Splits arguments into the flags of these names (name -> text) and the rest.

    Args:
        arguments: of the command line.
        names: flag name -> whether it is a switch, given as --name or --noname.
    """
    values = absl_flags.FlagValues()
    values.set_gnu_getopt(True)
    for name, is_switch in names.items():
        values[name] = absl_flags.Flag(absl_flags.ArgumentParser(), None, name, None, name, boolean=is_switch)
    try:
        rest = values([program(), *arguments], known_only=True)[1:]
    except (absl_flags.Error, ValueError) as error:
        last = arguments[-1].lstrip("-")
        missing = f"--{last}: its value is missing; expected --{last}=VALUE (--help says which are valid)"
        raise config.UsageError(missing if str(error).startswith("Missing value") else str(error)) from None
    return {name: str(values[name].value) for name in names if values[name].present}, rest


def _truth(name: str, text: str) -> bool:
    """Reads a switch that is no setting."""
    try:
        return bool(declarations.parse(declarations.Field(name, "bool", False, ""), text))
    except ValueError as error:
        raise config.UsageError(f"--{name}={text}: {error}") from None


def _with_flag_files(argv: Sequence[str]) -> list[str]:
    """Puts the flags of every --flagfile=FILE in its place."""
    try:
        return absl_flags.FlagValues().read_flags_from_files(list(argv), force_gnu=True)
    except absl_flags.CantOpenFlagFileError as error:
        cause = error.__context__
        assert isinstance(cause, OSError)
        raise config.UsageError(f"--flagfile={cause.filename} cannot be read: {cause.strerror}") from None
    except UnicodeDecodeError:
        given = [argument for argument in argv if argument.lstrip("-").startswith("flagfile")]
        raise config.UsageError(f"{' '.join(given)} cannot be read: it is no text") from None
    except absl_flags.Error as error:
        raise config.UsageError(str(error)) from None


def _unexpected(
    system: systems.System, fields: Mapping[str, declarations.Field], argument: str, root: pathlib.Path
) -> config.UsageError:
    """Explains an argument that is no flag of the system."""
    if not argument.startswith("-") or not argument.strip("-"):
        return config.UsageError(f"unexpected argument {argument!r}: flags are given as --flag=value")
    name = argument.lstrip("-").partition("=")[0]
    return config.unknown_flag(system, fields, name, root)


def _changes(command: Command, folder: pathlib.Path) -> differences.Difference:
    """Compares a command with the run that a folder holds, in the family of that run's environment."""
    old = held(folder)
    if old is None:
        return differences.Difference((), ())
    assert command.settings is not None
    return resolution.resolve_as_in(old, command.flags, command.settings).difference(old)


def _flag_lines(
    system: systems.System, layout: str, name: str, field: declarations.Field, preset: presets.Preset
) -> list[str]:
    """Describes one flag: its value where no family or flag sets it, then the families' values and the preset's."""
    known = {**system.settings, **system.settings_in(layout, None)}
    paper = known.get(name, systems.Setting(field.default, field.source))
    lines = [
        f"  --{name}={_shown(paper.value)}",
        _wrapped(f"{field.help} ({declarations.valid_values(field)}; {resolution.paper_origin(paper.source)})"),
    ]
    for family, settings in system.families.items():
        own = {**settings, **system.settings_in(layout, family)}.get(name, paper)
        if own != paper:
            lines.append(_wrapped(f"{family}: {_shown(own.value)} ({own.source})"))
    if name in preset.settings:
        own = preset.settings[name]
        lines.append(_wrapped(f"preset {preset.name}: {_shown(own.value)} ({own.source})"))
    return lines


def _shown(value: object) -> str:
    """Writes a value as a flag takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _wrapped(text: str) -> str:
    """Wraps text to indented lines of 110 characters."""
    return textwrap.fill(
        text, 110, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False
    )
