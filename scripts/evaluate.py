"""Evaluates a run's policies on new environments, films them if asked, and prints one JSON object."""

import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from absl import flags, logging  # noqa: E402

from jaxrl_dist import config, faults  # noqa: E402

_RUN = flags.DEFINE_string("run", "", "Run folder.")
_EPISODES = flags.DEFINE_integer("episodes", 100, "Whole episodes per seed; 0 only films (--video).", lower_bound=0)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the evaluation.", lower_bound=0)
_CHECKPOINT = flags.DEFINE_enum("checkpoint", "latest", ["latest", "best"], "Which parameters.")
_PARAMS = flags.DEFINE_multi_string("env_param", [], "NAME=VALUE, another parameter of the environment; repeatable.")
_VIDEO = flags.DEFINE_bool("video", False, "Also films the run's first seed, into videos/ of its folder.")
_VIDEO_EPISODES = flags.DEFINE_integer("video_episodes", 1, "Episodes that --video films.", lower_bound=1)
_VIDEO_STEPS = flags.DEFINE_integer("video_steps", 1000, "Steps of each that are filmed, at most.", lower_bound=1)


def main(arguments: list[str]) -> int:
    """Evaluates and prints; one line and exit code 2 where that cannot be, 1 where checkpoint or environment fails."""
    try:
        if {"--help", "-h"} & set(arguments):
            print(f"usage: python scripts/evaluate.py --run=FOLDER [--flag=value ...]\n{_help()}")
            return 0
        remaining = flags.FLAGS(arguments)[1:]
        if remaining:
            raise config.UsageError(f"unexpected argument {remaining[0]!r}: flags are given as --flag=value")
        if not _RUN.value:
            raise config.UsageError("--run is missing: it names the run folder")
        if not (pathlib.Path(_RUN.value) / "config.json").is_file():
            raise config.UsageError(f"--run={_RUN.value} is no run folder: it has no config.json")
        params = dict(_split(text) for text in _PARAMS.value)
        if not _EPISODES.value and not _VIDEO.value:
            raise config.UsageError("--episodes=0: without --video, expected at least 1")
    except (flags.Error, config.UsageError) as error:
        return _refuse(error, 2)
    # Imported only now: JAX takes seconds, and a wrong command should fail at once.
    from jaxrl_dist import checkpoint
    from jaxrl_dist.envs import base

    logging.set_verbosity(logging.WARNING)
    try:
        print(json.dumps(_record(params)))
    except config.UsageError as error:
        return _refuse(error, 2)
    except (checkpoint.CheckpointError, base.EnvironmentFault) as error:
        return _refuse(error, 1)
    return 0


def _record(params: dict[str, str]) -> dict[str, Any]:
    """Films first, as what cannot be drawn should be refused before a long evaluation."""
    from jaxrl_dist import policy, video

    run, seed, slot = _RUN.value, _SEED.value, _CHECKPOINT.value
    filmed = {}
    if _VIDEO.value:
        filmed = {"videos": video.record(run, _VIDEO_EPISODES.value, _VIDEO_STEPS.value, seed, slot, params)}
    evaluated = policy.evaluate(run, _EPISODES.value, seed, slot, params) if _EPISODES.value else {"run": run}
    return {**evaluated, **filmed}


def _help() -> str:
    """Describes this script's flags."""
    holders = (_RUN, _EPISODES, _SEED, _CHECKPOINT, _PARAMS, _VIDEO, _VIDEO_EPISODES, _VIDEO_STEPS)
    return "\n".join(f"  --{holder.name}\n      {flags.FLAGS[holder.name].help}" for holder in holders)


def _split(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise config.UsageError(f"--env_param={text}: expected NAME=VALUE")
    return name, value


def _refuse(error: Exception, code: int) -> int:
    print(f"evaluate.py: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    faults.leave_on_signals()
    sys.exit(main(sys.argv))
