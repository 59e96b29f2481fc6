"""Reads command lines in one grammar: absl's flags, made from the fields of dataclasses, and other arguments."""

import itertools
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from absl import flags as absl_flags

from jaxrl_dist import errors
from jaxrl_dist.settings import fields

ConfigT = TypeVar("ConfigT")
_HELP = fields.Field("help", "bool", False, "Print this, and exit.")


class Given(NamedTuple):
    """The contents of a command line: flag name -> value of the flags that it names, and the other arguments."""

    values: dict[str, Any]
    rest: list[str]


class Help(Exception):  # noqa: N818
    """The user asked for the flags of a command; the message is the text to print."""


class _Parser(absl_flags.ArgumentParser):
    """Passes text to the parser of a field; absl puts its error message behind the flag's name."""

    def __init__(self, field: fields.Field) -> None:
        super().__init__()
        self.field = field

    def parse(self, argument: Any) -> Any:
        """Returns the value of a flag's text; absl itself collects the texts of a flag that may repeat.

        Shells leave the ~ of --out=~/runs as it is.
        """
        if self.field.kind == "str" and isinstance(argument, str) and argument.startswith("~/"):
            argument = os.path.expanduser(argument)
        return argument if self.field.repeats else fields.parse(self.field, argument)


def expanded(arguments: Sequence[str]) -> list[str]:
    """Replaces every --flagfile=FILE by the flags in the file, and -h by --help; likewise behind each "--".

    Raises:
        UsageError: a file cannot be read.
    """
    if "--" in arguments:
        end = list(arguments).index("--")
        return [*expanded(arguments[:end]), "--", *expanded(arguments[end + 1 :])]
    try:
        named = ["--help" if argument == "-h" else argument for argument in arguments]
        return absl_flags.FlagValues().read_flags_from_files(named, force_gnu=True)
    except absl_flags.CantOpenFlagFileError as error:
        cause = error.__context__
        assert isinstance(cause, OSError)
        raise errors.UsageError(f"--flagfile={cause.filename} cannot be read: {cause.strerror}") from None
    except UnicodeDecodeError:
        given = [argument for argument in arguments if argument.lstrip("-").startswith("flagfile")]
        raise errors.UsageError(f"{' '.join(given)} cannot be read: it is no text") from None
    except absl_flags.Error as error:
        raise errors.UsageError(str(error)) from None


def names(arguments: Sequence[str]) -> list[str]:
    """Returns the names of the arguments that look like flags."""
    return [argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-")]


def read(arguments: Sequence[str], declared: Mapping[str, fields.Field]) -> Given:
    """Splits arguments into flags that are declared and the rest.

    Args:
        arguments: without the program's name.
        declared: flag name -> declaration; a bool is given as --name, --noname or --name=true.

    Raises:
        UsageError: a value is missing or not valid.
    """
    for argument, following in itertools.pairwise([*arguments, "--"]):
        name = argument.lstrip("-")
        if argument == "--":
            break
        # Absl would take the next flag for the value.
        if (
            argument.startswith("-")
            and following.startswith("--")
            and name in declared
            and not _is_switch(declared[name])
        ):
            told = f": its value is missing; expected --{name}=VALUE (--help says which are valid)"
            raise errors.UsageError(errors.given(name), told)
    values = absl_flags.FlagValues()
    values.set_gnu_getopt(True)
    for name, field in declared.items():
        make = absl_flags.MultiFlag if field.repeats else absl_flags.Flag
        # Absl's list of several texts has no form with "no".
        more = {} if field.repeats else {"boolean": _is_switch(field)}
        values[name] = make(_Parser(field), None, name, None, field.help, **more)  # type: ignore[arg-type]
    try:
        rest = values(["", *arguments], known_only=True)[1:]
    except (absl_flags.Error, ValueError) as error:
        raise errors.UsageError(str(error).removeprefix("flag ")) from None
    given = {name: values[name].value for name in declared if values[name].present}
    return Given({name: tuple(x or ()) if declared[name].repeats else x for name, x in given.items()}, rest)


def _is_switch(field: fields.Field) -> bool:
    """Says whether a flag may stand without a value."""
    return field.kind == "bool" and not field.repeats


def options(
    config: type[ConfigT],
    arguments: Sequence[str],
    usage: str,
    about: str,
    others: Mapping[str, fields.Field] | None = None,
    advice: str = "(--help lists them)",
) -> tuple[ConfigT, Given]:
    """Reads the command line of a command whose flags are the fields of one dataclass.

    Args:
        config: the dataclass, in which every field has a default.
        arguments: without the program's name, and `expanded`.
        usage: how the command is called.
        about: sentences for `--help`.
        others: declarations, by name, of flags that are not fields.
        advice: end of the message for an unknown flag.

    Returns:
        The config, and the other arguments.

    Raises:
        UsageError: a flag is unknown, or a value is not valid.
        Help: --help is among the arguments.
    """
    declared = {field.name: field for field in fields.of(config)}  # type: ignore[arg-type]
    if "help" in names(arguments):
        raise Help(help_text(usage, about, declared))
    values, rest = read(arguments, {**declared, **(others or {})})
    # Arguments behind "--" belong to another command.
    own = rest[: rest.index("--")] if "--" in rest else rest
    for argument in own:
        if argument.startswith("-") and argument.strip("-"):
            name = argument.lstrip("-").partition("=")[0]
            raise errors.UsageError(f"--{name}: no such flag", *errors.nearest_flag(name, declared), f" {advice}")
    mine = {name: value for name, value in values.items() if name in declared}
    return config(**mine), Given({name: x for name, x in values.items() if name not in declared}, rest)


def help_text(usage: str, about: str, declared: Mapping[str, fields.Field]) -> str:
    """Describes the flags of a command: default, meaning and valid values."""
    lines = [f"usage: {usage}", about, "", "flags:"]
    for name, field in {**declared, "help": _HELP}.items():
        shown = "..." if field.repeats else fields.shown(field.default)
        what = "several are taken" if field.repeats else fields.valid_values(field)
        lines += [f"  --{name}={shown}", textwrap.indent(textwrap.fill(f"{field.help} ({what})", 104), " " * 6)]
    return "\n".join(lines)
