"""Callbacks of `jaxrl_dist.train`: what they get, how they end a run, and what is kept when they raise."""

import functools
import io
import pathlib
import sys
from typing import Any

import conftest
import pytest
from PIL import Image

import jaxrl_dist
from jaxrl_dist.runs import metrics


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    settings = {"evaluation.episodes": 2, "log.interval_steps": 128, "log.tensorboard": False}
    return functools.partial(train, env="gymnax:CartPole-v1", **settings)


def counted(records: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(record["kind"], record["env_steps"]) for record in records]


def enough(record: dict[str, Any]) -> object:
    return "bored" if record["env_steps"] >= 512 else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eval", "train"])
def test_a_run_that_callbacks_end_goes_on(tmp_path: pathlib.Path, kind: str, train: conftest.Train) -> None:
    def wrong(record: dict[str, Any]) -> None:
        if record["kind"] == kind and record["env_steps"] >= 640:
            raise ZeroDivisionError("mine")

    seen: list[dict[str, Any]] = []
    run = train(callbacks=[dict.clear, seen.append, enough])
    assert (run.reason, run.summary["reason"], run.summary["env_steps"]) == (*("callback enough: bored",) * 2, 512)
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        train(callbacks=[seen.append, wrong])
    assert caught.traceback[-1].name == "wrong"
    run = train(callbacks=[seen.append, lambda record: record["env_steps"] >= 1280])
    assert (run.reason, run.summary["resumed_from"]) == ("finished", 640)
    assert counted(seen) == counted(metrics.read(tmp_path))
    assert len(set(counted(seen))) == len(counted(seen)) == 21


class Shown:
    """Stands for a notebook's display: the pictures of one output, each in the place of the one before it."""

    def __init__(self) -> None:
        self.pictures: list[bytes] = []
        self.opened = 0

    def display(self, picture: Any, display_id: bool) -> "Shown":
        assert display_id
        self.opened += 1
        self.update(picture)
        return self

    def update(self, picture: Any) -> None:
        self.pictures.append(picture.data)


def test_a_live_curve_grows_in_one_place(
    tmp_path: pathlib.Path, train: conftest.Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shown()
    monkeypatch.setattr(pytest.importorskip("IPython.display"), "display", shown.display)
    run = train(callbacks=[jaxrl_dist.LiveCurve("mine")])
    evaluations = [record for record in metrics.read(run.folder) if record["kind"] == "eval"]
    assert run.reason == "finished" and shown.opened == 1
    assert len(set(shown.pictures)) == len(shown.pictures) == len(evaluations) > 2
    with Image.open(io.BytesIO(shown.pictures[-1])) as picture:
        assert picture.format == "PNG" and picture.width > 400


def test_a_live_curve_says_that_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with conftest.refused("LiveCurve", "IPython", "learning_curve.png"):
        jaxrl_dist.LiveCurve()
