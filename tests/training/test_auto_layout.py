"""`--layout=auto` takes the fastest option, touches nothing that is learned, and asks only once; probes measure."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import conftest
import jax
import marks
import pytest

import jaxrl_dist
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.settings import resolve
from jaxrl_dist.systems import catalogue
from jaxrl_dist.training import assemble, auto_layout, probe

CARTPOLE = "gymnax:CartPole-v1"
# What decides what is learned; auto never gives these another value than the run would have without it.
LEARNED = ("env.num_envs", "layout.unroll_length", "steps", "seed")


def flags_of(system: str, **settings: Any) -> dict[str, Any]:
    return {**conftest.SMALL[system], "system": system, "env": CARTPOLE, "layout": "auto", **settings}


def measure_as(monkeypatch: pytest.MonkeyPatch, speed: Callable[[resolve.Resolved], float]) -> list[dict[str, Any]]:
    """Has every option tried in no time, at the speed that a function gives its settings; returns what was tried."""
    tried: list[dict[str, Any]] = []

    def speeds(trials: auto_layout.Trials, measured: Any, options: Sequence[dict[str, Any]]) -> list[float]:
        tried.extend(options)
        entries = [{name: (value, "auto") for name, value in option.items()} for option in options]
        return [speed(catalogue.resolved(trials.named, "classic", measured={**measured, **one})) for one in entries]

    monkeypatch.setattr(auto_layout.Trials, "speeds", speeds)
    return tried


def chosen(flags: dict[str, Any], devices: int = 8) -> tuple[auto_layout.Measured, list[str]]:
    said: list[str] = []
    trials = auto_layout.Trials(flags, jax.devices()[:devices], said.append)
    return trials.choose(assemble.resolve(flags)[0]), said


def test_auto_takes_devices_by_their_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = measure_as(monkeypatch, lambda s: 100.0 + 10 * (s.settings.get("layout.num_devices") == 4))
    found, said = chosen(flags_of("ppo"))
    assert found["layout"][0] == "anakin" and found["layout.num_devices"][0] == 4
    assert re.fullmatch(r"auto: 110 steps/s, the best of \d tried", found["layout.num_devices"][1])
    assert {"layout.num_devices": 8} in tried and {"layout": "anakin"} in tried
    assert "auto: --layout.num_devices=4: 110 steps/s" in said


def test_where_nothing_is_clearly_faster_the_usual_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_as(monkeypatch, lambda s: 102.0 if s["layout"] == "sebulba" else 100.0)
    assert chosen(flags_of("ppo"))[0]["layout"][0] == "anakin"


def test_sebulba_is_chosen_without_lag_so_that_the_same_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_as(monkeypatch, lambda s: 200.0 if s["layout"] == "sebulba" else 100.0)
    found, _ = chosen(flags_of("ppo"))
    flags = flags_of("ppo")
    with_auto = catalogue.resolved(flags, "classic", measured=found)
    without = catalogue.resolved(flags | {"layout": "anakin"}, "classic")
    assert (with_auto["layout"], with_auto["layout.policy_lag"]) == ("sebulba", "0")
    assert all(with_auto[name] == without[name] for name in LEARNED)
    own = {name for name in with_auto.settings if name.split(".")[0] in ("agent", "learner", "replay", "network")}
    assert all(with_auto[name] == without[name] for name in own)
    assert with_auto.origins["layout"].startswith("auto: 200 steps/s")


@pytest.mark.parametrize(
    "flags",
    [
        {"system": "impala", "env": "envpool:CartPole-v1"},
        {"system": "seed_impala", "env": "envpool:CartPole-v1"},
        {"system": "a3c", "env": CARTPOLE},
        {"system": "ppo", "env": "gymnasium:CartPole-v1"},
        {"system": "ppo", "env": CARTPOLE, "num_seeds": 3},
    ],
    ids=lambda flags: flags["system"] + flags["env"].split(":")[0],
)
def test_only_what_speed_depends_on_is_tried(flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    tried = measure_as(monkeypatch, lambda s: 100.0)
    found, _ = chosen({**flags, "layout": "auto"})
    names = {name for option in tried for name in option} | set(found)
    assert names <= {
        *("layout", "layout.num_devices", "layout.num_actors", "layout.learner_devices", "layout.ready_envs"),
        *("layout.policy_lag", "layout.unroll_length", "env.params.num_threads", "env.params.workers"),
    }
    assert ("layout.ready_envs" in names) == (flags["system"] == "seed_impala")
    assert ("layout.num_actors" in names) == (
        flags["env"].split(":")[0] != "gymnax" and flags["system"] != "seed_impala"
    )


def test_what_a_flag_names_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    tried = measure_as(monkeypatch, lambda s: 100.0)
    chosen({"system": "impala", "env": "envpool:CartPole-v1", "layout": "auto", "layout.num_actors": 2})
    assert tried and not any("layout.num_actors" in option for option in tried)


def test_simulators_that_come_by_themselves_are_refused() -> None:
    flags = {"system": "ppo", "env": "external:robot", "layout": "auto"}
    with conftest.refused("--layout=auto: ", "external:robot"):
        auto_layout.Trials(flags, [], print).choose(catalogue.resolved(flags))


@pytest.mark.slow
def test_a_run_records_what_was_chosen_and_a_resume_does_not_measure_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    tried = measure_as(monkeypatch, lambda s: 100.0 + 10 * (s.settings.get("layout.num_devices") == 2))
    small = {"steps": 256, "layout": "auto", "evaluation.episodes": 2}
    first = train(env=CARTPOLE, devices=jax.devices(), **small)
    saved = json.loads((tmp_path / "config.json").read_text())["settings"]
    assert first.summary["num_devices"] == 2 and saved["layout.num_devices"]["value"] == 2
    assert saved["layout"]["value"] == "anakin"
    assert saved["layout"]["origin"].startswith("auto: ") and saved["layout.num_devices"]["origin"].startswith("auto: ")
    tried.clear()
    second = train(env=CARTPOLE, devices=jax.devices(), **small)
    assert not tried and second.summary["resumed_from"] == 256 and second.summary["num_devices"] == 2
    again = json.loads((tmp_path / "config.json").read_text())["settings"]
    assert again["layout.num_devices"] == saved["layout.num_devices"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "begun", [{"layout": ""}, {"layout": "sebulba", "layout.num_actors": 2}], ids=["own", "sebulba"]
)
def test_a_run_that_was_begun_without_it_goes_on_as_it_was(
    begun: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    tried = measure_as(monkeypatch, lambda s: 100.0 + 10 * (s.settings.get("layout.num_devices") == 2))
    train = functools.partial(train, env=CARTPOLE, devices=jax.devices(), **{"evaluation.episodes": 2})

    def saved() -> dict[str, Any]:
        return json.loads((tmp_path / "config.json").read_text())["settings"]

    first, before = train(steps=256, **begun), saved()
    second, after = train(steps=512, layout="auto"), saved()
    assert not tried and second.summary["resumed_from"] == 256
    assert second.summary["num_devices"] == first.summary["num_devices"]
    assert after == {**before, "steps": after["steps"]}
    assert train(steps=768, **begun).summary["resumed_from"] == 512
    # Whose layouts these are, and what serves them, is another matter.
    with conftest.refused(f"--out={tmp_path}", "(system ppo -> dqn, "):
        jaxrl_dist.train("dqn", CARTPOLE, layout="auto", out=str(tmp_path))


@pytest.mark.slow
def test_a_probe_of_a_replay_measures_learning_from_early_on() -> None:
    flags = flags_of("dqn", **{"replay.min_size": 1024, "replay.capacity": 2**20}) | {"layout": "anakin"}
    settings, environment = assemble.resolve(flags)
    probed = probe.Probe(settings, environment, jax.devices()[:1], capacity=2048)
    assert probed.parts.settings["replay.capacity"] == 2048
    probed.warm_up()
    assert probed.learns
    probed.run(0.01)
    probed.run(0.01)
    assert probed.updates_per_iteration == 2.0 and len(probed.rates) == 2
    assert probed.steps_per_second == pytest.approx(probed.iterations * 32 / probed.seconds)
    probed.close()


def test_a_probe_s_replay_has_rows_of_all_agents() -> None:
    settings, environment = assemble.resolve({"system": "dqn", "env": "toy:team", "layout": "anakin"})
    probed = probe.Probe(settings, environment, jax.devices()[:1], capacity=2048)
    # As many rows as a probe needs at least, for each of 10 environments × 3 agents.
    assert probed.parts.settings["replay.capacity"] == 30 * probe._ROWS_PER_COLUMN
    probed.close()


@pytest.mark.slow
def test_options_are_measured_in_turns_and_one_that_cannot_be_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_layout, "_SLICE_S", 0.01)
    flags = flags_of("ppo")
    options = [{"layout.num_devices": 1}, {"layout.num_devices": 3}]
    said: list[str] = []
    trials = auto_layout.Trials(flags, jax.devices(), said.append)
    found = trials.speeds({"layout": ("anakin", "auto")}, options)
    assert found[0] > 0 and found[1] == 0.0
    refused = r"auto: --layout\.num_devices=3 is not possible: --\S+ is not divided by 3"
    assert len(said) == 1 and re.match(refused, said[0])


@pytest.mark.parametrize("when", marks.some(["warm_up", "run"], slow={"warm_up"}))
def test_an_option_that_fails_counts_nothing_and_the_others_go_on(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one device may not hold what two do."""
    monkeypatch.setattr(auto_layout, "_SLICE_S", 0.01)
    work = getattr(probe.Probe, when)

    def fail(self: Any, *arguments: Any) -> Any:
        if self.parts.layout.mesh.devices.size == 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand where")
        return work(self, *arguments)

    monkeypatch.setattr(probe.Probe, when, fail)
    said: list[str] = []
    trials = auto_layout.Trials(flags_of("ppo"), jax.devices(), said.append)
    found = trials.speeds({"layout": ("anakin", "auto")}, [{"layout.num_devices": 2}, {"layout.num_devices": 1}])
    assert found[0] == 0.0 and found[1] > 0
    assert said == ["auto: --layout.num_devices=2 is not possible: RESOURCE_EXHAUSTED: out of memory"]


def test_actors_have_stopped_when_a_probe_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    send, steps = as_host.AsHost.raw_send, itertools.count()

    def busy(self: Any, action: Any, env_ids: Any) -> Any:
        until_s = time.perf_counter() + 0.01
        while time.perf_counter() < until_s:
            pass
        next(steps)
        return send(self, action, env_ids)

    monkeypatch.setattr(as_host.AsHost, "raw_send", busy)
    settings, environment = assemble.resolve(flags_of("ppo") | {"layout": "sebulba", "layout.policy_lag": "1"})
    with contextlib.closing(probe.Probe(settings, environment, jax.devices()[:1])) as probed:
        probed.warm_up()
        probed.run(0.01)
        played = next(steps)
        time.sleep(0.3)
        assert played > 0 and next(steps) == played + 1


def test_a_folder_names_no_more_than_what_could_be_measured() -> None:
    flags = {name: value for name, value in flags_of("ppo").items() if name != "network.torso"}
    asked = catalogue.resolved(flags, "classic")
    contents = catalogue.resolved({**flags, "layout": "anakin", "layout.num_devices": 2}, "classic").as_json()
    for name, value in {"network.torso": "theirs:Net", "env.params.text": "x", "agent.discount": 0.1}.items():
        contents["settings"][name] = {"value": value, "origin": "auto: 9 steps/s"}
    found = catalogue.resolved_as_in(contents, flags, asked)
    assert found["layout.num_devices"] == 2 and not found.env_params
    assert all(found[name] == asked[name] for name in ("network.torso", "agent.discount"))
