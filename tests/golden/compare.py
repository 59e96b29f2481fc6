"""Trains the runs of `runs.py` at two commits and compares, bit for bit, what they computed and recorded.

`make golden BASE=COMMIT [HEAD=COMMIT|.] [RUNS=NAME,NAME|quick]`. Exit code 0: all runs agree.
"""

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import recorded
import runs
import training

# Names, in the newer words, of what follows the clock, and why it is no part of what a run computes.
_TIME = "a time, or a number per second"
_SHARE = "a share of the time"
_COUNTED = "counted when it crosses, however far ahead the actors are when the run ends"
CLOCK: Mapping[str, str] = {
    "wall_s": _TIME,
    "running_s": _TIME,
    "train_s": _TIME,
    "compile_s": _TIME,
    "seconds": _TIME,
    "seconds_to_best": _TIME,
    "steps_per_second": _TIME,
    "bytes_per_second_to_learner": _TIME,
    "bytes_per_second_to_actors": _TIME,
    "bytes_per_second_from_players": _TIME,
    "bytes_to_learner": _COUNTED,
    "bytes_to_actors": _COUNTED,
    "bytes_from_players": _COUNTED,
    "environment_s": _TIME,
    "inference_s": _TIME,
    "transfer_s": _TIME,
    "learner_wait_s": _TIME,
    "learning_s": _TIME,
    "share_environment": _SHARE,
    "share_inference": _SHARE,
    "share_transfer": _SHARE,
    "share_learning": _SHARE,
    "bottleneck": "the largest share of the time",
    "queue_depth": "how many unrolls wait at the moment when the learner takes one",
}
_SHOWN, _WIDTH = 6, 100

Differs = Callable[[Any, Any], tuple[str, str] | None]


class Difference(NamedTuple):
    """A place in which two runs differ, and what each has there."""

    where: str
    base: str
    head: str


def main() -> int:
    """Compares what the command line names; returns the exit code."""
    arguments = _parse()
    base, head = (training.check_out(name, arguments.folder.resolve()) for name in (arguments.base, arguments.head))
    print(f"base {base.commit}, head {head.commit}")
    if head.commit != training.WORKING_TREE and training.is_changed():
        print("what is not committed is left out; HEAD=. takes the working tree as it is")
    try:
        found = {run.name: _compare_at(base, head, run) for run in arguments.runs}
    finally:
        if head.commit != base.commit:
            training.discard(head)
    return _report(found)


def commands(run: runs.Run) -> list[list[str]]:
    """Returns the flags of a run's commands, without the folder."""
    first = run.flags.split()
    return [first, [*first, *run.then.split()]] if run.then else [first]


def compare(
    base: recorded.Recorded, head: recorded.Recorded, words: runs.Words, ignored: Iterable[str]
) -> list[Difference]:
    """Compares what two runs left.

    Args:
        base: of the older commit.
        head: of the newer one.
        words: that changed in between.
        ignored: names of metrics, in the newer words, that follow the clock.
    """
    old = {_split(path): array for path, array in base.arrays.items()}
    arrays = _rename({place: array for place, array in old.items() if place[1] not in words.gone}, words.leaves)
    differences = list(_differences("array", arrays, head.arrays, _array_difference))
    ignored = frozenset(ignored)
    differences += _number_differences("", base.numbers, head.numbers, words, ignored)
    for line, (old, new) in enumerate(zip(base.records, head.records, strict=False), start=1):
        differences += _number_differences(f"metrics.jsonl:{line}", old, new, words, ignored)
    if len(base.records) != len(head.records):
        differences.append(Difference("metrics.jsonl", f"{len(base.records)} lines", f"{len(head.records)} lines"))
    return differences


def renamed_path(path: str, renamed: Mapping[str, str]) -> str:
    """Returns a path with the parts that were renamed, old -> new; see `runs.Words.leaves`."""
    whole = f"/{path}/"
    for old, new in renamed.items():
        replacement = f"/{new}/" if new else "/"
        if old.startswith("^"):
            front = f"/{old[1:]}/"
            whole = replacement + whole.removeprefix(front) if whole.startswith(front) else whole
        else:
            whole = whole.replace(f"/{old}/", replacement)
    return whole.strip("/")


def _parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", required=True, help="older commit")
    parser.add_argument("--head", default="HEAD", help="newer commit, or . for the working tree as it is")
    parser.add_argument("--runs", default="all", type=_choose, help="names with commas; or quick; or all")
    folder = training.ROOT / ".golden"
    parser.add_argument("--folder", default=folder, type=pathlib.Path, help="where checkouts and runs are kept")
    return parser.parse_args()


def _choose(names: str) -> list[runs.Run]:
    """Returns the runs that are named."""
    by_name = {run.name: run for run in runs.RUNS}
    asked = {"all": list(by_name), "quick": list(runs.QUICK)}.get(names, names.split(","))
    unknown = [name for name in asked if name not in by_name]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]}; valid: all, quick, {', '.join(by_name)}")
    return [by_name[name] for name in asked]


def _compare_at(base: training.Checkout, head: training.Checkout, run: runs.Run) -> list[Difference]:
    """Trains a run at two commits, says how that ended, and returns where they differ."""
    words = run.words.over(runs.CHANGED)
    old, old_s = training.train(base, run.name, [training.translate(one, words) for one in commands(run)])
    new, new_s = training.train(head, run.name, commands(run))
    differences = _compare_folders(old, new, words, run.follows_the_clock)
    verdict = f"{len(differences)} differences" if differences else "agrees"
    times = ", ".join(f"{seconds:.1f} s" if seconds else "kept" for seconds in (old_s, new_s))
    print(f"{run.name:<18}{verdict:<18}{times}", flush=True)
    return differences


def _compare_folders(
    base: pathlib.Path, head: pathlib.Path, words: runs.Words, follows_the_clock: Iterable[str]
) -> list[Difference]:
    """Compares the folders of two runs, which may have failed."""
    ends = ["finished" if training.is_finished(run) else "failed" for run in (base, head)]
    if "failed" in ends:
        return [Difference("the run itself", *ends)]
    return compare(recorded.read(base), recorded.read(head), words, {*CLOCK, *follows_the_clock})


def _split(path: str) -> tuple[str, str]:
    """Cuts the name of the checkpoint, with its slash, off the path of a leaf."""
    slot, slash, leaf = path.partition("/")
    return slot + slash, leaf


def _rename(values: Mapping[tuple[str, str], Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Returns values by their new names; of a name (owner, rest) the owner stays."""
    named = {owner + renamed_path(rest, renamed): value for (owner, rest), value in values.items()}
    if len(named) != len(values):
        raise ValueError("two old names have one new name: correct the words of runs.py")
    return named


def _without(values: Mapping[str, Any], ignored: frozenset[str]) -> dict[str, Any]:
    """Leaves out what follows the clock, by the last part of its name."""
    return {name: value for name, value in values.items() if name.rpartition("/")[2] not in ignored}


def _number_differences(
    owner: str, base: Mapping[str, Any], head: Mapping[str, Any], words: runs.Words, ignored: frozenset[str]
) -> Iterator[Difference]:
    """Yields the differences of what is recorded by name."""
    base = _rename({("", name): value for name, value in base.items()}, words.metrics)
    return _differences(owner, _without(base, ignored), _without(head, ignored), _value_difference)


def _differences(
    owner: str, base: Mapping[str, Any], head: Mapping[str, Any], differs: Differs
) -> Iterator[Difference]:
    """Yields the differences of two mappings, what only one of them has too."""
    for name in {**base, **head}:
        where = f"{owner} {name}".strip()
        if name not in base or name not in head:
            yield Difference(where, *("there" if name in side else "missing" for side in (base, head)))
        elif found := differs(base[name], head[name]):
            yield Difference(where, *found)


def _value_difference(base: Any, head: Any) -> tuple[str, str] | None:
    """Returns two values of JSON as text where they are not the same to the last bit."""
    texts = json.dumps(base, sort_keys=True), json.dumps(head, sort_keys=True)
    return None if texts[0] == texts[1] else texts


def _array_difference(base: np.ndarray, head: np.ndarray) -> tuple[str, str] | None:
    """Returns the first elements of two arrays that are not equal bit for bit, or their kinds where these differ."""
    kinds = [f"{array.dtype}{list(array.shape)}" for array in (base, head)]
    if kinds[0] != kinds[1]:
        return kinds[0], kinds[1]
    flat = [np.ascontiguousarray(array).reshape(-1) for array in (base, head)]
    bits = [side.view(np.uint8).reshape(side.size, side.itemsize) for side in flat]
    unequal = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
    if not unequal.size:
        return None
    place = [int(i) for i in np.unravel_index(unequal[0], base.shape)]
    texts = [str(side[unequal[0]]) for side in flat]
    return f"{place} {texts[0]}", f"{place} {texts[1]}; {unequal.size} of {base.size} differ"


def _report(found: Mapping[str, list[Difference]]) -> int:
    """Prints where runs differ; returns the exit code."""
    differing = {name: differences for name, differences in found.items() if differences}
    for name, differences in differing.items():
        print(f"\n{name}")
        print("\n".join(describe(differences)))
    print(f"\n{len(found) - len(differing)} of {len(found)} runs agree")
    return 1 if differing else 0


def describe(differences: Sequence[Difference]) -> Iterator[str]:
    """Yields a line for each of the first differences of a kind, metrics before arrays; of a metric its first line."""
    kinds: dict[str, dict[str, Difference]] = {"metrics.jsonl": {}, "array": {}, "": {}}
    for one in differences:
        kind = next(kind for kind in kinds if one.where.startswith(kind))
        kinds[kind].setdefault(re.sub(r"^metrics\.jsonl:\d+", "", one.where), one)
    for kind, first in kinds.items():
        for where, base, head in list(first.values())[:_SHOWN]:
            yield f"  {where}: base {base[:_WIDTH]} | head {head[:_WIDTH]}"
        if len(first) > _SHOWN:
            yield f"  and {len(first) - _SHOWN} more of {kind or 'other numbers'}"


if __name__ == "__main__":
    sys.exit(main())
