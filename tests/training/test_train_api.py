"""The package as a library: train, load, evaluate and act; trainers side by side in one process."""

import collections
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from typing import Any

import conftest
import jax
import marks
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxrl_dist
from jaxrl_dist import commands, errors
from jaxrl_dist.commands import evaluate as evaluate_command
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import memory_use
from jaxrl_dist.runs import checkpoint, software
from jaxrl_dist.training import assemble as assembles
from jaxrl_dist.training import policy, runner

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARTPOLE = "gymnax:CartPole-v1"
KEYS = {
    *("system", "env", "layout", "env_steps", "valid_steps", "learner_steps", "steps_per_second", "wall_s"),
    *("compile_s", "eval_return_mean", "eval_return_iqm", "eval_return_ci95", "eval_episodes", "seconds_to_best"),
    *("num_seeds", "resumed_from", "params_sha256"),
}


EPISODES = {"evaluation.episodes": 4}


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    return functools.partial(train, env=CARTPOLE, **EPISODES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> jaxrl_dist.Run:
    return conftest.train_in(tmp_path_factory.mktemp("run"), env=CARTPOLE, **EPISODES)


def test_each_combination_of_a_sweep_is_evaluated_in_the_same_episodes_by_seed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = conftest.train_in(tmp_path, env="toy:walk", sweep="agent.discount=0.9,0.8,0.7", num_seeds=2, **EPISODES)
    assemble, seen = assembles.assemble, []

    def spied(*arguments: Any, **more: Any) -> Any:
        parts = assemble(*arguments, **more)

        def evaluate(params: Any, keys: jax.Array, index: int) -> Any:
            seen.append(np.asarray(jax.random.key_data(keys)).tolist())
            return parts.evaluate(params, keys, index)

        return parts._replace(evaluate=evaluate)

    monkeypatch.setattr(assembles, "assemble", spied)
    policy.evaluate(swept.folder, 2, 0, "latest", {})
    ((first, second, *others),) = seen
    assert first != second and others == [first, second, first, second]


@pytest.mark.parametrize("given", [pathlib.Path("runs/here"), "runs/here"])
def test_a_folder_is_a_text_or_a_path(given: str | pathlib.Path) -> None:
    settings = assembles.resolve({"system": "ppo", "env": "toy:walk", "out": given})[0]
    assert settings["out"] == "runs/here" and type(settings["out"]) is str
    for wrong in (b"runs/here", None):
        with pytest.raises(errors.UsageError, match=f"out={wrong!r}: expected text"):
            assembles.resolve({"system": "ppo", "env": "toy:walk", "out": wrong})


@pytest.mark.parametrize(("slot", "other"), [("latest", "best"), ("best", "latest")])
def test_parameters_that_cannot_be_read_name_the_others_of_the_run(
    slot: str, other: str, run: jaxrl_dist.Run, tmp_path: pathlib.Path
) -> None:
    copy = shutil.copytree(run.folder, tmp_path / "copy")
    damaged = copy / "checkpoints" / slot
    (damaged / "manifest.json").write_text("")
    with pytest.raises(errors.CheckpointError, match=f"{slot}: manifest.json .* {other} parameters"):
        jaxrl_dist.load(copy, checkpoint=slot)
    shutil.rmtree(damaged)
    with pytest.raises(errors.UsageError, match=f"no {slot} parameters; .* {other} parameters"):
        jaxrl_dist.load(copy, checkpoint=slot)
    shutil.rmtree(copy / "checkpoints" / other)
    with pytest.raises(errors.UsageError, match=f"no {slot} parameters$"):
        jaxrl_dist.load(copy, checkpoint=slot)


def test_a_folder_is_read_where_it_was_written(
    run: jaxrl_dist.Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(run.folder.parent))
    at_home = f"~/{run.folder.name}"
    assert jaxrl_dist.load(at_home).env_steps == 1280
    assert jaxrl_dist.evaluate(at_home, episodes=2)["env_steps"] == 1280
    with pytest.raises(errors.UsageError, match="no failure"):
        jaxrl_dist.replay_failure(at_home)
    conftest.train_in(tmp_path / "from", env=CARTPOLE, steps=128, init_from=at_home, **EPISODES)


def test_a_run_has_a_complete_summary_and_folder(run: jaxrl_dist.Run, tmp_path: pathlib.Path) -> None:
    assert run.reason == "finished" and set(run.summary) >= KEYS
    assert run.summary == json.loads((run.folder / "summary.json").read_text())
    assert (run.summary["env_steps"], run.summary["learner_steps"]) == (1280, 10)
    assert 0 < run.summary["valid_steps"] < 1280
    assert run.summary["resumed_from"] is None
    names = {path.name.split(".out")[0] for path in run.folder.iterdir()}
    assert names >= {"config.json", "metrics.jsonl", "events", "checkpoints", "learning_curve.png", "summary.json"}
    assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"best", "latest", "step_000000001280"}
    contents = json.loads((run.folder / "config.json").read_text())
    assert contents["settings"]["steps"] == {"value": 1280, "origin": "flag", "tag": "tunable", "default": 1_000_000}
    assert software.recorded(contents) == [{"commit": software.commit(), "versions": software.versions()}]


def test_a_run_shows_itself_only_where_that_is_asked_for(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for display in (False, True):
        jaxrl_dist.train("ppo", "toy:walk", out=str(tmp_path / "run"), display=display, settings=conftest.SMALL["ppo"])
        shown = capsys.readouterr().out
        assert bool(shown) is display
        # The second call finds nothing left to train.
        assert shown.count("nothing left to train") == display


def test_the_same_run_again_is_the_same(run: jaxrl_dist.Run, train: conftest.Train) -> None:
    assert train().summary["params_sha256"] == run.summary["params_sha256"]


@pytest.mark.slow
def test_evaluations_are_identical_also_from_the_script(run: jaxrl_dist.Run) -> None:
    first, second, other = (policy.evaluate(run.folder, 8, seed, "best", {}) for seed in (3, 3, 4))
    assert json.dumps(first) == json.dumps(second) != json.dumps(other)
    sampled = policy.evaluate(run.folder, 8, 3, "best", {"agent.evaluation_action": "sample"})
    assert sampled["eval_return"] != first["eval_return"]
    shorter = policy.evaluate(run.folder, 8, 3, "latest", {"env.params.max_steps_in_episode": "5"})
    assert shorter["eval_return"] == 5.0
    done = evaluate_script(f"--run={run.folder}", "--episodes=8", "--seed=3", "--checkpoint=best")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == first
    flags = "--episodes=8", "--seed=3", "--checkpoint=best", "--agent.evaluation_action=sample"
    assert json.loads(evaluate_script(f"--run={run.folder}", *flags).stdout) == sampled


def test_an_evaluation_has_no_key_of_the_training_of_its_seed(
    run: jaxrl_dist.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, make = [], assembles.assemble

    def assemble(*arguments: Any) -> Any:
        parts = make(*arguments)

        def evaluate(params: Any, keys: jax.Array, index: int) -> Any:
            given.append(jax.random.key_data(keys[0]).tolist())
            return parts.evaluate(params, keys, index)

        return parts._replace(evaluate=evaluate)

    monkeypatch.setattr(assembles, "assemble", assemble)
    seed = json.loads((run.folder / "config.json").read_text())["settings"]["seed"]["value"]
    policy.evaluate(run.folder, 2, seed, "latest", {})
    # Beside the keys of training, and no child of theirs, such as that of its first environment.
    own = jax.random.fold_in(jax.random.key(seed), len(run_keys.SeedKeys._fields))
    assert given == [jax.random.key_data(jax.random.fold_in(own, 0)).tolist()]
    training = run_keys.seed_keys(jax.random.key(seed))
    assert jax.random.key_data(own).tolist() not in [jax.random.key_data(key).tolist() for key in training]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run=/no/such/run"], "--run=/no/such/run"),
        ([], "--run"),
        (["--run={run}", "--checkpoint=newest"], "latest, best"),
        (["--run={run}", "--episodes=0"], "--episodes=0"),
        (["--run={run}", "--video_steps=9"], "--video_steps=9"),
        (["--run={run}", "--env.params.masscart"], "--env.params.masscart"),
        (["--run={run}", "--nonsense=1"], "nonsense"),
        (["--run={run}", "more"], "more"),
    ],
)
def test_the_script_refuses_a_wrong_command_in_one_line(
    arguments: list[str], message: str, run: jaxrl_dist.Run
) -> None:
    done = evaluate_script(*(argument.format(run=run.folder) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("evaluate.py: ") and message in lines[0]


def test_the_script_finds_modules_where_it_is_started(run: jaxrl_dist.Run, tmp_path: pathlib.Path) -> None:
    contents = json.loads((run.folder / "config.json").read_text())
    contents["settings"]["env"]["value"] = "custom:my_task_here:make"
    (tmp_path / "config.json").write_text(json.dumps(contents))
    (tmp_path / "my_task_here.py").write_text("")
    done = evaluate_script("--run=.", "--trust=my_task_here", folder=tmp_path)
    assert "my_task_here" in done.stderr and "No module named" not in done.stderr


def evaluate_script(*arguments: str, folder: pathlib.Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False, cwd=folder
    )


@pytest.mark.parametrize(("name", "value"), [("steps", 5000), ("env", "toy:walk")])
def test_a_setting_given_twice_is_refused(name: str, value: Any) -> None:
    with pytest.raises(errors.UsageError, match=rf"{name}=\S+ .*{name}={value} "):
        runner.train("ppo", "toy:both", steps=3000, settings={name: value})


def test_a_loaded_policy_acts(run: jaxrl_dist.Run) -> None:
    loaded = jaxrl_dist.load(run.folder)
    assert loaded.env_steps == 1280
    saved = checkpoint.params_sha256(jax.tree.map(lambda x: x[None], loaded.params))
    assert saved == run.summary["params_sha256"]
    _, timestep = jax.vmap(loaded.environment.reset)(jax.random.split(jax.random.key(0), 5))
    output = loaded.act(timestep, loaded.agent.init_carry(5), jax.random.key(1))
    assert output.action.shape == (5,) and set(np.asarray(output.action).tolist()) <= {0, 1}
    for wrong in ({"run": run.folder / "nothing"}, {"run": run.folder, "checkpoint": "oldest"}):
        with pytest.raises(errors.UsageError):
            jaxrl_dist.load(**wrong)
    with conftest.refused("seed_index=1", "0 to 0"):
        jaxrl_dist.load(run.folder, seed_index=1)


def test_a_run_is_evaluated_with_values_as_python_has_them(run: jaxrl_dist.Run) -> None:
    settings = {"env.params.max_steps_in_episode": 5, "agent.evaluation_action": "sample"}
    record = jaxrl_dist.evaluate(run.folder, episodes=4, checkpoint="best", settings=settings)
    assert (record["checkpoint"], record["eval_episodes"], record["eval_return"]) == ("best", 4, 5.0)


def test_too_many_episodes_are_said_in_one_line(
    run: jaxrl_dist.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = assembles.assemble

    def assemble(*arguments: Any) -> Any:
        return make(*arguments)._replace(evaluate=exhaust)

    def exhaust(*_: Any) -> None:
        raise MemoryError("Unable to allocate 64 bytes")

    monkeypatch.setattr(assembles, "assemble", assemble)
    with pytest.raises(memory_use.OutOfMemoryError, match="fewer episodes"):
        jaxrl_dist.evaluate(run.folder)
    assert evaluate_command.main([f"--run={run.folder}"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "fewer episodes" in said


def test_a_corrupt_policy_is_an_error(run: jaxrl_dist.Run, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_bytes((run.folder / "config.json").read_bytes())
    (tmp_path / "checkpoints" / "latest").mkdir(parents=True)
    with pytest.raises(errors.CheckpointError, match=r"manifest\.json"):
        jaxrl_dist.load(tmp_path)
    with conftest.refused(str(tmp_path)):
        jaxrl_dist.replay_failure(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", "\x00", "[" * 100_000, '{"family": [], "settings": {}}'])
def test_a_damaged_config_is_a_usage_error(run: jaxrl_dist.Run, tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(errors.UsageError) as caught:
        policy.evaluate(tmp_path, 1, 0, "latest", {})
    assert "\n" not in str(caught.value)


def test_several_seeds_are_summarised_and_are_the_seeds_alone(run: jaxrl_dist.Run, train: conftest.Train) -> None:
    together = train(num_seeds=3)
    per_seed = together.summary["eval_return_per_seed"]
    assert len(per_seed) == together.summary["num_seeds"] == 3
    assert together.summary["eval_return_mean"] == pytest.approx(np.mean(per_seed))
    low, high = together.summary["eval_return_ci95"]
    assert min(per_seed) <= low <= together.summary["eval_return_iqm"] <= high <= max(per_seed)
    assert (together.summary["eval_interval_over"], together.summary["eval_episodes"]) == ("seeds", 12)
    assert (together.summary["env_steps"], together.summary["learner_steps"]) == (1280, 10)


SEEDS = """
import jax, jaxrl_dist
from jaxrl_dist.runs import checkpoint
for name, seeds in (("together", dict(seed=5, num_seeds=3)), *((str(seed), dict(seed=seed)) for seed in (5, 6, 7))):
    devices, out = jax.devices()[:1], {out!r} + name
    run = jaxrl_dist.train({system!r}, {env!r}, devices=devices, settings={settings!r}, out=out, **seeds)
    for index in range(seeds.get("num_seeds", 1)):
        print(checkpoint.params_sha256(jaxrl_dist.load(run.folder, seed_index=index).params))
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo", "dqn"])
def test_seed_i_of_three_is_that_seed_alone(tmp_path: pathlib.Path, system: str) -> None:
    """To the bit in programs compiled as users do; the tests' quick way rounds by what stands around a sum."""
    settings = {**conftest.SMALL[system], "evaluation.episodes": 2}
    code = SEEDS.format(settings=settings, system=system, env=CARTPOLE, out=f"{tmp_path}/")
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hashes = done.stdout.split()[-6:]
    assert len(set(hashes)) == 3
    assert hashes[:3] == hashes[3:]


@pytest.mark.slow
def test_two_trainers_in_two_threads_are_the_same_runs_alone(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    halves = {"ppo": jax.devices()[:4], "dqn": jax.devices()[4:]}
    four = {"layout.num_devices": 4}
    alone = {
        system: train(system, folder=tmp_path / "alone" / system, devices=halves[system], **four) for system in halves
    }
    together: dict[str, jaxrl_dist.Run] = {}

    def work(system: str) -> None:
        together[system] = train(system, folder=tmp_path / "together" / system, devices=halves[system], **four)

    threads = [threading.Thread(target=work, args=(system,)) for system in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for system in halves:
        assert together[system].summary["num_devices"] == 4
        for name in ("params_sha256", "eval_return_per_seed", "valid_steps"):
            assert together[system].summary[name] == alone[system].summary[name]


def test_a_wrong_setting_is_a_usage_error(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    for settings in ({"agent.discount": 2.0}, {"agent.discont": 0.9}, {"num_seeds": 0}, {"layout.num_devices": 3}):
        with pytest.raises(errors.UsageError) as error:
            train(folder="run", **settings)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run" / "config.json").exists()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Any:
    """The folder of kept programs, empty, and JAX's cache as it was afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compilation_cache.reset_cache()
    yield tmp_path / "jaxrl_dist"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.parametrize(("system", "num_devices"), marks.some([("ppo", 1), ("ppo", 2), ("dqn", 1)], fast=("ppo-1",)))
def test_kept_programs_serve_other_folders_and_seeds(
    system: str, num_devices: int, programs: pathlib.Path, train: conftest.Train
) -> None:
    train = functools.partial(train, system=system, devices=jax.devices()[:num_devices])
    counts: collections.Counter[str] = collections.Counter()

    def count(event: str, **_: Any) -> None:
        counts[event.rpartition("/")[2]] += 1

    jax.monitoring.register_event_listener(count)
    runner.keep_programs()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        train(folder="first", seed=1)
        kept, made = set(programs.iterdir()), counts["cache_misses"]
        again = train(folder="second/deeper", seed=2)
        hits, missed, unchanged = counts["cache_hits"], counts["cache_misses"] - made, set(programs.iterdir()) == kept
        train(folder="third", seed=2, **{"network.hidden_sizes": (24,)})
    finally:
        jax.monitoring.unregister_event_listener(count)
    assert made > 0 and hits > 0 and not missed and unchanged, (made, hits, missed)
    assert again.summary["learner_steps"] > 0
    assert counts["cache_misses"] > made and set(programs.iterdir()) > kept, "another network is another program"


@pytest.mark.slow
def test_kept_programs_of_two_cpu_devices_load_in_fresh_processes(tmp_path: pathlib.Path) -> None:
    """About half of such processes crashed once, with the same jaxlib; see docs/decisions.md, 72."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("scripts make one virtual device per core")
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "XLA_FLAGS": ""}
    flags = {"env": CARTPOLE, "layout": "anakin", "layout.num_devices": 2, "env.num_envs": 16, "steps": 40_000}
    kept = 0
    for seed in range(5):
        named = flags | {"seed": seed, "out": tmp_path / str(seed)}
        command = [sys.executable, "scripts/train.py", *(f"--{name}={value}" for name, value in named.items())]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        before, kept = kept, len(list((tmp_path / "cache" / "jaxrl_dist").iterdir()))
    # What took long enough to be kept differs a little from process to process.
    assert before > 3 and kept <= before + 2


def test_an_environment_that_fails_in_evaluation_is_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any) -> None:
        raise errors.EnvironmentFault("fake:walk gave nothing for 1 s")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(policy, "evaluate", fail)
    assert commands.run(evaluate_command.main, "evaluate", [f"--run={tmp_path}"]) == 1
    assert capsys.readouterr().err == "evaluate.py: fake:walk gave nothing for 1 s\n"


def test_an_environment_of_gymnasium_is_a_class_a_function_or_an_instance(tmp_path: pathlib.Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from fakes import registered

    few = {**conftest.SMALL["ppo"], "env.params.workers": 1, "evaluation.episodes": 2, "steps": 128}
    given = functools.partial(registered.short_cart, steps=4)
    run = jaxrl_dist.train("ppo", given, out=str(tmp_path / "function"), settings=few)
    assert run.summary["env"] == "gymnasium:fakes.registered:short_cart" and run.summary["eval_return_mean"] == 4
    again = jaxrl_dist.load(run.folder, trust=["fakes.registered"])
    assert again.environment.spec.time_limit == 4
    with conftest.refused("fakes.registered", "--trust=fakes.registered"):
        jaxrl_dist.load(run.folder)
    made = gymnasium.make("CartPole-v1", max_episode_steps=3)
    run = jaxrl_dist.train("ppo", made, out=str(tmp_path / "instance"), settings=few)
    assert run.summary["env"] == "gymnasium:CartPole-v1" and run.summary["eval_return_mean"] == 3
