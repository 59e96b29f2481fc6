"""The comparison of golden runs finds a changed bit, what only one side has, and changed metrics; it ignores times."""

import json

import compare
import numpy as np
import pytest
import recorded
import runs
import training

SAME = runs.Words()
RECORD = {"kind": "train", "env_steps": 128, "policy_loss": 0.1, "episode_return_per_seed": [1.0, None], "wall_s": 2.0}


def left(**changed):
    """Returns what a small run left, with other arrays or metrics."""
    arrays = {"state/learner/statistics/mean": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)}
    arrays |= {"state/key": np.arange(2, dtype=np.uint32), "best/statistics/mean": np.float32([[1.0]])}
    return recorded.Recorded(
        arrays | changed.get("arrays", {}),
        [RECORD | changed.get("record", {})],
        {"progress/pending/seconds": 3.0, "summary.json/eval_return_mean": 7.5} | changed.get("numbers", {}),
    )


def places(base, head, words=SAME):
    """Returns where two runs differ."""
    return [difference.where for difference in compare.compare(base, head, words, compare.CLOCK)]


def test_equal_runs_agree_whatever_the_clock_says():
    assert places(left(), left(record={"wall_s": 9.0}, numbers={"progress/pending/seconds": 1.0})) == []


def test_one_bit_is_found_with_its_place():
    other = left().arrays["state/learner/statistics/mean"].copy()
    other[1, 2] = np.nextafter(other[1, 2], np.float32(2))
    [found] = compare.compare(left(), left(arrays={"state/learner/statistics/mean": other}), SAME, compare.CLOCK)
    assert found == ("array state/learner/statistics/mean", "[1, 2] 1.0", "[1, 2] 1.0000001; 1 of 6 differ")


@pytest.mark.parametrize(
    "array", [np.float32([[-0.0, np.nan]]), np.float32([[0.0]]), np.float64([[0.0, np.nan]]), np.int32([[0, 0]])]
)
def test_signs_shapes_and_types_count_and_equal_bits_do_not(array):
    base = left(arrays={"state/key": np.float32([[0.0, np.nan]])})
    assert places(base, base) == []
    assert places(base, left(arrays={"state/key": array})) == ["array state/key"]


def test_arrays_without_elements_or_axes_are_compared():
    base = left(arrays={"state/none": np.zeros((0, 3), np.float32), "state/one": np.array(1, np.int32)})
    assert places(base, base) == []
    assert places(base, left(arrays={"state/none": np.zeros((0, 3), np.float32), "state/one": np.array(2, np.int32)}))


def test_what_only_one_side_has_is_a_difference():
    more = left(arrays={"state/new": np.zeros(1)}, record={"entropy": 1.0}, numbers={"progress/total": 3})
    expected = ["array state/new", "progress/total", "metrics.jsonl:1 entropy"]
    assert places(left(), more) == expected
    assert places(more, left()) == expected
    assert places(left(), left()._replace(records=[RECORD, RECORD])) == ["metrics.jsonl"]


def test_changed_metrics_and_returns_are_found():
    head = left(record={"episode_return_per_seed": [1.0, 2.0]}, numbers={"summary.json/eval_return_mean": 7.25})
    assert places(left(), head) == ["summary.json/eval_return_mean", "metrics.jsonl:1 episode_return_per_seed"]


def test_a_metric_is_told_once_and_before_arrays():
    record = RECORD | {"policy_loss": 0.2}
    head = left(arrays={"state/key": np.zeros(1)}, numbers={"summary.json/eval_return_mean": 1.0})
    found = compare.compare(
        left()._replace(records=[RECORD, RECORD]), head._replace(records=[record, record]), SAME, compare.CLOCK
    )
    assert list(compare.describe(found)) == [
        "  metrics.jsonl:1 policy_loss: base 0.1 | head 0.2",
        "  array state/key: base uint32[2] | head float64[1]",
        "  summary.json/eval_return_mean: base 7.5 | head 1.0",
    ]


def test_renamed_leaves_and_metrics_agree_by_their_words():
    arrays = {path.replace("statistics", "moments"): array for path, array in left().arrays.items()}
    record = {("loss/policy" if name == "policy_loss" else name): value for name, value in RECORD.items()}
    head = recorded.Recorded(arrays, [record], left().numbers)
    assert len(places(left(), head)) == 6
    words = runs.Words(leaves={"statistics": "moments"}, metrics={"policy_loss": "loss/policy"})
    assert places(left(), head, words) == []


@pytest.mark.parametrize(
    ("renamed", "path"),
    [
        ({"b/c": "x"}, "a/x/b"),
        ({"b": "x/y"}, "a/x/y/c/x/y"),
        ({"^a": "x"}, "x/b/c/b"),
        ({"^b": "x"}, "a/b/c/b"),
        ({"^a": ""}, "b/c/b"),
        ({"a/b": ""}, "c/b"),
        ({"": "x", "bc": "x"}, "a/b/c/b"),
    ],
)
def test_parts_of_paths_are_renamed(renamed, path):
    assert compare.renamed_path("a/b/c/b", renamed) == path


def test_two_leaves_that_get_one_path_are_refused():
    base = left(arrays={"state/learner/moments/mean": np.zeros(1)})
    with pytest.raises(ValueError, match=r"runs\.py"):
        places(base, left(), runs.Words(leaves={"statistics": "moments"}))


def test_leaves_that_are_gone_are_left_out_by_their_whole_path():
    base = left(arrays={"state/pending/0/given": np.zeros(1), "state/pending/1/given": np.zeros(1)})
    words = runs.Words(gone=["pending/0/given"]).over(runs.Words(gone=["given"]))
    assert places(base, left(), words) == ["array state/pending/1/given"]


def test_flags_are_translated_to_the_older_words():
    flags = ["--layout.lag=free", "--replay.size=8", "--sweep=agent.decay=0.9,1;learner.rate=1", "--size=free"]
    common = runs.Words(
        flags={"replay.capacity": "replay.size", "agent.discount": "agent.decay", "optimizer.": "learner."},
        added=("size",),
        dropped=("--learner.shuffle=true",),
    )
    words = runs.Words(flags={"layout.policy_lag=free": "layout.lag=free", "replay.rows": "replay.size"}).over(common)
    expected = ["--layout.policy_lag=free", "--replay.rows=8", "--sweep=agent.discount=0.9,1;optimizer.rate=1"]
    assert training.translate(flags, words) == [*expected, "--learner.shuffle=true"]


def test_nested_progress_is_flat_and_lists_stay_whole():
    value = json.loads('{"a": {"b": 1, "c": [1, [2, 3]]}, "d": [{"e": null}], "f": []}')
    assert dict(recorded.flat(value)) == {"a/b": 1, "a/c": [1, [2, 3]], "d/0/e": None, "f": []}


def test_runs_have_names_of_their_own_and_folders_by_the_harness():
    names = [run.name for run in runs.RUNS]
    assert len(set(names)) == len(names) and set(runs.QUICK) <= set(names)
    assert not any("--out" in flag for run in runs.RUNS for command in compare.commands(run) for flag in command)
