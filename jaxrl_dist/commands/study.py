"""Runs seeds × settings into one table and one page, page.html; the same command goes on where it was stopped.

Example: study.py --out=runs/studies/memory --num_seeds=10 --setting="lstm: --network.core=lstm"
--setting="feed-forward: --network.core=identity" -- --system=ppo --env=gymnax:MemoryChain-bsuite --steps=500_000
With --search, settings are drawn: study.py --out=runs/studies/rates --num_seeds=3 --trials=20
--search="learner.learning_rate=log:1e-5..1e-2" --search="agent.entropy_cost=0..0.05" -- --env=gymnax:CartPole-v1
"""

import dataclasses
import pathlib
import signal
import sys
from collections.abc import Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.settings import command_line
from jaxrl_dist.settings.fields import setting as flag
from jaxrl_dist.training import search as searches
from jaxrl_dist.training import study

_NAME = "study"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    out: str = flag("", "Folder of the study.")
    setting: tuple[str, ...] = flag((), "Label and flags of one setting, LABEL: --flag=value ...", repeats=True)
    search: tuple[str, ...] = flag(
        (),
        "A setting to search, and its values: NAME=log:LOW..HIGH, NAME=LOW..HIGH, NAME=A,B,C, or of lists NAME=A,B;C.",
        repeats=True,
    )
    trials: int = flag(20, "Draws of a search.", low=1)
    sampler: str = flag(
        "random",
        "How a search draws its settings: at random, or by Optuna (the extra optuna).",
        choices=searches.SAMPLERS,
    )
    num_seeds: int = flag(10, "Seeds per setting.", low=1)
    seed: int = flag(0, "First seed.", low=0)
    separate_seeds: bool = flag(False, "One process per seed, not one for all.")
    means: str = flag("", "Training numbers to average in the table, such as approx_kl.")


def main(arguments: Sequence[str]) -> int:
    """Runs the study; returns 0 if all is finished, 1 if a run failed, 2 for a wrong command."""
    usage = f"{commands.usage(_NAME)} --out=FOLDER [--setting='LABEL: --flag=value ...' ...] -- [flags of training]"
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    advice = "(--help lists them; those of training go after --)"
    options, given = command_line.options(Config, arguments[:end], usage, str(__doc__), advice=advice)
    commands.no_more(given.rest)
    out = pathlib.Path(options.out)
    if not options.out:
        raise errors.UsageError("expected --out=FOLDER, the folder of the study (--help lists the flags)")
    if out.exists() and not out.is_dir():
        raise errors.UsageError(f"--out={out} is a file; expected the folder of a study, or a new one")
    commands.check_together(arguments[:end], options, ("trials", "sampler"), "search")
    if not (options.setting or options.search or arguments[end + 1 :]):
        raise errors.UsageError(
            "expected --setting, --search, or flags of training after --, such as -- --system=ppo "
            "--env=gymnax:CartPole-v1"
        )
    if options.means and options.search:
        raise errors.UsageError(f"--means={options.means}: a search has no such column; leave it out")
    if options.search and options.setting:
        raise errors.UsageError("--search and --setting: give one of them")
    settings = tuple(study.parse_setting(text) for text in options.setting or ["all:"])
    common = tuple(arguments[end + 1 :])
    means = tuple(name for name in options.means.split(",") if name)
    plan = study.Study(out, common, settings, options.num_seeds, options.seed, options.separate_seeds, means)
    # The training process gets the signal too, and saves before it leaves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    train_command = commands.command_of("train")
    try:
        if options.search:
            ranges = tuple(searches.parse_range(text, common) for text in options.search)
            rows = searches.run(searches.Search(plan, ranges, options.trials, options.sampler), train_command)
        else:
            rows = study.run(plan, train_command)
    except (errors.LockError, OSError) as error:
        return commands.refuse(_NAME, error)
    unrecorded = study.unrecorded(plan, rows)
    if unrecorded:
        commands.complain(_NAME, f"warning: {unrecorded}")
    commands.say((out / "table.md").read_text(encoding="utf-8"))
    commands.say(str(out / "page.html"))
    return 0 if all(row["state"] == "finished" for row in rows) else 1
