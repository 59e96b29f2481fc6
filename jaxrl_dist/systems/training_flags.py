"""Reads the command line of training, and checks everything that can be checked before an environment is made."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl_dist import envs, errors, processes, systems
from jaxrl_dist.runs import folder, software
from jaxrl_dist.settings import Field, command_line, sweep
from jaxrl_dist.settings.resolve import AUTO, Resolved, declared_params
from jaxrl_dist.systems import catalogue

ACTIONS = {
    "help": "Print the flags of the chosen system, and exit.",
    "list": "Print the systems, the environments, the layouts and the presets, and exit.",
    "dry_run": "Compile everything, train for some seconds, print memory, placement, schedules and speed, and exit.",
    "target": "With --dry_run, a device that is not there: compile for cpu, h100, h200:8, v4, v5e:2x2 or v6e:2x2, and "
    "print what the program would start, hold, exchange and wait for.",
    "processes": "Processes of the run, each of which gets the same command: 1, a number, or auto for what SLURM, Open "
    "MPI, Kubernetes, GKE or a Cloud TPU says. With --dry_run nothing is awaited: how long their exchanges would take.",
    "process_index": "Index of this process, from 0; the cluster says it where it can.",
    "coordinator": "HOST:PORT at which process 0 listens for the others; the cluster says it where it can.",
    "heartbeat_s": "Seconds without a sign of life after which a process counts as dead, and the others end; "
    f"{processes.HEARTBEAT_S:g} without this flag.",
    "version": "Print versions, and exit.",
}
_OF_PROCESSES = ("processes", "process_index", "coordinator", "heartbeat_s")


def action_fields() -> dict[str, Field]:
    """Returns the flags of `train.py` that are no settings, by name."""
    found = {name: Field(name, "bool", False, about) for name, about in ACTIONS.items()}
    found |= {name: Field(name, "str", "", ACTIONS[name]) for name in ("target", *_OF_PROCESSES)}
    found["process_index"] = Field("process_index", "int", -1, ACTIONS["process_index"], low=0)
    beat = Field("heartbeat_s", "float", processes.HEARTBEAT_S, ACTIONS["heartbeat_s"], low=1.0, high=3600.0)
    return found | {"heartbeat_s": beat}


class Command(NamedTuple):
    """The wish of the user: text to print, or flags (name -> value) of a run and their checked settings.

    With `dry_run`, the run is to be described, not trained; with `target` for a device that is not there.
    `in_processes` says with which other processes.
    """

    text: str
    flags: dict[str, Any]
    settings: Resolved | None
    dry_run: bool = False
    target: str = ""
    in_processes: processes.Group = processes.Group()


def parse(argv: Sequence[str], usage: str = "") -> Command:
    """Reads and checks a command line.

    Args:
        argv: arguments without the program's name.
        usage: how the command is called, for `--help`.

    Raises:
        UsageError: a flag, a value or a name is not valid.
    """
    arguments = command_line.expanded(argv)
    actions = action_fields()
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
        return Command(catalogue.help_text(system, layout, usage, preset, actions), {}, None)
    declared = catalogue.declared(system, layout)
    if "undefok" in command_line.names(arguments):
        # Absl would silently drop the flags it names.
        raise catalogue.unknown_flag(system, declared, "undefok")
    of_command = {name: actions[name] for name in ("dry_run", "target", *_OF_PROCESSES)}
    values, rest = command_line.read(arguments, {**_flags(arguments, declared), **of_command})
    dry_run, target = values.pop("dry_run", False), values.pop("target", "")
    in_processes = _processes({name: values.pop(name) for name in _OF_PROCESSES if name in values}, dry_run)
    if target and not dry_run:
        raise errors.UsageError(
            errors.given("target", target), " needs ", errors.given("dry_run"), ", and trains nothing"
        )
    if target and not in_processes.is_one:
        raise errors.UsageError(
            errors.given("processes", in_processes.processes),
            ": a dry run counts exchanges on the devices that are there; leave out ",
            errors.given("target", target),
        )
    if rest:
        raise _unexpected(system, declared, rest[0])
    settings = catalogue.resolved(values)
    software.check_trackers(settings)
    sweep.check_once(settings, values)
    origin = settings["init_from"]
    if origin and folder.held(folder.of(settings)) is None:
        folder.check_is_run(origin, errors.given("init_from", origin))
    return Command("", catalogue.canonical(values), settings, dry_run, target, in_processes)


def _processes(given: Mapping[str, Any], dry_run: bool) -> processes.Group:
    """Returns the processes that a command line names.

    Raises:
        UsageError: they are not valid, or one process has others to meet.
    """
    group = processes.Group(**given)
    if dry_run and group.processes == processes.AUTO:
        raise errors.UsageError(
            errors.given("processes", processes.AUTO), ": a dry run asks no cluster; give their number"
        )
    more = [name for name in given if name != "processes"]
    if more and (group.is_one or dry_run):
        needed = ": a dry run starts no process" if dry_run else " needs "
        said = () if dry_run else (errors.given("processes"), ", auto or more than 1")
        raise errors.UsageError(errors.given(more[0], given[more[0]]), needed, *said)
    return group


def check_processes(flags: Mapping[str, Any], settings: Resolved, num_processes: int | str) -> None:
    """Refuses what runs in one process only.

    Args:
        flags: settings by flag name, as the user gave them.
        settings: what they give.
        num_processes: number of processes, or `auto`.

    Raises:
        UsageError: the run cannot have so many.
    """
    if num_processes != 1 and (flags.get("layout") == AUTO or settings["layout"] == "async_gradient"):
        valid = [name for name in settings.row.layout_names if name != "async_gradient"]
        raise errors.UsageError(
            errors.given("layout", flags.get("layout") or settings["layout"]),
            ": for runs of one process, here with ",
            errors.given("processes", num_processes),
            f"; valid: {', '.join(valid) or 'one process'}",
        )


def _flags(arguments: Sequence[str], declared: Mapping[str, Field]) -> dict[str, Field]:
    """Returns every flag that the arguments may use."""
    short = {name: declared[full]._replace(name=name) for name, full in catalogue.ALIASES.items()}
    return {**declared, **short, **declared_params(command_line.names(arguments))}


def _unexpected(system: systems.System, declared: Mapping[str, Field], argument: str) -> errors.UsageError:
    """Returns an error for an argument that is no flag of the system."""
    name, is_given, _ = argument.lstrip("-").partition("=")
    # Hydra's overrides have no dashes.
    if not name or not (argument.startswith("-") or is_given) or name in declared:
        return errors.UsageError(f"unexpected argument {argument!r}: flags are given as --flag=value")
    return catalogue.unknown_flag(system, declared, name)
