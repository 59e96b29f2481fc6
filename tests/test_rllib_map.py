"""Every row of the table of RLlib's policy optimisers trains."""

import pathlib
import re
import shlex

import conftest
import jax
import pytest

from jaxrl_dist.systems import training_flags

DOCUMENT = pathlib.Path(__file__).resolve().parents[1] / "docs" / "coming_from.md"
ROWS = re.findall(r"^\| (\w+Optimizer) \| .* \| `(--.*)` \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)


def test_there_are_seven() -> None:
    assert len({name for name, _ in ROWS}) == len(ROWS) == 7


@pytest.mark.parametrize(("name", "text"), ROWS, ids=[name for name, _ in ROWS])
def test_a_row_is_a_command(name: str, text: str) -> None:
    del name
    settings = training_flags.parse([*shlex.split(text), "--env=gymnax:CartPole-v1"]).settings
    assert settings is not None and f"--system={settings['system']}" in text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), ROWS, ids=[name for name, _ in ROWS])
def test_a_row_trains(name: str, text: str, train: conftest.Train) -> None:
    del name
    given = dict(word[2:].split("=") for word in shlex.split(text))
    system = given.pop("system")
    run = train(system, devices=jax.devices()[:2], **{"evaluation.episodes": 2, **given})
    assert run.reason == "finished" and run.summary["learner_steps"] > 0
    assert run.summary["num_devices"] == (2 if "layout.num_devices" in given else 1)
