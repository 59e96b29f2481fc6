"""Checkpoints without the replay: small, and a resumed run collects anew before it learns."""

import functools
import json
import pathlib
import shutil

import conftest
import marks
import pytest

from jaxrl_dist.runs import checkpoint

SETTINGS = {"checkpoint.replay": False, "replay.min_size": 128, "log.interval_steps": 32, "evaluation.episodes": 2}


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    return functools.partial(train, "dqn", **SETTINGS)


def learner_steps(folder: pathlib.Path) -> dict[int, int]:
    """Returns the updates of each training record by its steps."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["env_steps"]: row["learner_steps"] for row in rows if row["kind"] == "train"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "storage"),
    marks.some([("anakin", "device"), ("sebulba", "device"), ("sebulba", "host")], fast={"sebulba-host"}),
)
def test_a_replay_that_is_not_saved_is_filled_anew(
    layout: str, storage: str, tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    train(folder=one, layout=layout, steps=320, **{"replay.storage": storage})
    newest = checkpoint.latest(one / "checkpoints")[0]
    assert not any("replay/" in leaf.path for leaf in checkpoint._read_contents(newest)[0])
    shutil.copytree(one, other)
    for folder in (one, other):
        train(folder=folder, layout=layout, steps=640, **{"replay.storage": storage})
    steps = learner_steps(one)
    # 128 rows are four iterations of 32: the fourth learns, of the first session and of the second.
    assert steps[96] == 0 < steps[128]
    assert steps[320] == steps[416] < steps[448]
    assert steps[640] - steps[320] == steps[320]
    hashes = [json.loads((folder / "summary.json").read_text())["params_sha256"] for folder in (one, other)]
    assert hashes[0] == hashes[1]
