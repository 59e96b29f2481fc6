"""Reads the arguments of the small scripts; what is wrong is one line with the nearest flag, as in `train.py`."""

import argparse
import re
from typing import NoReturn

from jaxrl_dist import declarations


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose errors are one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong, and the flag or choice that was probably meant."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        choice = re.search(r"argument (--[\w-]+): invalid choice: '([^']*)'", message)
        hint = declarations.nearest(unknown[1], flags) if unknown else ""
        if choice:
            action = next(one for one in self._actions if choice[1] in one.option_strings)
            hint = declarations.nearest(choice[2], map(str, action.choices or ()))
        self.exit(2, f"{self.prog}: {message}{hint} (--help lists the flags)\n")
