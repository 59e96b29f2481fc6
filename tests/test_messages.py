"""The wording of messages: each command and call in `messages.txt` is refused with the words below it there.

Other tests assert types, flags and values. A new command is a new line that begins with `$`, a new call one that begins
with `>>>`; `python tests/test_messages.py --write` then writes what they are told, and a reviewer sees what changed.
"""

import argparse
import contextlib
import io
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

# Sets up JAX, also where this file is run as a script.
import conftest  # noqa: F401
import pytest
from fakes import written_runs

import jaxrl_dist
from jaxrl_dist.training import runner

FILE = pathlib.Path(__file__).with_name("messages.txt")
COMMAND, CALL = "$ ", ">>> "
# As if they were not installed.
ABSENT = ("wandb", "mlflow", "optuna", "ray")


class Entry(NamedTuple):
    """A line that begins with `$` or `>>>`, without that, and what is said to it; a heading or a gap has no text."""

    line: str
    message: str


def read(text: str) -> Iterator[Entry]:
    """Yields the entries of a file, and its other lines as entries without a message."""
    for block in text.split("\n\n"):
        first, _, rest = block.strip("\n").partition("\n")
        yield Entry(first, rest)


def write(entries: list[Entry]) -> str:
    return "\n\n".join("\n".join(filter(None, entry)) for entry in entries) + "\n"


ENTRIES = list(read(FILE.read_text(encoding="utf-8")))
ASKED = [entry for entry in ENTRIES if entry.line.startswith((COMMAND, CALL))]


def prepare(folder: pathlib.Path, patch: pytest.MonkeyPatch) -> None:
    """Makes the folder that the commands run in, with runs and modules of a user's own, and enters it."""
    rising = written_runs.rising(2)
    written_runs.write(folder / "runs" / "finished", rising)
    written_runs.write(folder / "runs" / "empty", rising[:0], reason=None)
    written_runs.write(folder / "runs" / "own", rising, env="custom:shown_world:make")
    written_runs.write(folder / "runs" / "sac", rising[:, :1], "sac")
    swept = {"sweep": "agent.discount=0.9,0.99", "num_seeds": 2}
    written_runs.write(folder / "runs" / "swept", written_runs.rising(4), flags=swept)
    doom = {"layout": "sebulba", "env.params.vzd_path": "run/doom"}
    written_runs.write(folder / "runs" / "doom", rising[:, :1], env="envpool:Basic-v1", flags=doom)
    (folder / "runs" / "broken").mkdir()
    (folder / "runs" / "broken" / "config.json").write_text("{")
    (folder / "runs" / "broken" / "metrics.jsonl").write_text('{"kind": "train", "env_steps": 128}\n')
    for name, contents in (("list", "[]"), ("bare", "{}"), ("unnamed", '{"settings": {"env": {"value": "x"}}}')):
        (folder / "runs" / name).mkdir()
        (folder / "runs" / name / "config.json").write_text(contents)
    (folder / "file").touch()
    (folder / "pinned_networks.py").write_text("import flax.linen as nn\n\n\nclass MyNet(nn.Module):\n    pass\n")
    (folder / "pinned_broken.py").write_text("raise ValueError('not today')\n")
    (folder / "shown_world.py").write_text(
        "def make():\n    pass\n\n\ndef fails():\n    1 / 0\n\n\ndef nothing():\n    return 3\n"
    )
    patch.chdir(folder)
    patch.syspath_prepend(folder)
    # The devices and the folder of compiled programs are those of the tests.
    patch.setattr(runner, "prepare", lambda: None)
    patch.setattr(runner, "keep_programs", lambda: None)
    for name in ABSENT:
        patch.setitem(sys.modules, name, None)


def said(line: str) -> str:
    """Returns what a command prints as it refuses, or what a call raises."""
    if line.startswith(CALL):
        with pytest.raises(Exception) as caught:
            eval(line.removeprefix(CALL), {"jaxrl_dist": jaxrl_dist})
        return f"{caught.type.__name__}: {caught.value}"
    script, *arguments = shlex.split(line.removeprefix(COMMAND))
    main = written_runs.script(f"scripts/{script}")
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code
    assert code in (1, 2), f"{line} is not refused"
    return printed.getvalue().strip()


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        prepare(tmp_path_factory.mktemp("world"), patch)
        yield


@pytest.mark.parametrize("entry", ASKED, ids=[entry.line for entry in ASKED])
def test_a_message_is_as_pinned_and_one_line(entry: Entry) -> None:
    assert said(entry.line) == entry.message
    assert "\n" not in entry.message


def test_each_line_is_asked_once() -> None:
    lines = [entry.line for entry in ASKED]
    assert len(set(lines)) == len(lines) > 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="write messages.txt anew")
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        prepare(pathlib.Path(folder), patch)
        entries = [Entry(e.line, said(e.line)) if e in ASKED else e for e in ENTRIES]
    FILE.write_text(write(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
