"""Runs seeds × settings into one table and one page, page.html; the same command goes on where it was stopped.

Example: python scripts/study.py --out=runs/studies/memory --num_seeds=10 --setting="lstm: --network.core=lstm"
--setting="feed-forward: --network.core=identity" -- --system=ppo --env=gymnax:MemoryChain-bsuite --steps=500_000
With --search, settings are drawn: python scripts/study.py --out=runs/studies/rates --num_seeds=3 --trials=20
--search="learner.learning_rate=log:1e-5..1e-2" --search="agent.entropy_cost=0..0.05" -- --env=gymnax:CartPole-v1
"""

import pathlib
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxrl_dist import config, faults, parsers, search, study  # noqa: E402


def main(arguments: list[str]) -> int:
    """Runs the study; returns 0 if all is finished, 1 if a run failed, 2 for a wrong command."""
    # Taken apart here: versions of argparse disagree about what follows "--".
    end = arguments.index("--") if "--" in arguments else len(arguments)
    usage = "study.py --out=FOLDER [--setting='LABEL: --flag=value ...' ...] [options] -- [flags of train.py]"
    parser = parsers.Parser(prog="study.py", usage=usage, description=__doc__)
    parser.advice = "--help lists the flags; those of train.py go after --"
    whole, positive = parsers.value("int", low=0), parsers.value("int", low=1)
    sampler = parsers.value("str", choices=search.SAMPLERS)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the study")
    parser.add_argument("--setting", action="append", help="label and flags of one setting; repeat it for more")
    parser.add_argument(
        "--search",
        action="append",
        help="NAME=log:LOW..HIGH, NAME=LOW..HIGH, NAME=A,B,C, of lists NAME=A,B;C; repeat it",
    )
    parser.add_argument("--trials", type=positive, default=20, help="draws of a search (20)")
    parser.add_argument("--sampler", type=sampler, default="random", help="who draws, random or optuna (random)")
    parser.add_argument("--num_seeds", type=positive, default=10, help="seeds per setting (10)")
    parser.add_argument("--seed", type=whole, default=0, help="first seed (0)")
    parser.add_argument("--separate_seeds", action="store_true", help="one process per seed, not one for all")
    parser.add_argument("--means", default="", help="training numbers to average in the table, such as approx_kl")
    options = parser.parse_args(arguments[:end])
    # The training process gets the signal too, and saves before it leaves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.out.exists() and not options.out.is_dir():
            raise config.UsageError(f"--out={options.out} is a file; expected the folder of a study, or a new one")
        if options.search and options.setting:
            raise config.UsageError("--search and --setting: give one of them")
        settings = tuple(study.parse_setting(text) for text in options.setting or ["all:"])
        common = tuple(arguments[end + 1 :])
        means = tuple(name for name in options.means.split(",") if name)
        seeds = (options.num_seeds, options.seed, options.separate_seeds)
        plan = study.Study(options.out, common, settings, *seeds, means)
        train_command = [sys.executable, str(ROOT / "scripts" / "train.py")]
        if options.search:
            ranges = tuple(search.parse_range(text, common) for text in options.search)
            rows = search.run(search.Search(plan, ranges, options.trials, options.sampler), train_command)
        else:
            rows = study.run(plan, train_command)
    except (config.UsageError, faults.LockError, OSError) as error:
        print(f"study.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    unrecorded = study.unrecorded(plan, rows)
    if unrecorded:
        print(f"study.py: warning: {unrecorded}", file=sys.stderr)
    print((options.out / "table.md").read_text(encoding="utf-8"))
    print(options.out / "page.html")
    return 0 if all(row["state"] == "finished" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
