"""Arguments of wrong types: each is refused in one line, before an environment is made or a folder written."""

import pathlib
from typing import Any

import conftest
import jax
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import envs, systems
from jaxrl_dist.systems import catalogue
from jaxrl_dist.training import assemble


@pytest.fixture(autouse=True)
def nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "make", lambda name, params=None: pytest.fail(f"{name} was made"))


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("devices", 2, "devices=2"),
        ("devices", [], "devices=[]"),
        ("devices", jax.devices()[0], "devices=<"),
        ("devices", jax.devices()[:1] * 2, "each once"),
        ("devices", np.asarray(jax.devices()), "devices=<ndarray>"),
        ("callbacks", print, "callbacks=<builtin_function_or_method>"),
        ("callbacks", (print, "print"), "callbacks=("),
        ("callbacks", None, "callbacks=None"),
        ("display", 1, "display=1"),
        ("settings", "agent.discount=0.9", "settings='agent.discount=0.9'"),
        ("settings", {3: 0.9}, "settings={3: 0.9}"),
        ("settings", 3, "settings=3"),
    ],
)
def test_train_names_the_argument(name: str, value: Any, word: str, tmp_path: pathlib.Path) -> None:
    with conftest.refused(word, "expected "):
        jaxrl_dist.train("ppo", "toy:walk", out=str(tmp_path / "run"), **{name: value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [jaxrl_dist.train, jaxrl_dist.make])
def test_a_system_is_a_name_or_a_record(call: Any) -> None:
    for value in (None, systems.ppo, systems.SYSTEMS["ppo"].agent):
        with conftest.refused("system=", "System"):
            call(value, "toy:walk")


@pytest.mark.parametrize("call", [jaxrl_dist.train, jaxrl_dist.make])
def test_an_environment_is_a_name_or_can_be_made_again(call: Any) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    with conftest.refused("env=3", '"suite:name"', "Gymnasium"):
        call("ppo", 3)
    with conftest.refused("env=<CartPoleEnv>", "instance", "function"):
        call("ppo", gymnasium.make("CartPole-v1").unwrapped.__class__())


def test_a_preset_names_system_and_environment() -> None:
    preset = {"preset": "sac/pendulum"}
    for named in (assemble.by_flag(None, None, preset, {}), assemble.by_flag(None, None, None, preset)):
        found = catalogue.resolved(named)
        assert (found["system"], found["env"]) == ("sac", "gymnax:Pendulum-v1")
        assert found.origins["env"].startswith("preset sac/pendulum")
    assert catalogue.resolved(assemble.by_flag(None, "toy:reach", None, preset))["env"] == "toy:reach"


@pytest.mark.parametrize("call", [jaxrl_dist.train, jaxrl_dist.make])
def test_without_a_preset_system_and_environment_are_given(call: Any) -> None:
    for missing, given in (("system", {"env": "toy:walk"}), ("env", {"system": "ppo"})):
        for none in ({}, {"preset": ""}):
            with conftest.refused(f"{missing}=None: "):
                call(**given, **none)


def test_load_names_the_argument(tmp_path: pathlib.Path) -> None:
    wrong = {"checkpoint": 3, "seed_index": 1.5, "settings": "a=b", "system": "ppo"}
    for name, value in (*wrong.items(), ("seed_index", True)):
        with conftest.refused(f"{name}=", "expected "):
            jaxrl_dist.load(tmp_path, **{name: value})
    for call in (jaxrl_dist.load, jaxrl_dist.evaluate, jaxrl_dist.record_video, jaxrl_dist.replay_failure):
        with conftest.refused("run=None", "folder of a run"):
            call(None)


@pytest.mark.parametrize("call", [jaxrl_dist.load, jaxrl_dist.evaluate, jaxrl_dist.record_video])
def test_settings_of_training_stay_as_the_run_had_them(call: Any, tmp_path: pathlib.Path) -> None:
    with conftest.refused("agent.discount", "env.params.NAME", "agent.evaluation_NAME"):
        call(tmp_path, settings={"agent.discount": 0.5})


@pytest.mark.parametrize(("name", "value"), [("episodes", 0), ("episodes", 2.0), ("seed", -1), ("seed", 2**31)])
def test_episodes_are_whole_numbers(name: str, value: Any, tmp_path: pathlib.Path) -> None:
    for call in (jaxrl_dist.evaluate, jaxrl_dist.record_video):
        with conftest.refused(f"{name}={value}", "whole number"):
            call(tmp_path, **{name: value})


@pytest.mark.parametrize("value", [0, 1.5, "10"])
def test_a_film_is_of_whole_steps(value: Any, tmp_path: pathlib.Path) -> None:
    with conftest.refused(f"max_steps={value!r}", "whole number"):
        jaxrl_dist.record_video(tmp_path, max_steps=value)


def test_what_is_right_passes() -> None:
    named = assemble.by_flag(systems.SYSTEMS["ppo"], "toy:walk", {"agent.discount": 0.9}, {"steps": 3})
    assert named == {"system": systems.SYSTEMS["ppo"], "env": "toy:walk", "steps": 3, "agent.discount": 0.9}
