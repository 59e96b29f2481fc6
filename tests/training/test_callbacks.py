"""Callbacks of `jaxrl_dist.train`: what they get, how they end a run, and what is kept when they raise."""

import functools
import pathlib
from typing import Any

import conftest
import pytest

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
