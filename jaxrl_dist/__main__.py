"""Runs a command by its name: `jaxrl-dist train ...`, `python -m jaxrl_dist evaluate ...`."""

import sys

from jaxrl_dist import commands, errors


def main() -> int:
    """Runs the command that the first argument names; returns the exit code."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("--help", "-h"):
        listed = "\n".join(f"  {command:16}{summary}" for command, summary in commands.NAMES.items())
        return commands.say(
            f"usage: {commands.CONSOLE} COMMAND [--flag=value ...]\n\n{listed}\n\nCOMMAND --help says more."
        )
    if name not in commands.NAMES:
        wanted = f"expected a command, one of {', '.join(commands.NAMES)}{errors.nearest(name, commands.NAMES)}"
        print(f"{commands.CONSOLE}: {wanted}; {commands.CONSOLE} COMMAND --help says more", file=sys.stderr)
        return 2
    del sys.argv[1]
    return commands.start(name)


if __name__ == "__main__":
    sys.exit(main())
