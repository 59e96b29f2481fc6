"""Reads the arguments of the small scripts; what is wrong is one line with the nearest flag, as in `train.py`."""

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from jaxrl_dist import declarations


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose errors are one line, with exit code 2.

    Attributes:
        advice: ends each of these lines.
    """

    advice = "--help lists the flags"

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong, and the flag that was probably meant."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = re.search(r"unrecognized arguments: (-[\w-]+)", message)
        hint = declarations.nearest_flag(unknown[1], flags) if unknown else ""
        named = re.fullmatch(r"argument (-[\w-]+|[A-Z]+): (.*)", message, re.DOTALL)
        if named:
            # What `value` says goes on with what was given.
            message = named[1] + (named[2] if named[2].startswith("=") else f": {named[2]}")
        self.exit(2, f"{self.prog}: {message}{hint} ({self.advice})\n")


def value(kind: str, **limits: Any) -> Callable[[str], Any]:
    """Returns what reads the text of an argument; one that is not valid is refused with what is expected.

    Args:
        kind: as annotated, such as "int".
        **limits: `low`, `choices` and so on, of `declarations.Field`.
    """
    field = declarations.Field("", kind, None, "", **limits)

    def read(text: str) -> Any:
        try:
            return declarations.parse(field, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"={text}: {error}") from None

    return read
