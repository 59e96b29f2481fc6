"""Runs of two real processes with two virtual CPU devices each: they learn, save and end as one does."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import test_faults
from fakes import host

import jaxrl_dist
from jaxrl_dist.runs import checkpoint, metrics
from jaxrl_dist.runs import folder as folders

SCRIPT, SOON_S = test_faults.SCRIPT, 90.0
LOG_STEPS = 1280
HEARTBEAT_S = 4.0
ANAKIN = (*test_faults.FLAGS, "--layout=anakin", "--env=toy:walk", "--layout.num_devices=4")
SEBULBA = (
    *(*test_faults.FLAGS, "--layout=sebulba", "--env=toy:walk", "--layout.policy_lag=1"),
    *("--learner.minibatches=1", "--learner.shuffle=False"),
)
DQN = (
    *("--system=dqn", "--env=toy:walk", "--layout=anakin", "--layout.num_devices=4", "--env.num_envs=8"),
    *("--layout.unroll_length=4", "--replay.capacity=1024", "--replay.min_size=64", "--replay.batch_size=32"),
    *("--replay.samples_per_insert=2", "--network.hidden_sizes=16", "--log.interval_steps=320"),
    *("--evaluation.interval_steps=640", "--evaluation.episodes=4"),
)
R2D2 = (
    *("--system=r2d2", "--env=toy:walk", "--layout=anakin", "--layout.num_devices=4", "--env.num_envs=8"),
    *("--layout.unroll_length=4", "--replay.capacity=1024", "--replay.min_size=64", "--replay.batch_size=8"),
    *("--replay.samples_per_insert=2", "--network.torso=mlp", "--network.hidden_sizes=16", "--network.core_size=8"),
    *("--network.head_size=8", "--agent.burn_in=3", "--agent.taught=6", "--agent.n_step=2", "--steps=1280"),
    *("--log.interval_steps=320", "--evaluation.interval_steps=640", "--evaluation.episodes=4"),
)
LSTM = ("--network.core=lstm", "--network.core_size=8")
LONG = ("--steps=100_000_000",)
# Times, and what follows them: everything else in a record is the same.
TIMED = ("wall_s", "steps_per_second", "queue_depth", "bottleneck", "share_", "bytes_per_second", "inference_batch")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def start(
    folder: pathlib.Path,
    *flags: str,
    count: int = 2,
    devices: int = 2,
    fake: str = "",
    cwd: Sequence[str] = (".", "."),
    only: Sequence[int] = (),
    own: Sequence[Sequence[str]] = (),
    environments: Sequence[dict[str, str]] = (),
) -> list["subprocess.Popen[str]"]:
    """Starts the processes of a run.

    Args:
        folder: of the run.
        *flags: of all processes.
        count: number of processes.
        devices: of each.
        fake: how the environments of process 1 misbehave, see `fakes/in_processes.py`.
        cwd: folders that the processes run in.
        only: indices of those that are started, all by default.
        own: flags of each that say which process it is; by default number, index and address.
        environments: variables of each.
    """
    address, started = f"127.0.0.1:{free_port()}", []
    environment = {
        **os.environ,
        **{"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)},
        "PYTHONPATH": f"{test_faults.ROOT}{os.pathsep}{test_faults.ROOT / 'tests'}",
        **{"PYTHONUNBUFFERED": "1", "XDG_CACHE_HOME": str(test_faults.ROOT / ".pytest_cache" / "xdg")},
    }
    for index in only or range(count):
        joining = [f"--processes={count}", f"--process_index={index}", f"--coordinator={address}"] * (count > 1)
        joining += [f"--heartbeat_s={HEARTBEAT_S}"] * (count > 1)
        joining = [*own[index]] if own else joining
        program = [str(test_faults.ROOT / "tests" / "fakes" / "in_processes.py"), fake] if fake else [str(SCRIPT)]
        system = [] if any(flag.startswith("--system=") for flag in flags) else ["--system=ppo"]
        command = [sys.executable, *program, *system, *flags, f"--out={folder}", *joining]
        pipe: Any = subprocess.PIPE
        given = environment | (environments[index] if environments else {})
        place = cwd[index] if count == len(cwd) else "."
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=given, cwd=place))
    return started


def ends(started: list["subprocess.Popen[str]"]) -> list[tuple[int, str, str]]:
    """Waits for processes; returns exit code, output and errors of each."""
    outputs = [process.communicate(timeout=SOON_S) for process in started]
    return [(process.returncode, *texts) for process, texts in zip(started, outputs, strict=True)]


def train(folder: pathlib.Path, *flags: str, count: int = 2, devices: int = 2) -> dict[str, Any]:
    """Trains to the end; returns the summary."""
    for code, output, error in ends(start(folder, *flags, count=count, devices=devices)):
        assert (code, error) == (0, ""), (output, error)
    return json.loads((folder / "summary.json").read_text())


def params_of(folder: pathlib.Path) -> list[np.ndarray]:
    """Reads the final parameters of a run in this one process; sums with what rounding left out of them."""
    contents = json.loads((folder / "checkpoints" / "latest" / "contents.json").read_text())
    template = {tuple(leaf[0].split("/")): np.zeros(leaf[1], leaf[2]) for leaf in contents["leaves"]}
    tree: dict[str, Any] = {}
    for path, array in template.items():
        *inner, last = path
        branch = tree
        for name in inner:
            branch = branch.setdefault(name, {})
        branch[last] = array
    restored, _ = checkpoint.restore(folder / "checkpoints" / "latest", tree)
    leaves = []

    def walk(branch: Any) -> None:
        if "lost" in branch:
            parts = zip(("rows", "mean", "m2"), sorted(branch["lost"]), strict=True)
            branch = {name: np.float64(branch[name]) + branch["lost"][index] for name, index in parts}
        for name in sorted(branch):
            walk(branch[name]) if isinstance(branch[name], dict) else leaves.append(branch[name])

    walk(restored)
    return leaves


def untimed(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in one.items() if not k.startswith(TIMED)} for one in metrics.read(folder)]


def assert_alike(one: pathlib.Path, other: pathlib.Path) -> None:
    """Checks that two runs have the same parameters and records, but for rounding and times."""
    for left, right in zip(params_of(one), params_of(other), strict=True):
        np.testing.assert_allclose(left, right, atol=2e-6)
    left_records, right_records = untimed(one), untimed(other)
    assert [record.keys() for record in left_records] == [record.keys() for record in right_records]
    for left, right in zip(left_records, right_records, strict=True):
        for name, value in left.items():
            if isinstance(value, str):
                assert value == right[name]
            else:
                np.testing.assert_allclose(value, right[name], rtol=1e-3, atol=1e-4, err_msg=name)


def listens(pid: int) -> list[str]:
    """Returns the addresses that a process and its children listen at, as the kernel writes them."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    folders = [pathlib.Path(f"/proc/{one}/fd") for one in (pid, *children)]
    links = {os.path.basename(os.readlink(entry)) for folder in folders for entry in folder.iterdir()}
    tables = (pathlib.Path(f"/proc/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6"))
    rows = [line.split() for lines in tables for line in lines]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]


@pytest.mark.parametrize(
    ("flags", "alone"),
    [
        pytest.param(ANAKIN, (), id="anakin"),
        pytest.param(
            SEBULBA,
            ("--layout.num_actors=2", "--layout.learner_devices=cpu:0,cpu:1"),
            id="sebulba",
            marks=pytest.mark.slow,
        ),
        pytest.param((*ANAKIN, *LSTM), (), id="anakin-lstm", marks=pytest.mark.slow),
        pytest.param(R2D2, (), id="anakin-r2d2", marks=pytest.mark.slow),
        pytest.param(
            # Adam divides by the sizes of gradients, and so makes of rounding a step.
            (*SEBULBA, "--system=impala", "--learner.optimizer=sgd"),
            ("--layout.num_actors=2", "--layout.learner_devices=cpu:0,cpu:1"),
            id="sebulba-impala",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_processes_train_as_one(flags: tuple[str, ...], alone: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    two, one = train(tmp_path / "two", *flags), train(tmp_path / "one", *flags, *alone, count=1, devices=4)
    assert_alike(tmp_path / "two", tmp_path / "one")
    assert {**two, "params_sha256": ""}.keys() == one.keys()
    assert two["num_devices"] == one["num_devices"]
    names = [path.name for path in (tmp_path / "two").rglob("*")]
    assert names.count("summary.json") == names.count("config.json") == names.count("metrics.jsonl") == 1
    assert not test_faults.temporary_folders(tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_fault_of_one_process_ends_all_with_its_message(how: str, tmp_path: pathlib.Path) -> None:
    started = start(tmp_path, *SEBULBA, *LONG, "--layout.timeout_s=2", fake=how)
    assert test_faults.wait_for(started[0], "compiled in")
    (code, _, error), (other_code, _, other) = ends(started)
    assert code == other_code == 1
    message = {"raises": "the floor is missing", "hangs": "actor 0"}[how]
    assert message in error and message in other
    assert error.startswith("train.py: process 1: ") and error.count("\n") == other.count("\n") == 1
    # Where the environments were lost the run goes on with new ones.
    (newest, *_) = checkpoint.latest(tmp_path / "checkpoints")
    checkpoint.verify(newest)
    # No chunk begins after the one with the fault, and chunks end at log lines; a lag of one lets actors be ahead.
    learned = int(newest.name.removeprefix("step_"))
    assert learned <= -(-int((tmp_path / "misbehaved").read_text()) // LOG_STEPS) * LOG_STEPS
    assert not test_faults.temporary_folders(tmp_path)


@pytest.mark.slow
def test_an_environment_that_hangs_in_evaluation_ends_all_and_what_was_learned_is_saved(tmp_path: pathlib.Path) -> None:
    settings = ("--layout.timeout_s=2", "--checkpoint.interval_s=10_000")
    for code, _, error in ends(start(tmp_path, *SEBULBA, *settings, fake="hangs_evaluating")):
        assert code == 1 and error.count("\n") == 1, error
        assert error.startswith("train.py: ") and "fake:walk gave nothing for 2 s" in error, error
    (only,) = checkpoint.latest(tmp_path / "checkpoints")
    checkpoint.verify(only)
    # The first evaluation is at step 0, the second one at this.
    assert only.name == f"step_{2560:012d}"


@pytest.mark.slow
def test_a_fault_where_environments_are_saved_keeps_the_checkpoint_before(tmp_path: pathlib.Path) -> None:
    outputs = ends(start(tmp_path, *SEBULBA, *LONG, fake="raises_exactly"))
    for code, _, error in outputs:
        told, note = error.splitlines()
        assert code == 1 and "the floor is missing" in told, error
        assert "what was learned since the last checkpoint could not be saved" in note, error
    assert "process 1: " in outputs[0][2]
    (newest, *_) = checkpoint.latest(tmp_path / "checkpoints")
    checkpoint.verify(newest)
    assert not test_faults.temporary_folders(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [("writes_for_ever", "process 1: it lives, but is not done after 2 s"), ("lost_folder", "share its folder")],
)
def test_a_folder_that_is_slow_or_away_ends_all_and_keeps_the_checkpoint_before(
    how: str, words: str, tmp_path: pathlib.Path
) -> None:
    outputs = ends(start(tmp_path, *ANAKIN, *LONG, fake=how))
    for code, _, error in outputs:
        assert code == 1 and "cannot save" in error and words in error and error.count("\n") == 1, outputs
    (only,) = checkpoint.latest(tmp_path / "checkpoints")
    checkpoint.verify(only)
    assert not test_faults.temporary_folders(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_signal_to_any_process_saves_all(index: int, tmp_path: pathlib.Path) -> None:
    started = start(tmp_path, *ANAKIN, *LONG)
    test_faults.wait_for_checkpoints(tmp_path)
    # The coordinator asks nobody who he is, so no process listens at every interface, whose address is zeros.
    listening = [address for process in started for address in listens(process.pid)]
    assert listening and not any(set(address) == {"0"} for address in listening), listening
    started[index].send_signal(signal.SIGTERM)
    for code, _, error in ends(started):
        assert (code, error) == (143, "")
    summary = test_faults.summary_of(tmp_path)
    assert summary["reason"] == "stopped"
    assert checkpoint.latest(tmp_path / "checkpoints")[0].name == f"step_{summary['env_steps']:012d}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "index", "number"),
    [
        pytest.param(ANAKIN, 0, signal.SIGKILL, id="anakin-0"),
        pytest.param(ANAKIN, 1, signal.SIGKILL, id="anakin-1"),
        pytest.param(SEBULBA, 1, signal.SIGKILL, id="sebulba-1"),
        pytest.param(ANAKIN, 0, signal.SIGSTOP, id="anakin-0-stopped"),
        pytest.param(SEBULBA, 1, signal.SIGSTOP, id="sebulba-1-stopped"),
    ],
)
def test_a_lost_process_ends_the_others_and_the_run_goes_on(
    flags: tuple[str, ...], index: int, number: int, tmp_path: pathlib.Path
) -> None:
    flags = (*flags, "--steps=64_000")
    whole = train(tmp_path / "whole", *flags)
    started = start(tmp_path / "cut", *flags)
    test_faults.wait_for_checkpoints(tmp_path / "cut")
    started[index].send_signal(number)
    ((code, _, error),) = ends([started[1 - index]])
    assert code == 1 and f"process {index} is gone" in error and error.count("\n") == 1, error
    # One that stood still, and goes on when the others have ended, ends too.
    started[index].send_signal(signal.SIGCONT)
    ((code, _, error),) = ends([started[index]])
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 1), error
    assert error.count("\n") == (number == signal.SIGSTOP), error
    assert train(tmp_path / "cut", *flags)["params_sha256"] == whole["params_sha256"]
    assert not test_faults.temporary_folders(tmp_path / "cut")


@pytest.mark.slow
def test_a_replay_goes_on_in_other_numbers_of_processes(tmp_path: pathlib.Path) -> None:
    for count, begun in ((2, "2"), (1, "whole")):
        train(tmp_path / begun, *DQN, "--steps=1280", count=count, devices=4 // count)
    for count in (1, 4):
        shutil.copytree(tmp_path / "2", tmp_path / str(count))
    for folder, count in (("whole", 1), ("2", 2), ("1", 1), ("4", 4)):
        summary = train(tmp_path / folder, *DQN, "--steps=2560", count=count, devices=4 // count)
        assert summary["resumed_from"] == 1280
        assert_alike(tmp_path / folder, tmp_path / "whole")


@pytest.mark.slow
def test_several_seeds_and_parameters_of_another_run(tmp_path: pathlib.Path) -> None:
    flags = (*ANAKIN, "--num_seeds=2", "--steps=2560")
    train(tmp_path / "first", *flags)
    train(tmp_path / "two", *flags, f"--init_from={tmp_path / 'first'}")
    train(tmp_path / "one", *flags, f"--init_from={tmp_path / 'first'}", count=1, devices=4)
    assert_alike(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_environments_on_the_cpu_at_a_free_lag(tmp_path: pathlib.Path) -> None:
    flags = (*SEBULBA, "--layout.policy_lag=free", "--layout.num_actors=2", "--evaluation.episodes=3")
    for code, output, error in ends(start(tmp_path, *flags, fake="slow")):
        assert (code, error) == (0, ""), (output, error)
    evaluations = [one for one in metrics.read(tmp_path) if one["kind"] == "eval"]
    assert [one["eval_return"] for one in evaluations] == [host.LENGTH] * len(evaluations)
    assert {one["eval_episodes"] for one in evaluations} == {3}
    rows = sum(one["episodes"] * host.LENGTH for one in metrics.read(tmp_path) if one["kind"] == "train")
    assert 0.8 * 12800 < rows <= 12800


@pytest.mark.slow
def test_numbers_that_are_not_finite_end_all(tmp_path: pathlib.Path) -> None:
    started = start(tmp_path, *ANAKIN, "--learner.learning_rate=1e38", "--learner.max_grad_norm=1e38")
    (code, _, error), (other_code, _, other) = ends(started)
    assert code == other_code == 1
    for text in (error, other):
        assert "not finite in iteration" in text and text.count("\n") == 1, text
    sums = jaxrl_dist.replay_failure(tmp_path)
    assert not all(np.isfinite(values).all() for values in sums.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "words"),
    [
        pytest.param(({}, {"cwd": True}), ("process 1 does not see the folder",), id="folder"),
        pytest.param(({"--layout.num_devices=3"}, {}), ("--layout.num_devices=3", "valid: 0, 2, 4"), id="devices"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_training(own: Any, words: Any, tmp_path: pathlib.Path) -> None:
    flags, (_, elsewhere) = ((*ANAKIN, *own[0]), own)
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    folders = [str(tmp_path / str(index if elsewhere else 0)) for index in range(2)]
    outputs = ends(start(pathlib.Path("run"), *flags, cwd=folders))
    for code, _, error in outputs:
        assert code == 2 and error.count("\n") == 1 and all(word in error for word in words), error
    assert not list(tmp_path.rglob("run"))


@pytest.mark.slow
def test_a_launched_run_is_of_several_processes_and_ends_as_one(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(test_faults.ROOT)}
    flags = [*test_faults.FLAGS, "--env=toy:walk", "--layout=anakin", *LONG, f"--out={tmp_path}"]
    command = [sys.executable, "-m", "jaxrl_dist", "launch", "--processes=2", "--", "train", *flags]
    launched = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    test_faults.wait_for_checkpoints(tmp_path)
    launched.send_signal(signal.SIGTERM)
    output, error = launched.communicate(timeout=SOON_S)
    assert (launched.returncode, error) == (143, "")
    assert output.count("stopped and saved") == 1
    assert test_faults.summary_of(tmp_path)["num_devices"] == 2


@pytest.mark.slow
def test_a_cluster_says_who_is_who_and_actors_stay_in_their_processes(tmp_path: pathlib.Path) -> None:
    """SLURM as JAX reads it; the port follows the number of the job."""
    job = {"SLURM_JOB_ID": str(free_port()), "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    of_each = [{**job, "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)} for index in range(2)]
    started = start(tmp_path, *SEBULBA, own=[["--processes=auto"]] * 2, environments=of_each)
    for code, output, error in ends(started):
        assert (code, error) == (0, ""), (output, error)
    ((code, _, error),) = ends(start(tmp_path, *SEBULBA, "--steps=25600", count=1))
    assert (code, error.count("\n")) == (2, 1) and "--processes=1" in error and "2" in error, error


@pytest.mark.slow
@pytest.mark.parametrize(("index", "words"), [(0, "not all 2 processes have begun"), (1, "start process 0 there")])
def test_a_process_that_is_alone_says_who_is_missing(index: int, words: str, tmp_path: pathlib.Path) -> None:
    ((code, _, error),) = ends(start(tmp_path / "run", *SEBULBA, fake="alone", only=[index]))
    assert code > 0 and words in error and error.count("\n") == 1, error
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_taken_port_or_folder_is_refused_by_all(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        own = [f"--processes=2 --process_index=0 --coordinator=127.0.0.1:{taken.getsockname()[1]}".split()]
        ((code, _, error),) = ends(start(tmp_path, *ANAKIN, only=[0], own=own))
    assert code == 2 and "cannot be listened at: Address already in use" in error and error.count("\n") == 1, error
    with folders.lock(tmp_path):
        for code, _, error in ends(start(tmp_path, *ANAKIN)):
            assert code == 2 and "is in use by a running trainer" in error and error.count("\n") == 1, error


@pytest.mark.slow
def test_callbacks_of_process_0_end_the_run_in_all(tmp_path: pathlib.Path) -> None:
    code = """
        import sys, jax
        import jaxrl_dist
        from jaxrl_dist import processes
        index, address, folder = int(sys.argv[1]), *sys.argv[2:]
        jax.config.update("jax_num_cpu_devices", 1)
        flags = {"env.num_envs": 8, "layout.unroll_length": 16, "learner.minibatches": 2, "network.hidden_sizes": (16,)}

        def stop(record):
            print("called", flush=True)
            return "enough" if record["env_steps"] >= 256 else None

        def fail(record):
            raise LookupError("no such record")

        with processes.begun(processes.Group("2", index, address)):
            for callback in (stop, fail):
                try:
                    run = jaxrl_dist.train(
                        "ppo", "toy:walk", steps=2048, out=folder, settings=flags, callbacks=[callback]
                    )
                    print(run.reason, flush=True)
                except Exception as error:
                    print(type(error).__name__, error, flush=True)
    """
    address = f"127.0.0.1:{free_port()}"
    started = [test_faults.start_code(code, index, address, tmp_path) for index in range(2)]
    (first, output, error), (second, other, other_error) = ends(started)
    assert first == second == 0, (error, other_error)
    said = [line for line in output.splitlines() if not line.startswith("[Gloo]")]
    assert {*said[:-2]} == {"called"} and said[-2:] == ["callback stop: enough", "LookupError no such record"], said
    said = [line for line in other.splitlines() if not line.startswith("[Gloo]")]
    assert said == ["callback stop: enough", "ProcessFault process 0: no such record"], said
