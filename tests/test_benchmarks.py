"""Tests of the benchmark harness with toy workers that import no jax: ratios, order, dead and silent workers."""

import pathlib
import sys
import time

import conftest
import pytest

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"

TOY = """
import sys, time
sys.path.insert(0, {benchmarks!r})
import worker
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
    def make(name, steps, body="time.sleep(0.02)", evaluate="None"):
        log = str(tmp_path / "order")
        code = TOY.format(benchmarks=str(BENCHMARKS), log=log, name=name, steps=steps, body=body, evaluate=evaluate)
        return pairs.Side(name, (sys.executable, "-c", code))

    return make


def test_ratio_of_equal_chunks_is_the_ratio_of_their_steps(pairs, toy, tmp_path):
    result = pairs.compare(toy("A", 300), toy("B", 100), rounds=7)
    assert len(result.chunks_a) == len(result.chunks_b) == 7
    assert [chunk.steps for chunk in result.chunks_a] == [300] * 7
    assert 2.0 < result.ratio.low <= result.ratio.median <= result.ratio.high < 4.5
    assert result.rate_a == pytest.approx(300 / 0.02, rel=0.3)
    assert result.ready_a["compile_s"] == 0.2
    assert 0.0 < result.ready_b["ready_s"] < 10.0
    assert (tmp_path / "order").read_text() == "ABBAABBAABBAAB"


def test_interval_covers_the_median_and_shrinks_with_agreement(pairs):
    noisy = pairs.bootstrap_ratio([1.0, 1.5, 2.0, 2.5, 3.0, 1.2, 2.8])
    assert noisy.median == 2.0
    assert 1.0 <= noisy.low < 2.0 < noisy.high <= 3.0
    assert pairs.bootstrap_ratio([1.5] * 7) == (1.5, 1.5, 1.5)
    assert pairs.bootstrap_ratio([1.0, 2.0, 3.0]) == pairs.bootstrap_ratio([1.0, 2.0, 3.0])


def test_dead_worker_is_named_with_its_own_error(pairs, toy):
    dying = toy("B", 1, body="1 / (2 - calls) and time.sleep(0.01)")
    with pytest.raises(pairs.WorkerError, match=r"(?s)B ended with code 1.*ZeroDivisionError"):
        pairs.compare(toy("A", 1), dying)


def test_worker_that_never_gets_ready_is_an_error(pairs):
    with pytest.raises(pairs.WorkerError, match=r"(?s)mute ended with code 3.*why"):
        pairs.Worker(
            pairs.Side("mute", (sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"))
        )
    with pytest.raises(pairs.WorkerError, match="absent: cannot start /no/such"):
        pairs.Worker(pairs.Side("absent", ("/no/such",)))
    with pytest.raises(pairs.WorkerError, match="chatty answered .*has no 'ready'"):
        pairs.Worker(pairs.Side("chatty", (sys.executable, "-c", "print('hello'); input()")))


def test_hanging_worker_is_an_error_within_its_timeout(pairs, toy):
    started = time.perf_counter()
    with pytest.raises(pairs.WorkerError, match="B said nothing for 0.5 s"):
        pairs.compare(toy("A", 1), toy("B", 1, body="time.sleep(60)"), chunk_timeout_s=0.5)
    assert time.perf_counter() - started < conftest.SOON_S


def test_impossible_time_is_refused(pairs, toy):
    lying = "worker.report(channel, 10, 5.0)"
    with pairs.Worker(toy("liar", 1, body=lying)) as worker, pytest.raises(pairs.WorkerError, match="not a chunk"):
        worker.train_chunk()


def test_seconds_to_a_threshold_counts_training_alone(pairs, toy):
    improving = toy("A", 10, evaluate="lambda: 300.0 if calls in (1, 3, 4, 5) else 0.0")
    seconds, steps = pairs.seconds_to(improving, threshold=300.0, limit_steps=1000, consecutive=2)
    assert steps == 40
    assert 0.06 <= seconds < 1.0
    assert pairs.seconds_to(toy("A", 10, evaluate="lambda: 0.0"), threshold=1.0, limit_steps=30) is None


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


def test_rows_have_names_of_their_own_and_chunks_that_both_sides_can_cut(pairs):
    import rows

    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    for row in rows.ROWS:
        for flags in (row.ours, row.reference_flags):
            assert any(flag.startswith("--chunk_steps=") for flag in flags), row.name
