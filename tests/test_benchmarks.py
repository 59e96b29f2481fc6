"""Tests of the benchmark harness with toy workers that import no jax: ratios, order, dead and silent workers."""

import os
import pathlib
import re
import subprocess
import sys
import time

import conftest
import pytest

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"

TOY = """
import sys, time, types
sys.path.insert(0, {benchmarks!r})
import worker
clock = [0.0]
worker.time = types.SimpleNamespace(perf_counter=lambda: clock[0])
def work():
    time.sleep(0.02)
    clock[0] += 0.02
channel = worker.open_channel()
print("a library prints to standard output")
worker.announce(channel, worker.Startup(0.1, 0.2, 0.3), worker.versions())
calls = 0
def chunk():
    global calls
    calls += 1
    with open({log!r}, "a") as log:
        log.write({name!r})
    {body}
    return {steps}
worker.serve(channel, chunk, {evaluate})
"""


@pytest.fixture
def pairs(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pairs

    return pairs


@pytest.fixture
def toy(pairs, tmp_path):
    def make(name, steps, body="work()", evaluate="None"):
        log = str(tmp_path / "order")
        code = TOY.format(benchmarks=str(BENCHMARKS), log=log, name=name, steps=steps, body=body, evaluate=evaluate)
        return pairs.Side(name, (sys.executable, "-c", code))

    return make


def test_ratio_of_equal_chunks_is_the_ratio_of_their_steps(pairs, toy, tmp_path):
    result = pairs.compare(toy("A", 300), toy("B", 100), rounds=7)
    assert len(result.chunks_a) == len(result.chunks_b) == 7
    assert [chunk.steps for chunk in result.chunks_a] == [300] * 7
    assert result.ratio == pytest.approx((3.0, 3.0, 3.0))
    assert result.rate_a == pytest.approx(300 / 0.02)
    assert result.ready_a["compile_s"] == 0.2
    assert result.ready_b["ready_s"] > 0.0
    assert (tmp_path / "order").read_text() == "ABBAABBAABBAAB"


def test_interval_covers_the_median_and_shrinks_with_agreement(pairs):
    noisy = pairs.bootstrap_ratio([1.0, 1.5, 2.0, 2.5, 3.0, 1.2, 2.8])
    assert noisy.median == 2.0
    assert 1.0 <= noisy.low < 2.0 < noisy.high <= 3.0
    assert pairs.bootstrap_ratio([1.5] * 7) == (1.5, 1.5, 1.5)
    assert pairs.bootstrap_ratio([1.0, 2.0, 3.0]) == pairs.bootstrap_ratio([1.0, 2.0, 3.0])


def test_dead_worker_is_named_with_its_own_error(pairs, toy):
    dying = toy("B", 1, body="1 / (2 - calls) and work()")
    with pytest.raises(pairs.WorkerError, match=r"(?s)^B .*\b1;.*ZeroDivisionError"):
        pairs.compare(toy("A", 1), dying)


def test_worker_that_never_gets_ready_is_an_error(pairs):
    with pytest.raises(pairs.WorkerError, match=r"(?s)^mute .*\b3;.*why"):
        pairs.Worker(
            pairs.Side("mute", (sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"))
        )
    with pytest.raises(pairs.WorkerError, match="^absent: .*/no/such"):
        pairs.Worker(pairs.Side("absent", ("/no/such",)))
    with pytest.raises(pairs.WorkerError, match="^chatty .*hello.*'ready'"):
        pairs.Worker(pairs.Side("chatty", (sys.executable, "-c", "print('hello'); input()")))


@pytest.mark.slow
def test_hanging_worker_is_an_error_within_its_timeout(pairs, toy):
    started = time.perf_counter()
    with pytest.raises(pairs.WorkerError, match=r"^B .*\b0\.5 s\b"):
        pairs.compare(toy("A", 1), toy("B", 1, body="time.sleep(60)"), chunk_timeout_s=0.5)
    assert time.perf_counter() - started < conftest.SOON_S


def test_impossible_time_is_refused(pairs, toy):
    lying = "worker.report(channel, 10, 5.0)"
    with pairs.Worker(toy("liar", 1, body=lying)) as worker, pytest.raises(pairs.WorkerError, match="^liar: .*5\.0"):
        worker.train_chunk()


def test_seconds_to_a_threshold_counts_training_alone(pairs, toy):
    improving = toy("A", 10, evaluate="lambda: 300.0 if calls in (1, 3, 4, 5) else 0.0")
    seconds, steps = pairs.seconds_to(improving, threshold=300.0, limit_steps=1000, consecutive=2)
    assert steps == 40
    assert seconds == pytest.approx(0.08)
    assert pairs.seconds_to(toy("A", 10, evaluate="lambda: 0.0"), threshold=1.0, limit_steps=30) is None


def test_a_worker_without_a_device_says_that_it_held_nothing(pairs, toy):
    with pairs.Worker(toy("A", 10)) as worker:
        assert worker.peak_bytes() == 0
        assert worker.train_chunk().steps == 10


def test_workers_that_start_at_once_come_in_order_and_a_dead_one_is_its_error(pairs, toy):
    sides = [toy("A", 1), pairs.Side("dead", (sys.executable, "-c", "1")), toy("C", 3)]
    started = pairs.in_turn(sides, starts=2)
    first, dead = next(started), next(started)
    assert first.train_chunk().steps == 1
    with pytest.raises(pairs.WorkerError, match="dead"):
        pairs.alive(dead)
    assert pairs.alive(next(started)).train_chunk().steps == 3
    # Those of one start ended before the next ones began.
    assert first._process.poll() is not None
    assert next(started, None) is None


def test_sides_of_a_work_take_turns_and_an_unknown_work_is_refused(pairs, toy, monkeypatch, tmp_path, capsys):
    import graphs
    import run
    import scaling

    monkeypatch.setattr(scaling, "find_device", lambda python: "gpu: toy")
    monkeypatch.setattr(run, "find_side", lambda name, flags, options: toy(name, 10 * len(flags)))
    assert graphs.main(["--works=dqn,ppo_lstm", "--rounds=2", "--starts=2", f"--out={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| dqn", "| ppo_lstm"]
    assert all(line.count("1.00 [1.00, 1.00]") == len(graphs.SIDES) - 1 for line in lines[2:])
    assert len({line.count("|") for line in lines}) == 1
    with pytest.raises(SystemExit):
        graphs.main(["--works=dqnn"])
    assert "dqnn" in capsys.readouterr().err


def test_the_sides_of_graphs_differ_by_what_they_put_into_them():
    import graphs

    lists = [flag.removeprefix(graphs.FLAG).split(",") for flag in graphs.SIDES.values()]
    assert [("WHILE" in one, "CONVOLUTION" in one) for one in lists] == [
        (True, True),
        (True, False),
        *[(False, False)] * 2,
    ]
    assert lists[-1] == [""]


def test_bodies_without_a_gpu_are_not_measured_and_one_line_says_so(pairs, monkeypatch, tmp_path, capsys):
    import bodies
    import bodies_returns
    import scaling

    monkeypatch.setattr(scaling, "find_device", lambda python: "cpu: cpu")
    assert bodies.main([f"--out={tmp_path}"]) == 0
    assert capsys.readouterr().out.count("not measured: no GPU") == len(bodies.TASKS)
    assert bodies_returns.main([f"--out={tmp_path}"]) == 0
    assert capsys.readouterr().out == "not measured: no GPU (cpu: cpu)\n"
    assert not list(tmp_path.iterdir())


def test_bodies_stop_at_memory_s_end_and_measure_nothing_twice(pairs, monkeypatch, tmp_path, capsys):
    import bodies
    import scaling

    started = []

    class Worker:
        ready = {"compile_s": 1.5}

        def __init__(self, side, ready_timeout_s):
            started.append(side.name)
            if any(flag.endswith("num_envs=512") for flag in side.argv):
                raise pairs.WorkerError("ours ended with code 1: RESOURCE_EXHAUSTED")

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731
        train_chunk = lambda self, timeout_s: pairs.Chunk(1000, 0.5)  # noqa: E731
        peak_bytes = lambda self: 256_000  # noqa: E731

    monkeypatch.setattr(scaling, "find_device", lambda python: "gpu: toy")
    monkeypatch.setattr(pairs, "Worker", Worker)
    flags = ["--tasks=ant", "--sizes=256,512,1024", "--rounds=1", f"--out={tmp_path}"]
    assert bodies.main(flags) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0] == "| ant | 256 | 2,000 | 2,000 | 1.00 | 1,000 | 1.5 s | gpu: toy |"
    assert len(lines) == 2 and "not measured: ours ended with code 1: RESOURCE_EXHAUSTED" in lines[1]
    assert started == ["ours", "raw_bodies", "ours"]
    assert bodies.main(flags) == 0
    assert started == ["ours", "raw_bodies", "ours", "ours"]


def test_table_says_what_it_could_not_measure(pairs, tmp_path, capsys):
    import run

    out = tmp_path / "bench"
    assert run.main(["--rows=dqn_rejax,ant", f"--peers={tmp_path / 'none'}", f"--out={out}"]) == 0
    table = (out / "table.md").read_text()
    assert table.count("not measured") == 3
    assert len((out / "results.jsonl").read_text().splitlines()) == 3
    assert run.main(["--rows=nothing"]) == 2
    assert "cartpole_small_rejax" in capsys.readouterr().err
    assert run.main(["--rounds=0"]) == 2


def test_a_row_without_its_clone_says_where_to_put_it(pairs, tmp_path, capsys):
    import run

    (tmp_path / "purejaxrl").mkdir()
    (tmp_path / "purejaxrl" / "installed.txt").touch()
    flags = ["--rows=dqn_purejaxrl", f"--peers={tmp_path}", f"--out={tmp_path}"]
    assert run.main(flags) == 0
    assert "not measured" in (line := capsys.readouterr().out) and "no clone of PureJaxRL: --clones=FOLDER" in line
    assert run.main([*flags, f"--clones={tmp_path}"]) == 0
    assert f"no clone of PureJaxRL in {tmp_path}: --clones=FOLDER" in capsys.readouterr().out
    clone = tmp_path / "purejaxrl" / "purejaxrl"
    clone.mkdir()
    (clone / "ppo.py").touch()
    side = run.find_side("purejaxrl", ("--algo=dqn",), run._parser().parse_args([*flags, f"--clones={tmp_path}"]))
    assert side.argv[1:] == (str(BENCHMARKS / "peer_purejaxrl.py"), f"--clone={tmp_path / 'purejaxrl'}", "--algo=dqn")


def test_a_clone_s_program_is_imported_among_stand_ins(tmp_path):
    folder = tmp_path / "purejaxrl"
    folder.mkdir()
    (folder / "wrappers.py").write_text(
        "import navix as nx\nfrom brax import envs\nfrom brax.envs.wrappers.training import AutoResetWrapper\n"
    )
    (folder / "dqn.py").write_text(
        "import jax, wandb, wrappers\n"
        "def make_train(config):\n"
        "    return lambda key: jax.tree_map(lambda x: x + config['LR'], key)\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "import clones, pathlib\n"
        f"train = clones.purejaxrl(pathlib.Path({str(tmp_path)!r}), 'dqn').make_train({{'LR': 2}})\n"
        "print(train({'a': 1}), sys.modules['brax'].envs)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'a': 3} <class 'object'>\n"


def test_every_peer_has_a_worker_and_pins_that_setup_installs(pairs):
    import rows
    import run

    setup = (BENCHMARKS / "setup_peers.sh").read_text()
    installed = re.search(r"^for peer in (.*); do$", setup, re.MULTILINE).group(1).split()
    assert {row.reference for row in rows.ROWS} - {"ours", "baseline", "raw"} == set(run._PEERS)
    for name, script in run._PEERS.items():
        assert name in installed
        assert (BENCHMARKS / script).exists() and (BENCHMARKS / f"requirements-{name}.txt").exists()


def test_rows_have_names_of_their_own_and_chunks_that_both_sides_can_cut(pairs):
    import rows

    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    for row in rows.ROWS:
        for flags in (row.ours, row.reference_flags):
            assert any(flag.startswith("--chunk_steps=") for flag in flags), row.name


def test_a_chunk_with_actors_of_ours_is_many_unrolls(pairs):
    """An unroll or two may be played while the other side's clock runs."""
    import rows

    counted = 0
    for row in rows.ROWS:
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in row.ours)
        if not flags.get("env", "").startswith(("envpool:", "gymnasium:")):
            continue
        counted += 1
        unroll = int(flags["env.num_envs"]) * int(flags["layout.unroll_length"])
        assert int(flags["chunk_steps"]) >= 24 * unroll, row.name
        assert "layout.policy_lag" in flags, row.name
    assert counted >= 4


def test_minutes_of_bodies_are_of_the_whole_process(pairs, monkeypatch, tmp_path):
    import bodies_returns

    def run(command, folder):
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text('{"kind": "eval", "wall_s": 60.0, "eval_return": 5.0, "env_steps": 10}\n')
        (folder / "config.json").touch()
        os.utime(folder / "config.json", (0, 1_090.0))

    monkeypatch.setattr(bodies_returns, "_run", run)
    monkeypatch.setattr(bodies_returns.time, "time", lambda: 1_000.0)
    options = bodies_returns._parser().parse_args([])
    (found,) = bodies_returns._learn_ours("ant", 0, tmp_path / "ours", options)
    assert found == {"minutes": 2.5, "return": 5.0, "steps": 10}


def test_commits_compares_what_both_run_and_refuses_unknown_ones(pairs, monkeypatch, capsys):
    import commits

    own = commits._rows(BENCHMARKS.parent)
    assert len(set(own.values())) == len(own) > 5
    assert commits.main(["--base=no-such-commit"]) == 2 and "no-such-commit" in capsys.readouterr().err
    monkeypatch.setattr(commits, "_files", lambda commit, folder: BENCHMARKS.parent)
    assert commits.main(["--base=any", "--rows=nothing"]) == 2 and "--rows=nothing" in capsys.readouterr().err
    ran = []
    monkeypatch.setattr(commits.pairs, "compare", lambda a, b, rounds: ran.append((a, b, rounds)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        commits.main(["--base=any", "--rows=ant", "--rounds=3"])
    ((head, base, rounds),) = ran
    assert (head.name, base.name, rounds) == ("head", "base", 3) and head.argv == base.argv
    assert "--env=brax:ant" in head.argv and head.argv[1].endswith("ours.py")
