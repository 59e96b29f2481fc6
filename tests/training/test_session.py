"""Whole runs in this process: stopped and resumed they are what they would have been."""

import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import signal
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest

from jaxrl_dist import errors, types
from jaxrl_dist.analysis import plots
from jaxrl_dist.parallel import anakin
from jaxrl_dist.runs import checkpoint, loggers, metrics
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.training import assemble as assembles
from jaxrl_dist.training import evaluation, guard, policy, runner, session
from jaxrl_dist.training import stop as stopping

CARTPOLE = "gymnax:CartPole-v1"
# Ten iterations: a record every third, an evaluation every second, so that a stop after the fifth leaves half a record.
RUN = {"log.interval_steps": 384, "evaluation.interval_steps": 256, "evaluation.episodes": 4}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {}),
    "ppo-lstm": ("ppo", {"network.core": "lstm", "network.core_size": 8}),
    "dqn": ("dqn", {"log.interval_steps": 96, "evaluation.interval_steps": 64}),
}
TIMES = {"wall_s", "steps_per_second"}


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    return functools.partial(train, env=CARTPOLE, **RUN)


def stop_at(monkeypatch: pytest.MonkeyPatch, env_steps: int) -> stopping.StopToken:
    """Makes a token that is requested as soon as a run, now one iteration at a time, has trained so far."""
    token, show = stopping.StopToken(), loggers.Logger.show

    def show_and_stop(logger: loggers.Logger, record: dict[str, Any]) -> None:
        show(logger, record)
        if record["env_steps"] >= env_steps:
            token.request()

    monkeypatch.setattr(loggers.Logger, "show", show_and_stop)
    monkeypatch.setattr(session, "_CHUNK_S", 0.0)
    return token


def without_times(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in r.items() if name not in TIMES} for r in metrics.read(folder)]


def assert_same_records(left: pathlib.Path, right: pathlib.Path) -> None:
    """Checks that two runs recorded the same; means of float32 sums may differ in the last bits, as chunks differ."""
    for a, b in zip(without_times(left), without_times(right), strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if isinstance(a[name], str) or "return" in name or "steps" in name:
                np.testing.assert_equal(a[name], b[name])
            else:
                np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("variant", marks.some(VARIANTS.keys(), fast={"ppo"}))
def test_a_stopped_run_resumes_to_what_it_would_have_been(
    variant: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    system, settings = VARIANTS[variant]
    whole = train(system, folder="whole", **settings)
    rows = whole.summary["env_steps"] // 10
    with monkeypatch.context() as patch:
        stopped = train(system, folder="halves", stop=stop_at(patch, 5 * rows), **settings)
    assert (stopped.reason, stopped.summary["env_steps"]) == ("stopped", 5 * rows)
    resumed = train(system, folder="halves", **settings)
    assert (resumed.reason, resumed.summary["resumed_from"]) == ("finished", 5 * rows)
    assert resumed.summary["params_sha256"] == whole.summary["params_sha256"] != stopped.summary["params_sha256"]
    assert_same_records(tmp_path / "whole", tmp_path / "halves")
    steps = [(record["kind"], record["env_steps"]) for record in metrics.read(tmp_path / "halves")]
    assert len(steps) == len(set(steps)) == 4 + 6
    for name in ("valid_steps", "learner_steps", "best_return", "eval_return_mean"):
        assert resumed.summary[name] == whole.summary[name]
    again = train(system, folder="halves", **settings)
    assert (again.reason, again.summary["params_sha256"]) == ("finished", whole.summary["params_sha256"])
    assert_same_records(tmp_path / "whole", tmp_path / "halves")


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["compiling", "rolling out", "evaluating", "saving"])
def test_a_stop_in_any_phase_saves_and_resumes_to_the_same(
    phase: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, reference: runner.Run, train: conftest.Train
) -> None:
    owner, name, call = {
        "compiling": (session, "_compile", 1),
        "rolling out": (guard, "is_sound", 4),
        "evaluating": (session, "_evaluate", 2),
        "saving": (checkpoint, "save", 5),
    }[phase]
    token, original, calls = stopping.StopToken(), getattr(owner, name), [0]

    def request_then(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            token.request()
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, request_then)
        patch.setattr(evaluation, "_FIRST_SLICE", 1)
        stopped = train(stop=token, **{"checkpoint.interval_s": 0})
    assert stopped.reason == "stopped" and stopped.summary["env_steps"] < 1280
    # The evaluation was left on its way; the resumed run begins with it.
    records = [r["kind"] for r in metrics.read(tmp_path) if r["env_steps"] == stopped.summary["env_steps"]]
    assert phase != "evaluating" or "eval" not in records
    newest = checkpoint.latest(tmp_path / "checkpoints")[0]
    assert newest.name == f"step_{stopped.summary['env_steps']:012d}"
    resumed = train()
    assert resumed.summary["params_sha256"] == reference.summary["params_sha256"]
    assert_same_records(tmp_path, reference.folder)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> runner.Run:
    """The whole small PPO run."""
    return conftest.train_in(tmp_path_factory.mktemp("reference"), env=CARTPOLE, **RUN)


@pytest.fixture
def finished(reference: runner.Run, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the finished run that may be altered."""
    return pathlib.Path(shutil.copytree(reference.folder, tmp_path / "finished"))


@pytest.mark.slow
def test_a_reached_return_ends_the_run_also_when_it_is_started_again(train: conftest.Train) -> None:
    run = train(stop_at_return=5.0)
    # Random play lasts longer than five steps, as the evaluation at step 0 finds.
    assert (run.reason, run.summary["reason"], run.summary["env_steps"]) == ("return reached", "return reached", 0)
    again = train(stop_at_return=5.0)
    assert (again.reason, again.summary["env_steps"]) == ("return reached", 0)
    assert again.summary["params_sha256"] == run.summary["params_sha256"]
    further = train(stop_at_return=1e6)
    assert (further.reason, further.summary["env_steps"]) == ("finished", 1280)


def test_more_steps_extend_a_finished_run(
    finished: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    said: list[str] = []
    monkeypatch.setattr(loggers.Logger, "say", lambda logger, text: said.append(text))
    run = train(folder=finished, steps=2000)
    assert (run.summary["resumed_from"], run.summary["env_steps"]) == (1280, 2048)
    assert any(text.startswith("changed since the last session: steps 1280 -> 2000") for text in said)
    assert any("go on from 62% of their schedule, they were at 100%" in text for text in said)


def test_fewer_steps_than_there_are_leave_nothing_to_train(
    finished: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    said: list[str] = []
    monkeypatch.setattr(loggers.Logger, "say", lambda logger, text: said.append(text))
    config = (finished / "config.json").read_bytes()
    run = train(folder=finished, steps=1000)
    assert run.summary["env_steps"] == 1280
    assert (finished / "config.json").read_bytes() == config
    assert "it already has 1,280 steps per seed, and 1,000 are asked for: nothing left to train" in said
    assert not any("resumed" in text or "schedule" in text for text in said)


@pytest.mark.slow
def test_a_run_starts_from_the_parameters_of_another(
    reference: runner.Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    origin = {"init_from": str(reference.folder), "seed": 7}
    run = train(folder="same", stop=stop_at(monkeypatch, 0), **origin)
    assert run.summary["env_steps"] == 0
    assert run.summary["params_sha256"] == reference.summary["params_sha256"]
    with conftest.refused(f"--init_from={reference.folder}", "(network.hidden_sizes ", " -> [8])"):
        train(folder="other", **origin, **{"network.hidden_sizes": (8,)})
    assert not (tmp_path / "other" / "config.json").exists()
    with conftest.refused(f"--init_from={tmp_path / 'nothing'}"):
        train(folder="other", init_from=str(tmp_path / "nothing"))


def test_each_evaluation_plays_episodes_of_its_own(train: conftest.Train, monkeypatch: pytest.MonkeyPatch) -> None:
    assemble, seen = assembles.assemble, []

    def spied(*arguments: Any, **more: Any) -> Any:
        parts = assemble(*arguments, **more)

        def evaluate(params: Any, keys: Any, index: int, **of_run: Any) -> Any:
            # Without a limit of 0, which only compiles.
            seen.extend([index] if "limit" not in of_run else [])
            return parts.evaluate(params, keys, index, **of_run)

        return parts._replace(evaluate=evaluate)

    monkeypatch.setattr(assembles, "assemble", spied)
    train(steps=128 * 8, **{**RUN, "evaluation.interval_steps": 128 * 4})
    assert seen == [0, 4, 8]


@pytest.mark.parametrize("at", [8, pytest.param(4, marks=pytest.mark.slow)])
def test_a_fault_at_the_end_of_a_chunk_leaves_out_no_record(
    at: int, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    iterations, faults = session._iterations, [errors.EnvironmentFault("an actor died as the chunk ended")]

    def failing(own: Any, state: Any, progress: Any, count: int) -> Any:
        state, metrics, count, fault = iterations(own, state, progress, count)
        if progress.iteration + count == at and faults:
            fault = faults.pop()
        return state, metrics, count, fault

    monkeypatch.setattr(session, "_iterations", failing)
    settings = {"steps": 128 * 8, "evaluation.interval_steps": 128 * 8, "log.interval_steps": 128 * 2}
    with pytest.raises(errors.EnvironmentFault):
        train(**settings)
    run = train(**settings)
    steps = [record["env_steps"] for record in metrics.read(run.folder) if record["kind"] == "train"]
    assert steps == [128 * 2, 128 * 4, 128 * 6, 128 * 8]


@pytest.mark.slow
def test_precision_reaches_every_program(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, reference: runner.Run, train: conftest.Train
) -> None:
    # A CPU computes in float32 whatever is asked, so the numbers do not show it here.
    seen: set[str] = set()
    original = assembles.assemble

    def spied(function: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            seen.add(str(jax.make_jaxpr(jnp.dot)(np.ones((2, 2)), np.ones((2, 2))).eqns[0].params["precision"]))
            return function(*args, **more)

        return call

    def assemble(*args: Any, **more: Any) -> Any:
        parts = original(*args, **more)
        monkeypatch.setattr(parts.layout, "run", spied(parts.layout.run))
        return parts._replace(evaluate=spied(parts.evaluate))

    monkeypatch.setattr(assembles, "assemble", assemble)
    settings = {"precision": "float32", "steps": 128}
    train(folder="float32", **settings)
    policy.evaluate(tmp_path / "float32", 2, 0, "latest", {})
    assert len(seen) == 1 and "HIGHEST" in seen.pop()
    train(folder="bfloat16", precision="bfloat16", steps=128)
    assert len(seen) == 1 and "HIGHEST" not in seen.pop()


@pytest.mark.parametrize(("num_seeds", "lengths"), [pytest.param(1, {1}, marks=pytest.mark.slow), (2, {1, 4, 5})])
def test_chunks_that_copy_replays_are_longer(
    num_seeds: int, lengths: set[int], monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    counts: list[int] = []
    run = anakin.Anakin.run

    def noted(layout: anakin.Anakin, state: Any, iteration: int, count: int, *rest: Any, **more: Any) -> Any:
        counts.append(count)
        return run(layout, state, iteration, count, *rest, **more)

    monkeypatch.setattr(anakin.Anakin, "run", noted)
    # No chunk is as short as the one, nor as long as the other.
    monkeypatch.setattr(session, "_CHUNK_S", 1e-9)
    monkeypatch.setattr(session, "_TIMES_LONGER", 1e15)
    train("dqn", num_seeds=num_seeds, **{"log.interval_steps": 10_000, "evaluation.interval_steps": 10_000})
    assert set(counts) - {0} == lengths
    assert sum(counts) == 10


def test_a_profile_is_of_learning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    """A replay fills for a while before anything is learned from it."""
    before: list[int] = []

    def trace(folder: str) -> Any:
        before.append(metrics.read(tmp_path)[-1]["learner_steps"])
        return contextlib.nullcontext()

    monkeypatch.setattr(session.jax.profiler, "trace", trace)
    monkeypatch.setattr(session, "_CHUNK_S", 0.0)
    each = {"log.interval_steps": 32, "evaluation.interval_steps": 320, "replay.min_size": 128}
    run = train("dqn", profile=True, **each)
    assert len(before) == 1 and 0 < before[0] < run.summary["learner_steps"]


@pytest.mark.slow
def test_a_profile_holds_a_trace(tmp_path: pathlib.Path, reference: runner.Run, train: conftest.Train) -> None:
    run = train(profile=True)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
    assert run.summary["params_sha256"] == reference.summary["params_sha256"]


@pytest.mark.slow
def test_the_best_checkpoint_holds_the_evaluated_parameters_and_its_mark_survives(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    # The score at step 0 is that of random play, which is never the best.
    scores = iter([9.0, 1.0, 5.0, 2.0, 4.0, 3.0])
    evaluated: list[str] = []
    assemble = assembles.assemble

    def scored(*args: Any, **more: Any) -> Any:
        def evaluate(params: types.Params, keys: Any, index: int, limit: int = 1, stopped: Any = None) -> np.ndarray:
            if limit == 0:
                return np.zeros((1, 2))
            evaluated.append(checkpoint.params_sha256(params))
            return np.full((1, 2), next(scores))

        return assemble(*args, **more)._replace(evaluate=evaluate)

    monkeypatch.setattr(assembles, "assemble", scored)
    with monkeypatch.context() as patch:
        train(stop=stop_at(patch, 768))
    best = [json.loads((tmp_path / "checkpoints" / "best" / "contents.json").read_text())["meta"]["env_steps"]]
    run = train()
    assert (run.summary["best_return"], run.summary["eval_return_mean"]) == (5.0, 3.0)
    monkeypatch.undo()
    loaded = policy.load(tmp_path, checkpoint="best")
    assert best == [loaded.env_steps] == [512]
    assert checkpoint.params_sha256(jax.tree.map(lambda x: x[None], loaded.params)) == evaluated[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sessions",
    [((2, 640), (1, 1280)), ((8, 384), (1, 640), (2, 896), (4, 1280))],
    ids=["two then one", "eight then one, two, four"],
)
def test_a_run_goes_on_with_another_number_of_devices(
    sessions: tuple[tuple[int, int], ...],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    train: conftest.Train,
) -> None:
    # One device would be chosen for so little work.
    monkeypatch.setattr(anakin, "_ROWS_PER_CORE", 1)
    steps = 0
    for num_devices, until in sessions:
        with monkeypatch.context() as patch:
            stop = stop_at(patch, until) if until < 1280 else None
            run = train(devices=jax.devices()[:num_devices], stop=stop)
        assert (run.summary["resumed_from"] or 0, run.summary["env_steps"]) == (steps, until)
        assert run.summary["num_devices"] == num_devices
        steps = until
    assert run.reason == "finished"
    records = [(record["kind"], record["env_steps"]) for record in metrics.read(tmp_path)]
    assert len(records) == len(set(records)) == 4 + 6


@pytest.mark.slow
def test_a_corrupt_newest_checkpoint_is_passed_over(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, reference: runner.Run, train: conftest.Train
) -> None:
    with monkeypatch.context() as patch:
        train(stop=stop_at(patch, 640), **{"checkpoint.interval_s": 0})
    newest, older = checkpoint.latest(tmp_path / "checkpoints")
    _damage(newest)
    with pytest.warns(UserWarning, match=re.escape(str(newest))) as caught:
        run = train()
    assert len([item for item in caught if str(newest) in str(item.message)]) == 1
    assert run.summary["resumed_from"] == int(older.name.removeprefix("step_")) < 640
    assert run.summary["params_sha256"] == reference.summary["params_sha256"]
    assert_same_records(tmp_path, reference.folder)


@pytest.mark.slow
def test_without_a_whole_checkpoint_the_folder_stays_as_it_is(finished: pathlib.Path, train: conftest.Train) -> None:
    for path in checkpoint.latest(finished / "checkpoints"):
        _damage(path)
    before = _contents(finished)
    with pytest.warns(UserWarning), pytest.raises(errors.CheckpointError, match=r"\b1 checkpoint"):
        train(folder=finished, steps=4000)
    assert _contents(finished) == before


def test_another_configuration_is_refused_and_changes_nothing(finished: pathlib.Path, train: conftest.Train) -> None:
    before = _contents(finished)
    with conftest.refused(f"--out={finished}", "(agent.discount 0.99 -> 0.5)"):
        train(folder=finished, **{"agent.discount": 0.5})
    assert _contents(finished) == before


def test_a_folder_in_use_is_refused(finished: pathlib.Path, train: conftest.Train) -> None:
    with run_folder.lock(finished), conftest.refused(f"--out={finished}", f"process {os.getpid()} "):
        train(folder=finished)


@pytest.mark.slow
def test_a_picture_that_cannot_be_written_is_loud_and_the_run_is_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, reference: runner.Run, train: conftest.Train
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(plots, "draw", fail)
        with pytest.raises(OSError, match=r"No space left on device.*saved"):
            train()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".new")]
    run = train()
    assert run.summary["params_sha256"] == reference.summary["params_sha256"]
    assert (tmp_path / "summary.json").exists() and (tmp_path / "learning_curve.png").exists()


def _damage(path: pathlib.Path) -> None:
    victim = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)


def _contents(folder: pathlib.Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != run_folder.LOCK_NAME)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


SHORT = {
    "sound": ({}, []),
    "nothing": ({"replay.min_size": 640}, ["nothing will be learned", "--replay.min_size=640"]),
    # 16 rows of each of 8 environments are a sample, and 5 iterations of 4 rows are played.
    "long samples": ({"agent.n_step": 20, "steps": 160}, ["nothing will be learned", " 21 rows", " 168 rows", "--env"]),
    "samples": ({"agent.n_step": 20, "steps": 192, "learner.target_period": 1}, []),
    "greedy": (
        {"replay.min_size": 320, "agent.epsilon_fraction": 0.5},
        ["ε has fallen after 320", "--replay.min_size=320", "--agent.epsilon_wait"],
    ),
    # 576 rows beside the first 64, in batches of 16, each row twice.
    "no target": ({"learner.target_period": 73}, ["--learner.target_period=73", " 72 "]),
    "target": ({"learner.target_period": 72}, []),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_run_says_what_it_is_too_short_for(name: str) -> None:
    settings, words = SHORT[name]
    own = {"steps": 640, "replay.min_size": 64, "replay.batch_size": 16, "replay.samples_per_insert": 2.0}
    run = conftest.Small("dqn", "gymnax:CartPole-v1", 1, {**own, "agent.epsilon_fraction": 0.9, **settings})
    said = list(session._too_short(run.parts, run.state))
    assert len(said) == bool(words) and all(word in said[0] for word in words)


def test_a_resume_keeps_evaluations_up_to_the_last_that_counted(
    monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    settings = {"log.interval_steps": 128, "evaluation.interval_steps": 256, "evaluation.episodes": 2}
    with monkeypatch.context() as patch:
        assert train(stop=stop_at(patch, 640), **settings).summary["env_steps"] == 640
    kept, cut = [], metrics.truncate_after
    monkeypatch.setattr(metrics, "truncate_after", lambda folder, *steps: (kept.append(steps), cut(folder, *steps)))
    train(**settings)
    assert kept == [(640, 512)]


def test_an_interrupt_of_a_notebook_saves_and_the_same_call_goes_on(
    monkeypatch: pytest.MonkeyPatch, train: conftest.Train, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(session, "_CHUNK_S", 0.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(record: dict[str, Any]) -> None:
        if record["kind"] == "train" and record["env_steps"] >= 512:
            signal.raise_signal(signal.SIGINT)

    try:
        settings = {"log.interval_steps": 128}
        whole = train(folder="whole", **settings).summary
        with pytest.raises(KeyboardInterrupt):
            train(folder="cut", callbacks=[interrupt], **settings)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert 512 <= json.loads((tmp_path / "cut" / "summary.json").read_text())["env_steps"] < 1280
        cut = train(folder="cut", **settings)
    finally:
        signal.signal(signal.SIGINT, before)
    assert cut.summary["params_sha256"] == whole["params_sha256"]
    assert 512 in [row["env_steps"] for row in metrics.read(cut.folder)]
