"""Judges mutants by the short tests: `make mutants [COUNT=300] [JOBS=2]`.

A mutant is a small wrong change (`make.py`). Those of `aimed.py` are judged, and of all mutants of the rooms in `ROOMS`
the first `--count` in an order drawn from `--seed`. A mutant is killed if a short test fails that runs its line. Tests
are chosen by coverage, measured once per state of the package and the tests and kept in `.mutants/`; the quickest run
first, and `-x` ends them.

Each judgement is a line of `judged.csv`, written as it comes, so a run goes on where it was cut off. A line holds while
the code of its function stays as it was; `equivalent.csv` names the survivors that no test can tell apart, and why.
Exit code 1: an aimed mutant survives, or fewer than `WANTED` of the random ones that can be told apart are killed.
"""

import argparse
import concurrent.futures
import csv
import functools
import hashlib
import json
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from mutants import aimed, make

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("agents", "learning", "numeric", "replay")
# Rooms in which mutants are aimed alone.
AIMED_ROOMS = ("export", "networks", "training")
JUDGED = ROOT / "tests/mutants/judged.csv"
EQUIVALENT = ROOT / "tests/mutants/equivalent.csv"
WANTED = 0.95
_KEPT = ROOT / ".mutants"
# Of a test's own time: a mutant may be slower, or hang.
_SLOWER, _START_S, _MIN_S = 4.0, 8.0, 60.0
# Seconds of tests that run first; the others run only for a mutant that these leave alive.
_FIRST_S = 30.0
# Tests of these folders run little of the rooms; to leave them out can only leave a mutant alive.
_FAR = (
    "tests/analysis",
    "tests/commands",
    "tests/envs",
    "tests/runs",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").glob("test_*.py")),
)
# Tests that may fail without a mutant.
_MOST_FAILED = 5


class Key(NamedTuple):
    """Names a mutant: its file in the package, its function, and the change (`make.Mutant.name`)."""

    file: str
    function: str
    change: str


class Judgement(NamedTuple):
    """A line of `judged.csv`: what came of a mutant.

    Attributes:
        file: of the package.
        function: its qualified name.
        change: the mutant's name in it.
        digest: of the function's source.
        verdict: killed, survived, or timeout (which kills too).
        by: the test that failed.
        tests: how many short tests run its line.
    """

    file: str
    function: str
    change: str
    digest: str
    verdict: str
    by: str
    tests: int


class Coverage(NamedTuple):
    """The short tests that run a line, by file and line, and the seconds of each test."""

    tests: Mapping[str, Mapping[int, Sequence[str]]]
    seconds: Mapping[str, float]


class _Patch(NamedTuple):
    """A mutant ready to be judged: its line, and the changed source of its file."""

    key: Key
    line: int
    digest: str
    source: str


def main() -> int:
    """Judges what is not judged yet, and prints the summary; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="random mutants, in the order that the seed draws")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--jobs", type=int, default=2, help="mutants judged at once")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after so many minutes")
    parser.add_argument("--survivors", action="store_true", help="judge again what survived, but for equivalents")
    arguments = parser.parse_args()
    by_hand, at_random = aimed_patches(), random_patches(arguments.count, arguments.seed)
    chosen = [*by_hand, *at_random]
    again = {key for key, one in read_judged().items() if arguments.survivors and one.verdict == "survived"}
    again -= read_equivalent().keys()
    judged = {key: one for key, one in read_judged().items() if key not in again}
    pending = [patch for patch in chosen if not _holds(judged.get(patch.key), patch)]
    print(f"{len(chosen)} mutants, {len(pending)} not judged yet", flush=True)
    if pending:
        coverage = _coverage()
        hours = sum(_expected_s(coverage, patch) for patch in pending) / arguments.jobs / 3600
        print(f"up to {hours:.1f} hours with {arguments.jobs} at once", flush=True)
        _judge_all(pending, coverage, arguments.jobs, time.monotonic() + 60 * arguments.minutes)
    return 0 if summarise("aimed", by_hand) == 1 and summarise("random", at_random) >= WANTED else 1


def random_patches(count: int, seed: int) -> list[_Patch]:
    """Returns the first mutants of the rooms in an order that depends on the seed and their names alone."""
    found: list[tuple[str, Key, make.Mutant, str]] = []
    for room in ROOMS:
        for path in sorted((ROOT / "jaxrl_dist" / room).rglob("*.py")):
            source, file = path.read_text(), str(path.relative_to(ROOT / "jaxrl_dist"))
            for mutant in make.mutants(source):
                key = Key(file, mutant.function, mutant.name)
                rank = hashlib.sha256(f"{seed} {key}".encode()).hexdigest()
                found.append((rank, key, mutant, source))
    found.sort(key=lambda one: one[0])
    return [_Patch(key, mutant.line, mutant.digest, mutant.applied(source)) for _, key, mutant, source in found[:count]]


def aimed_patches() -> list[_Patch]:
    """Returns the mutants of `aimed.py`."""
    patches = []
    for one in aimed.MUTANTS:
        source = (ROOT / "jaxrl_dist" / one.file).read_text()
        assert source.count(one.old) == 1, f"{one.file} has {source.count(one.old)} times {one.old!r}"
        line = source[: source.index(one.old)].count("\n") + 1
        digest = hashlib.sha256(f"{one.old} -> {one.new}".encode()).hexdigest()[:8]
        changed = source.replace(one.old, one.new)
        patches.append(_Patch(Key(one.file, "(aimed)", one.breaks), line, digest, changed))
    return patches


def read_judged() -> dict[Key, Judgement]:
    """Reads the table of judgements."""
    rows = _read_rows(JUDGED)
    found = [Judgement(*row[:-1], int(row[-1])) for row in rows]  # type: ignore[arg-type]
    return {Key(one.file, one.function, one.change): one for one in found}


def read_equivalent() -> dict[Key, str]:
    """Reads the reasons why survivors cannot be told apart."""
    return {Key(file, function, change): reason for file, function, change, reason in _read_rows(EQUIVALENT)}


def summarise(kind: str, patches: Iterable[_Patch]) -> float:
    """Prints what came of mutants; returns the share that is killed of those judged that can be told apart."""
    judged, equivalent = read_judged(), read_equivalent()
    found = [judged[patch.key] for patch in patches if _holds(judged.get(patch.key), patch)]
    survived = [one for one in found if one.verdict == "survived"]
    real = [one for one in survived if Key(one.file, one.function, one.change) not in equivalent]
    for one in real:
        print(f"survived: {one.file} {one.function}: {one.change} ({one.tests} tests run it)")
    alike = len(survived) - len(real)
    apart = len(found) - alike
    killed = apart - len(real)
    share = killed / max(apart, 1)
    print(f"{kind}: {len(found)} judged, {alike} of them equivalent; killed {killed} of {apart}, {100 * share:.1f} %")
    return share


def _holds(judgement: Judgement | None, patch: _Patch) -> bool:
    return judgement is not None and judgement.digest == patch.digest


def _judge_all(pending: Sequence[_Patch], coverage: Coverage, jobs: int, until_s: float) -> None:
    trees: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()
    for job in range(jobs):
        trees.put(_copy(_KEPT / f"tree-{job}"))
    lock, judged, began_s = threading.Lock(), read_judged(), time.monotonic()

    def judge(patch: _Patch) -> None:
        if time.monotonic() > until_s:
            return
        tree = trees.get()
        judgement = _judge(patch, coverage, tree)
        trees.put(tree)
        with lock:
            judged[patch.key] = judgement
            _write_judged(judged.values())
            passed_s = time.monotonic() - began_s
            print(f"{passed_s:6.0f} s  {judgement.verdict:8s} {' | '.join(patch.key)}  {judgement.by}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(judge, pending))


def _judge(patch: _Patch, coverage: Coverage, tree: pathlib.Path) -> Judgement:
    """Runs the tests of a mutant's line in a tree of its own, until one fails."""
    tests = _tests_of(coverage, patch)
    path = tree / "jaxrl_dist" / patch.key.file
    original = path.read_text()
    path.write_text(patch.source)
    try:
        verdict, by = "survived", ""
        for part in _parts(tests, coverage.seconds):
            verdict, by = _run_tests(part, tree, sum(coverage.seconds.get(one, 1.0) for one in part))
            if verdict != "survived":
                break
    finally:
        path.write_text(original)
    return Judgement(*patch.key, patch.digest, verdict, by, len(tests))


def _tests_of(coverage: Coverage, patch: _Patch) -> list[str]:
    """Returns the tests that run a mutant's line, the quickest first."""
    lines = coverage.tests.get(patch.key.file, {})
    # A statement of several lines is told by its first.
    line = max((one for one in lines if one <= patch.line), default=patch.line)
    return sorted(lines.get(line, ()), key=lambda test: coverage.seconds.get(test, 1.0))


def _parts(tests: Sequence[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """Cuts tests into those that run first, and the others."""
    total, first = 0.0, []
    for test in tests:
        total += seconds.get(test, 1.0)
        if first and total > _FIRST_S:
            break
        first.append(test)
    rest = list(tests[len(first) :])
    return [part for part in (first, rest) if part]


def _run_tests(tests: Sequence[str], tree: pathlib.Path, expected_s: float) -> tuple[str, str]:
    listed = tree / ".chosen"
    # Tests of one file stay together: they share what their module prepares.
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    listed.write_text("\n".join(sorted(tests, key=lambda test: files.index(test.split("::")[0]))))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", f"@{listed}"]
    limit_s = _START_S + max(_MIN_S, _SLOWER * expected_s)
    try:
        ended = subprocess.run(
            command, cwd=tree, env=_environment(tree), capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return "timeout", ""
    failed = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if ended.returncode == 0:
        return "survived", ""
    if ended.returncode in (1, 2) and failed:
        return "killed", failed[0]
    if ended.returncode < 0 or ended.returncode > 5:
        return "killed", f"the process ended with {ended.returncode}"
    raise RuntimeError(f"pytest ended with {ended.returncode}:\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")


def _expected_s(coverage: Coverage, patch: _Patch) -> float:
    total = sum(coverage.seconds.get(test, 1.0) for test in _tests_of(coverage, patch))
    return _START_S + min(total, _FIRST_S)


def _coverage() -> Coverage:
    """Returns the coverage of the short tests at this state of the package and the tests; measures it where needed."""
    kept = _KEPT / f"coverage-{_state()}.json"
    if not kept.exists():
        print("measuring which tests run which lines: the short tests once, about half as fast as else", flush=True)
        kept.write_text(json.dumps(_measure(_copy(_KEPT / "tree-coverage"))))
    read = json.loads(kept.read_text())
    tests = {file: {int(line): names for line, names in lines.items()} for file, lines in read["tests"].items()}
    return Coverage(tests, read["seconds"])


def _measure(tree: pathlib.Path) -> dict[str, object]:
    import coverage

    durations = tree / ".durations"
    sources = [f"--cov={tree / 'jaxrl_dist' / room}" for room in (*ROOMS, *AIMED_ROOMS)]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist=worksteal", "-m", "not slow", "--tb=short"]
    command += [f"--ignore={path}" for path in _FAR]
    command += ["-p", "mutants.durations", *sources, "--cov-context=test", "--cov-report="]
    environment = _environment(tree) | {"MUTANTS_DURATIONS": str(durations)}
    ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    # What fails without a mutant says nothing of one; a test that waits may fail once where the machine is busy.
    failed = {line.split()[1] for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))}
    if ended.returncode > 1 or len(failed) > _MOST_FAILED:
        raise SystemExit(f"the short tests fail without a mutant:\n{ended.stdout[-3000:]}")
    for test in sorted(failed):
        print(f"left out, as it fails without a mutant: {test}", flush=True)
    data = coverage.CoverageData(str(tree / ".coverage"))
    data.read()
    seconds = json.loads(durations.read_text())
    found = {
        str(pathlib.Path(file).relative_to(tree / "jaxrl_dist")): {
            line: sorted({test for name in names for test in _ran_by(name, seconds)} - failed)
            for line, names in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    return {"tests": found, "seconds": seconds}


def _ran_by(context: str, tests: Iterable[str]) -> list[str]:
    """Returns the tests that a context of coverage stands for: `test|phase`, or none for what ran on import."""
    test, _, phase = context.rpartition("|")
    if phase != "setup":
        return [test] if test else []
    # What the fixtures of a file prepare is for all of its tests, though it is set up in the first of them.
    file = test.split("::")[0]
    return [one for one in tests if one.split("::")[0] == file]


def _environment(tree: pathlib.Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}


def _copy(tree: pathlib.Path) -> pathlib.Path:
    """Makes a copy of what git knows of this folder."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in _files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    subprocess.run(["git", "init", "--quiet", "."], cwd=tree, check=True)
    return tree


@functools.cache
def _files() -> tuple[str, ...]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return tuple(name for name in listed if name and (ROOT / name).is_file())


def _state() -> str:
    """Returns a digest of the package and the tests, but for the tables of this folder."""
    digest = hashlib.sha256()
    for name in sorted(_files()):
        if name.startswith(("jaxrl_dist/", "tests/")) and not name.endswith(".csv"):
            digest.update(name.encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()[:16]


def _read_rows(path: pathlib.Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def _write_judged(judged: Iterable[Judgement]) -> None:
    new = JUDGED.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Judgement._fields)
        writer.writerows(sorted(judged))
    new.replace(JUDGED)


if __name__ == "__main__":
    sys.exit(main())
