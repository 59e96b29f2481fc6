"""Evaluates a run's policies on new environments, films them if asked, and prints one JSON object."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from jaxrl_dist import commands, errors
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.settings import command_line, resolve, setting
from jaxrl_dist.settings import fields as setting_fields

_NAME = "evaluate"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    run: str = setting("", "Run folder.")
    episodes: int = setting(100, "Whole episodes per seed; 0 only films (--video).", low=0)
    seed: int = setting(0, "Seed of the evaluation.", low=0, high=2_147_483_647)
    checkpoint: str = setting(
        "latest", "Which parameters: the last, or those of the best evaluation.", choices=("latest", "best")
    )
    video: bool = setting(False, "Also film the run's first seed, into videos/ of its folder.")
    video_episodes: int = setting(1, "Episodes that --video films.", low=1)
    video_steps: int = setting(1000, "Steps of each that are filmed, at most.", low=1)
    trust: tuple[str, ...] = commands.trust()


def main(arguments: Sequence[str]) -> int:
    """Evaluates and prints; returns 2, after one line, for a wrong command, 1 where something fails."""
    others = "[--env.params.NAME=VALUE ...] [--agent.evaluation_NAME=VALUE ...] [--flag=value ...]"
    usage = f"{commands.usage(_NAME)} --run=FOLDER {others}"
    options, given = command_line.options(Config, arguments, usage, str(__doc__), _replacing(arguments))
    commands.no_more(given.rest)
    if not options.run:
        raise errors.UsageError("expected --run=FOLDER, the folder of a run (--help lists the flags)")
    run_folder.check_is_run(options.run, errors.given("run", options.run))
    if not options.episodes and not options.video:
        raise errors.UsageError("--episodes=0: without --video, expected at least 1")
    commands.check_together(arguments, options, ("video_episodes", "video_steps"), "video")
    try:
        commands.say(json.dumps(_record(options, given.values)))
    except (errors.CheckpointError, errors.EnvironmentFault, MemoryError, OSError) as error:
        return commands.refuse(_NAME, " ".join(errors.as_typed(error).split()), 1)
    return 0


def _replacing(arguments: Sequence[str]) -> dict[str, setting_fields.Field]:
    """Declares, as text, flags in place of the run's: of the environment's parameters, and of evaluation."""
    names = command_line.names(arguments)
    found = {name: setting_fields.Field(name, "str", "", "") for name in resolve.named_under(resolve.EVALUATION, names)}
    return found | resolve.declared_params(names)


def _record(options: Config, flags: dict[str, str]) -> dict[str, Any]:
    """Films first, so that an environment without pictures is refused before a long evaluation."""
    # Imported only now: a wrong command should fail at once.
    from absl import logging

    from jaxrl_dist.training import policy, video

    logging.set_verbosity(logging.WARNING)
    run, seed, checkpoint, trust = options.run, options.seed, options.checkpoint, commands.trusted(options.trust)
    filmed = {}
    if options.video:
        length = options.video_episodes, options.video_steps
        filmed = {"videos": video.record_video(run, *length, seed, checkpoint, flags, trust)}
    if not options.episodes:
        return {"run": run, **filmed}
    return {**policy.evaluate(run, options.episodes, seed, checkpoint, flags, trust), **filmed}
