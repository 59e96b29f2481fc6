"""Evaluates a run's policies on new environments, films them if asked, and prints one JSON object."""

import argparse
import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from absl import logging  # noqa: E402

from jaxrl_dist import command, config, parsers  # noqa: E402


def main(arguments: list[str]) -> int:
    """Evaluates and prints; one line and exit code 2 where that cannot be, 1 where something fails."""
    options = _parser().parse_args(arguments)
    try:
        if not (pathlib.Path(options.run) / "config.json").is_file():
            raise config.UsageError(f"--run={options.run} is no run folder: it has no config.json")
        params = dict(_split(text) for text in options.env_param)
        if not options.episodes and not options.video:
            raise config.UsageError("--episodes=0: without --video, expected at least 1")
    except config.UsageError as error:
        return _refuse(error, 2)
    # Imported only now: JAX takes seconds, and a wrong command should fail at once.
    from jaxrl_dist import checkpoint
    from jaxrl_dist.envs import base

    logging.set_verbosity(logging.WARNING)
    try:
        print(json.dumps(_record(options, params)))
    except config.UsageError as error:
        return _refuse(error, 2)
    except (checkpoint.CheckpointError, base.EnvironmentFault, OSError) as error:
        return _refuse(error, 1)
    return 0


def _parser() -> parsers.Parser:
    """Declares this script's flags."""
    parser = parsers.Parser(prog="evaluate.py", description=__doc__)
    whole, positive = parsers.value("int", low=0), parsers.value("int", low=1)
    slot, switch = parsers.value("str", choices=("latest", "best")), parsers.value("bool")
    parser.add_argument("--run", required=True, metavar="FOLDER", help="run folder")
    about = "whole episodes per seed; 0 only films (--video); %(default)s by default"
    parser.add_argument("--episodes", type=whole, default=100, metavar="N", help=about)
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="seed of the evaluation; %(default)s by default"
    )
    about = "which parameters, latest or best; %(default)s by default"
    parser.add_argument("--checkpoint", type=slot, default="latest", metavar="SLOT", help=about)
    about = "another value for a parameter of the environment; repeat it for more"
    parser.add_argument("--env_param", action="append", default=[], metavar="NAME=VALUE", help=about)
    about = "also film the run's first seed, into videos/ of its folder; false by default"
    parser.add_argument("--video", type=switch, nargs="?", const=True, default=False, metavar="true", help=about)
    about = "episodes that --video films; %(default)s by default"
    parser.add_argument("--video_episodes", type=positive, default=1, metavar="N", help=about)
    about = "steps of each that are filmed, at most; %(default)s by default"
    parser.add_argument("--video_steps", type=positive, default=1000, metavar="N", help=about)
    return parser


def _record(options: argparse.Namespace, params: dict[str, str]) -> dict[str, Any]:
    """Films first, as what cannot be drawn should be refused before a long evaluation."""
    from jaxrl_dist import policy, video

    run, seed, slot = options.run, options.seed, options.checkpoint
    filmed = {}
    if options.video:
        filmed = {"videos": video.record(run, options.video_episodes, options.video_steps, seed, slot, params)}
    evaluated = policy.evaluate(run, options.episodes, seed, slot, params) if options.episodes else {"run": run}
    return {**evaluated, **filmed}


def _split(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise config.UsageError(f"--env_param={text}: expected NAME=VALUE")
    return name, value


def _refuse(error: Exception, code: int) -> int:
    print(f"evaluate.py: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    command.prepare()
    sys.exit(main(sys.argv[1:]))
