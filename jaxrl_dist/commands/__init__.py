"""The commands: what scripts/, `jaxrl-dist NAME` and `python -m jaxrl_dist NAME` call; each file has `main(arguments)`.

A command prints what it found and returns its exit code. A wrong command line is one line and code 2.
"""

import contextlib
import importlib
import io
import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from jaxrl_dist import errors
from jaxrl_dist.settings import command_line, setting
from jaxrl_dist.training import stop

CONSOLE = "jaxrl-dist"
# Name -> what the command does.
NAMES = {
    "train": "trains a system on an environment",
    "launch": "starts the processes of one training run on this machine",
    "evaluate": "evaluates, and films, the policies of a run",
    "export": "writes the policy of a run as StableHLO or ONNX",
    "share": "writes a run for others, into a folder or onto the Hugging Face Hub",
    "plot": "draws runs into one picture",
    "report": "writes one HTML page about a set of runs",
    "study": "runs seeds × settings into one table and one page",
    "compare": "says whether a run learns like the reference of its system and environment",
    "rollback": "takes an asynchronous run back to a version that its server kept",
    "replay_schedule": "runs an asynchronous run again in the order of its event log",
}


def program(name: str) -> str:
    """Returns how a command was called: as a script, or by the console command."""
    return f"{CONSOLE} {name}" if pathlib.Path(sys.argv[0]).stem == CONSOLE else f"{name}.py"


def usage(name: str) -> str:
    """Returns how a command is called again."""
    return f"{CONSOLE} {name}" if pathlib.Path(sys.argv[0]).stem == CONSOLE else f"python scripts/{name}.py"


def start(name: str) -> int:
    """Runs a command with this process's arguments, as scripts do; returns the exit code."""
    _open_streams()
    if not sys.flags.safe_path:
        # The folder of the script, or with `python -m` the current one: a file there could shadow another module.
        del sys.path[0]
    # Modules of the user lie in the current folder. It comes last, so that no file there shadows another module, and is
    # added only if the command may name a module, so that no file stands for an optional package that is missing.
    if name in ("train", "study", "launch") or {"trust", "flagfile"} & {*command_line.names(sys.argv[1:])}:
        sys.path.append("")
    # Until a run listens to signals itself; before the command is imported, and JAX with it.
    stop.leave_on_signals()

    def warn(message: Warning | str, *place: Any, **more: Any) -> None:
        # Printed as one line, without the place in the source.
        complain(name, f"warning: {message}")

    warnings.showwarning = warn
    return run(importlib.import_module(f"{__name__}.{name}").main, name, sys.argv[1:])


def run(main: Callable[[Sequence[str]], int], name: str, arguments: Sequence[str]) -> int:
    """Runs a command, and reports a user's mistake in one line. Returns the exit code."""
    try:
        return main(command_line.expanded(arguments))
    except command_line.Help as text:
        return say(str(text))
    except errors.UsageError as error:
        return refuse(name, error)
    except OSError as error:
        # Any path that the user gave may be too long, or of somebody else.
        if error.errno is None:
            raise
        if error.filename is None:
            # As where the disk is full.
            return refuse(name, str(error.strerror), 1)
        return refuse(name, f"{os.fsdecode(error.filename)}: {error.strerror}")
    except KeyboardInterrupt:
        return 130


def trust() -> Any:
    """Declares the flag --trust of commands that build a run anew from its folder."""
    return setting(
        (),
        "Modules that the run's config.json may name, beside those of this package and of installed ones that offer "
        "some; and files and programs for its environment. One, or several with commas between.",
        repeats=True,
    )


def trusted(given: Sequence[str]) -> list[str]:
    """Returns the names that --trust gives: each text, which may hold commas itself, and the parts between them."""
    return [name for text in given for name in dict.fromkeys((text, *text.split(",")))]


def check_together(arguments: Sequence[str], options: Any, names: Sequence[str], flag: str) -> None:
    """Checks that flags which mean something only beside another flag are not given without it.

    Args:
        arguments: of the command.
        options: values of its flags.
        names: of the flags.
        flag: name of the other one.

    Raises:
        UsageError: one of them is.
    """
    for name in names:
        if name in command_line.names(arguments) and not getattr(options, flag):
            raise errors.UsageError(f"--{name}={getattr(options, name)}: give --{flag}, too; nothing else reads it")


def command_of(name: str) -> list[str]:
    """Returns program and first arguments of another process that runs a command, with `service.environ()`."""
    # Without the current folder, a file of which could shadow a module.
    return [sys.executable, "-P", "-m", __name__.partition(".")[0], name]


def folders(arguments: Sequence[str], what: str) -> list[pathlib.Path]:
    """Returns the folders that a command line names.

    Raises:
        UsageError: there is none.
    """
    if not arguments:
        raise errors.UsageError(f"expected {what}, the folder of a run (--help lists the flags)")
    return [pathlib.Path(argument) for argument in arguments]


def no_more(arguments: Sequence[str]) -> None:
    """Checks that a command line has no further arguments.

    Raises:
        UsageError: it has one.
    """
    if arguments:
        raise errors.UsageError(f"unexpected argument {arguments[0]!r}: flags are given as --flag=value")


def say(text: str) -> int:
    """Prints to a reader that may have gone, such as `head`, or a terminal that was closed; returns 0."""
    _print(text, sys.stdout)
    return 0


def complain(name: str, text: str) -> None:
    """Prints a command's message to standard error, whose reader may have gone; indents all lines but the first."""
    _print(f"{program(name)}: " + "\n  ".join(map(errors.printable, text.splitlines())), sys.stderr)


def refuse(name: str, error: BaseException | str, code: int = 2) -> int:
    """Prints an error and its notes, a line each, but for the note that JAX adds on its own frames."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("-----")]
    for line in (errors.as_typed(error), *notes):
        complain(name, " ".join(line.split()))
    return code


def _print(text: str, stream: TextIO) -> None:
    try:
        print(text, file=stream, flush=True)
    except OSError:
        # The rest of the stream's buffer would fail once more when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _open_streams() -> None:
    """Opens standard streams that the caller has closed: else the next files that open would get their numbers.

    What a stream's encoding lacks is written as an escape, such as in a terminal that takes ASCII alone.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
