"""Runs seeds × settings as training processes, resumably, into one table and one plot with intervals.

A study is a folder: one run folder per cell (a setting with all its seeds in one program, or with one seed each),
`page.html`, `table.md`, `table.json`, `curves.png` and `scores.png`. A finished cell is skipped, an interrupted one
goes on.
"""

import contextlib
import dataclasses
import fcntl
import math
import os
import pathlib
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_dist import errors
from jaxrl_dist.analysis import curves, plots, published, study_table
from jaxrl_dist.analysis.report import studies
from jaxrl_dist.envs.host import lifeline
from jaxrl_dist.processes import service
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.runs import metrics
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.settings import command_line, resolve
from jaxrl_dist.systems import catalogue, training_flags
from jaxrl_dist.training import resume, session

_OWNED = ("out", "seed", "num_seeds")
_LABEL = re.compile(r"\w[\w .+=,-]*")
_LOG_NAME = "train.log"
_LAST_BYTES = 1 << 14


class Setting(NamedTuple):
    """One variant of a study: a label for the table, and the flags of `train.py` that make it."""

    label: str
    flags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Study:
    """Describes a study.

    Attributes:
        out: folder of the study.
        common: flags of `train.py` for every setting; the flags of a setting override them.
        settings: at least one.
        num_seeds: seeds per setting.
        first_seed: seed i of the study is `first_seed` + i.
        separate_seeds: whether every seed is a process of its own; always so for layouts of one seed.
        means: training metrics whose means over the run are columns of the table.
    """

    out: pathlib.Path
    common: tuple[str, ...]
    settings: tuple[Setting, ...]
    num_seeds: int = 10
    first_seed: int = 0
    separate_seeds: bool = False
    means: tuple[str, ...] = ()


class Cell(NamedTuple):
    """One training process: its setting's label, its run folder, its arguments, and the settings that they give."""

    label: str
    folder: pathlib.Path
    arguments: tuple[str, ...]
    command: training_flags.Command


def parse_setting(text: str) -> Setting:
    """Reads a setting such as "lstm: --network.core=lstm".

    Raises:
        errors.UsageError: it has no label, or a quotation mark is not closed.
    """
    label, separator, given = text.partition(":")
    if not separator or not _LABEL.fullmatch(label.strip()):
        raise errors.UsageError(f"--setting={text}: expected LABEL: --flag=value ..., the label of letters and digits")
    try:
        return Setting(label.strip(), tuple(shlex.split(given)))
    except ValueError as error:
        raise errors.UsageError(f"--setting={text}: {error}") from None


def cells(study: Study) -> list[Cell]:
    """Lists the processes of a study, with their flags checked.

    Raises:
        errors.UsageError: a flag is not valid, or two settings share a folder.
    """
    if study.num_seeds < 1:
        raise errors.UsageError(f"--num_seeds={study.num_seeds}: a study needs at least one seed")
    folders = [_folder_name(setting.label) for setting in study.settings]
    if len(set(folders)) < len(folders):
        raise errors.UsageError(f"every setting needs a label of its own, not {', '.join(folders)}")
    return [cell for setting in study.settings for cell in _cells_of(study, setting)]


def check_folders(planned: Sequence[Cell]) -> None:
    """Checks that no cell's folder holds a run of another configuration, such as one of more seeds.

    Raises:
        errors.UsageError: one does.
    """
    for cell in planned:
        assert cell.command.settings is not None
        resume.check_folder(cell.command.flags, cell.command.settings)


def is_finished(cell: Cell) -> bool:
    """Says whether the run folder holds a finished run of exactly these settings."""
    assert cell.command.settings is not None
    try:
        summary, contents = run_view.read_summary(cell.folder), run_folder.config(cell.folder)
        if not summary or not contents:
            return False
        settings = catalogue.resolved_as_in(contents, cell.command.flags, cell.command.settings)
        changed = settings.difference(contents).identity
    except errors.UsageError:
        return False
    # A run that was stopped after its last step has its last evaluation before it.
    if changed or summary.get("reason") == session.STOPPED:
        return False
    reached = summary.get("eval_return_mean", -math.inf) >= settings["stop_at_return"]
    return bool(reached or summary.get("env_steps", 0) >= settings["steps"])


def run(study: Study, train_command: Sequence[str], say: Callable[[str], None] = print) -> list[study_table.Row]:
    """Runs every cell that is not finished, one after the other, and writes table and plot.

    A cell that fails is named in the table, and the others run. Table and plot are also written when the study is
    stopped.

    Args:
        study: the study.
        train_command: program and first arguments of a training process.
        say: prints a line.

    Returns:
        The rows of the table; the state of a row is "finished" if all its cells are.

    Raises:
        errors.UsageError: a flag is not valid, or a folder holds another run; nothing was started.
        errors.LockError: the study is running already.
    """
    planned = cells(study)
    check_folders(planned)
    failures: dict[pathlib.Path, str] = {}
    with run_folder.lock(study.out):
        try:
            for i, cell in enumerate(planned):
                finish(cell, f"[{i + 1}/{len(planned)}]", train_command, say, failures)
        finally:
            rows = _report(study, planned, failures)
    return rows


def finish(
    cell: Cell,
    number: str,
    train_command: Sequence[str],
    say: Callable[[str], None],
    failures: dict[pathlib.Path, str],
) -> None:
    """Trains one cell unless it is finished; if it fails, the reason goes to `failures` by its folder."""
    name = f"{number} {cell.folder}"
    if not is_finished(cell):
        _wait_until_free(cell.folder, lambda text: say(f"{name}: {text}"))
    if is_finished(cell):
        say(f"{name}: finished before")
        return
    say(f"{name}: training, see {cell.folder / _LOG_NAME}")
    failure = _train(cell, train_command)
    if failure:
        failures[cell.folder] = failure
    say(f"{name}: {failure or 'finished'}")


def row(
    study: Study, label: str, planned: Sequence[Cell], failures: Mapping[pathlib.Path, str]
) -> tuple[study_table.Row, curves.Curve]:
    """Returns the row of the table and the curve of one setting, from its finished cells."""
    members = [cell for cell in planned if cell.label == label]
    failed = [f"{cell.folder}: {failures[cell.folder]}" for cell in members if cell.folder in failures]
    finished = []
    for cell in filter(is_finished, members):
        try:
            finished.append(run_view.read(cell.folder))
        except errors.UsageError as error:
            failed.append(str(error))
    command = shlex.join(["python", "scripts/train.py", *members[0].arguments])
    made = study_table.row(label, command, finished, failed, study.num_seeds, study.means)
    return made, curves.curve([view.records for view in finished])


def title(planned: Sequence[Cell]) -> str:
    """Says which systems play which environments."""
    settings = [cell.command.settings for cell in planned if cell.command.settings]
    return " on ".join(", ".join(dict.fromkeys(one[name] for one in settings)) for name in ("system", "env"))


def unrecorded(study: Study, rows: Sequence[study_table.Row]) -> str:
    """Says which of the study's means its finished runs do not record, and which metrics they do; "" if none."""
    empty = [name for name in study.means if all(item["means"][name] is None for item in rows)]
    if not empty:
        return ""
    records = [record for path in study.out.rglob(metrics.FILE_NAME) for record in metrics.read(path.parent)]
    known = sorted({name for record in records if record["kind"] == "train" for name in record} - {"kind"})
    unknown = [name for name in empty if known and name not in known]
    if not unknown:
        return ""
    hint = errors.nearest(unknown[0], known)
    return f"--means={unknown[0]}: these runs record no such number; valid: {', '.join(known)}{hint}"


def _cells_of(study: Study, setting: Setting) -> list[Cell]:
    """Lists the processes of one setting."""
    folder = study.out / _folder_name(setting.label)
    seeds = range(study.first_seed, study.first_seed + study.num_seeds)
    first = _cell(study, setting, folder, study.first_seed, 1).command.settings
    together = first is not None and first.row.layout(first["layout"]).seeds_together
    if study.separate_seeds or not together:
        blocks = [(folder / f"seed{seed}", seed, 1) for seed in seeds]
    else:
        blocks = [(folder, study.first_seed, study.num_seeds)]
    return [_cell(study, setting, *block) for block in blocks]


def _cell(study: Study, setting: Setting, folder: pathlib.Path, seed: int, num_seeds: int) -> Cell:
    """Checks the flags of one process, and makes it."""
    given = command_line.expanded((*study.common, *setting.flags))
    for name in _OWNED:
        if any(re.match(f"--?{name}(=|$)", flag) for flag in given):
            raise errors.UsageError(f"{setting.label}: --{name} is chosen by the study, give it before the --")
    arguments = (*given, f"--seed={seed}", f"--num_seeds={num_seeds}", f"--out={folder}")
    try:
        command = training_flags.parse(arguments)
    except errors.UsageError as error:
        raise errors.UsageError(f"{setting.label}: ", *error.args) from None
    if command.text:
        raise errors.UsageError(f"{setting.label}: a flag among {shlex.join(given)} prints instead of training")
    if command.dry_run or not command.in_processes.is_one:
        raise errors.UsageError(
            f"{setting.label}: --dry_run and --processes: a study trains each setting in a process; leave them out"
        )
    if command.settings and command.settings["sweep"]:
        raise errors.UsageError(
            f"{setting.label}: --sweep: a study trains each setting by itself; give it as --search=NAME=A,B or as "
            "several --setting"
        )
    return Cell(setting.label, folder, arguments, command)


def _wait_until_free(folder: pathlib.Path, say: Callable[[str], None]) -> None:
    """Waits for a trainer that holds the folder, such as one that still saves after its study was killed."""
    while True:
        try:
            with run_folder.lock(folder):
                return
        except errors.LockError as error:
            say(f"waiting: {error}")
        with contextlib.suppress(FileNotFoundError), (folder / run_folder.LOCK_NAME).open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)


def _train(cell: Cell, train_command: Sequence[str]) -> str:
    """Runs one process to its end; returns why it failed, or ""."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    log_path = cell.folder / _LOG_NAME
    with log_path.open("ab") as log, lifeline.pipe() as line:
        process = subprocess.Popen(
            [*train_command, *cell.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=service.environ(),
            pass_fds=(line,),
        )
        try:
            lifeline.tie(line, process.pid, signal.SIGTERM)
            code = process.wait()
        except BaseException:
            # The process saves its state before it ends, so that the same study goes on from there.
            process.terminate()
            process.wait()
            raise
    if code == 0 and is_finished(cell):
        return ""
    return f"exit code {code}: {_last_line(log_path) or 'it printed nothing'}"


def _last_line(path: pathlib.Path) -> str:
    """Returns the last line of a log, into which an environment may have printed any bytes."""
    with path.open("rb") as log:
        log.seek(-min(log.seek(0, os.SEEK_END), _LAST_BYTES), os.SEEK_END)
        lines = log.read().decode(errors="replace").strip().splitlines()
    return errors.printable(lines[-1]) if lines else ""


def _report(study: Study, planned: Sequence[Cell], failures: Mapping[pathlib.Path, str]) -> list[study_table.Row]:
    """Writes table and plot of the cells that are finished so far."""
    made = {setting.label: row(study, setting.label, planned, failures) for setting in study.settings}
    rows, drawn = [item for item, _ in made.values()], {label: curve for label, (_, curve) in made.items()}
    marks = {cell.label: _marks(cell) for cell in planned}
    rows = study_table.compare_with_first(rows)
    study_table.write(study.out, rows, study_table.markdown(rows))
    is_one_task = len({name for item in rows for name in item["environments"]}) == 1
    known = published.of_all(list(marks.values())) if is_one_task else published.NO_MARKS
    plots.draw(drawn, study.out / "curves.png", marks=known)
    plots.draw_scores(drawn, study.out / "scores.png")
    studies.write_study(study.out, title(planned), rows, drawn, marks)
    return rows


def _marks(cell: Cell) -> published.Marks:
    """Returns what others have measured of a cell's system on its task."""
    assert cell.command.settings is not None
    values = cell.command.settings.settings
    return published.marks(values["system"], values["env"], resolve.task_params(values))


def _folder_name(label: str) -> str:
    return label.replace(" ", "_")
