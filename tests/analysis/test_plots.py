"""Learning curves: how evaluations are joined, and that pictures and panels show them."""

import errno
import os
import pathlib
import re
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

import conftest
import numpy as np
import pytest
from fakes import written_runs

from jaxrl_dist.analysis import curves, plots, published
from jaxrl_dist.runs import aggregate

BLUE, VERMILION = (0, 114, 178), (213, 94, 0)


def evaluation(env_steps: int, wall_s: float, returns: list[float]) -> dict[str, Any]:
    record = {"kind": "eval", "env_steps": env_steps, "wall_s": wall_s, "eval_return": float(np.mean(returns))}
    return {**record, "eval_return_per_seed": returns}


def run(num_seeds: int, num_points: int = 8, top: float = 100.0) -> list[dict[str, Any]]:
    generator = np.random.default_rng(num_seeds)
    rises = generator.uniform(0.5, 1.5, num_seeds)
    records: list[dict[str, Any]] = []
    for i in range(1, num_points + 1):
        records.append({"kind": "train", "env_steps": 1000 * i, "wall_s": 2.0 * i, "episode_return": 0.0})
        records.append(evaluation(1000 * i, 2.0 * i, (top * np.tanh(rises * i / num_points)).tolist()))
    return records


def axes_of(panel: plots.Panel) -> Any:
    """Draws a panel on axes of its own."""
    from matplotlib import figure

    axes = figure.Figure().add_subplot()
    panel.draw(axes)
    return axes


def titled(axes: Any, title: str) -> list[Any]:
    """Lists the lines that have a title."""
    return [line for line in axes.lines if plots.title_in(line.get_gid() or "") == title]


def panels(runs: dict[str, Any], marks: published.Marks = published.NO_MARKS) -> tuple[Any, Any]:
    """Draws returns against steps and against time."""
    drawn = plots.drawn({label: curves.curve([records]) for label, records in runs.items()})
    by_steps, by_time = plots.returns(drawn, marks)
    return axes_of(by_steps), axes_of(by_time)


def pixels(path: pathlib.Path) -> np.ndarray:
    from matplotlib import image

    assert path.read_bytes().startswith(b"\x89PNG")
    return np.round(image.imread(path)[..., :3] * 255).astype(int)


def columns_with(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Columns of the upper 80 % (above the legend) that hold the colour."""
    part = picture[: int(0.8 * len(picture))]
    return np.flatnonzero((np.abs(part - colour).max(-1) <= 2).any(0))


def test_curve_of_one_program_holds_its_evaluations() -> None:
    curve = curves.curve([run(3)])
    assert curve.returns.shape == (8, 3)
    np.testing.assert_array_equal(curve.env_steps, 1000 * np.arange(1, 9))
    np.testing.assert_array_equal(curve.wall_s, 2.0 * np.arange(1, 9))


def test_curve_joins_programs_at_every_step() -> None:
    first = [evaluation(10, 1.0, [1.0]), evaluation(20, 2.0, [2.0]), evaluation(30, 3.0, [3.0])]
    second = [evaluation(10, 3.0, [10.0, 100.0]), evaluation(20, 6.0, [20.0, 200.0])]
    curve = curves.curve([first, second])
    np.testing.assert_array_equal(curve.env_steps, [10, 20, 30])
    np.testing.assert_array_equal(curve.wall_s, [2.0, 4.0, 3.0])
    expected = [[1.0, 10.0, 100.0], [2.0, 20.0, 200.0], [3.0, np.nan, np.nan]]
    np.testing.assert_array_equal(curve.returns, expected)


def test_curve_takes_the_last_of_two_evaluations_at_one_step() -> None:
    curve = curves.curve([[evaluation(10, 1.0, [1.0]), evaluation(20, 2.0, [2.0]), evaluation(20, 5.0, [9.0])]])
    np.testing.assert_array_equal(curve.returns, [[1.0], [9.0]])
    np.testing.assert_array_equal(curve.wall_s, [1.0, 5.0])


def test_records_without_seeds_are_one_seed() -> None:
    curve = curves.curve([[{"kind": "eval", "env_steps": 5, "wall_s": 1.0, "eval_return": 7.0}]])
    np.testing.assert_array_equal(curve.returns, [[7.0]])


def test_the_picture_shows_every_run_in_both_panels(tmp_path: pathlib.Path) -> None:
    plots.learning_curve({"many": run(5), "one": run(1, top=30.0)}, tmp_path / "curve.png", "title")
    picture = pixels(tmp_path / "curve.png")
    width = picture.shape[1]
    for colour in (BLUE, VERMILION):
        columns = columns_with(picture, colour)
        for left, right in ((0.07, 0.5), (0.55, 0.99)):
            share = np.mean((columns > left * width) & (columns < right * width)) * len(columns) / width
            assert share > 0.25


def test_of_more_runs_than_colours_the_means_alone_are_drawn(tmp_path: pathlib.Path) -> None:
    # A fifth of blue on white is what a band looks like.
    shaded = []
    for others in (6, 7):
        runs = {"many": run(5)} | {f"one {i}": run(1, top=30.0 + i) for i in range(others)}
        plots.learning_curve(runs, tmp_path / "curve.png")
        picture = pixels(tmp_path / "curve.png")
        assert len(columns_with(picture, BLUE)) > 0.25 * picture.shape[1]
        shaded.append(len(columns_with(picture, (204, 227, 240))))
    # The edges of lines are as light.
    assert shaded[1] < 0.2 * shaded[0]


def test_a_missing_seed_leaves_a_gap(tmp_path: pathlib.Path) -> None:
    whole, broken = run(4, 9), run(4, 9)
    for record in broken:
        if record["kind"] == "eval" and 4000 <= record["env_steps"] <= 6000:
            record["eval_return_per_seed"][0] = float("nan")
    lengths = []
    for name, records in (("whole", whole), ("broken", broken)):
        plots.learning_curve({name: records}, tmp_path / f"{name}.png")
        lengths.append(len(columns_with(pixels(tmp_path / f"{name}.png"), BLUE)))
    # Of eight segments four are left.
    assert 0.4 * lengths[0] < lengths[1] < 0.65 * lengths[0]


@pytest.mark.parametrize("num_seeds", [1, 6])
def test_a_single_point_is_visible(tmp_path: pathlib.Path, num_seeds: int) -> None:
    plots.learning_curve({"point": run(num_seeds, 1)}, tmp_path / "curve.png")
    assert len(columns_with(pixels(tmp_path / "curve.png"), BLUE)) >= 10


@pytest.mark.parametrize("runs", [{}, {"none": []}, {"unknown": [evaluation(1, 1.0, [float("nan")])]}])
def test_nothing_to_draw_is_a_picture_too(tmp_path: pathlib.Path, runs: dict[str, Any]) -> None:
    plots.learning_curve(runs, tmp_path / "curve.png")
    assert pixels(tmp_path / "curve.png").std() > 0


def test_the_band_is_the_interval_at_each_point() -> None:
    returns = np.array([[1.0, 2.0, 3.0, 4.0, 9.0], [5.0, 5.0, 5.0, 5.0, 5.0], [1.0, np.nan, 2.0, 3.0, 4.0]])
    centre, low, high = curves.band(returns)
    np.testing.assert_array_equal(centre, [3.0, 5.0, np.nan])
    assert (low[0], high[0]) == aggregate.interval(returns[0])
    assert (low[1], high[1]) == (5.0, 5.0)
    assert np.isnan([low[2], high[2]]).all()


def test_neither_pyplot_nor_matplotlib_is_imported_before_it_is_needed(tmp_path: pathlib.Path) -> None:
    code = (
        "import sys; from jaxrl_dist.analysis import plots; print('matplotlib' in sys.modules);"
        f"plots.learning_curve({{}}, {str(tmp_path / 'a.png')!r}); print('matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=conftest.PACKAGE.parent, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


def plot(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = conftest.PACKAGE.parent / "scripts" / "plot.py"
    return subprocess.run([sys.executable, script, *arguments], cwd=folder, capture_output=True, text=True)


SHARES = {"share_environment": 0.5, "share_inference": 0.3, "share_transfer": 0.2, "share_learning": 0.4}
LAG = {"policy_lag_p50": 1, "policy_lag_p99": 3}


def test_the_script_draws_runs(tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        written_runs.write(tmp_path / name, written_runs.rising(2))
    result = plot(tmp_path, "a", "b", "--labels=first,second", "--out=both.png")
    assert (result.returncode, result.stdout) == (0, "both.png\n"), result.stderr
    assert len(columns_with(pixels(tmp_path / "both.png"), VERMILION)) > 100


def test_the_script_draws_what_is_asked_for(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written_runs.write(tmp_path / "a", written_runs.rising(1), train=SHARES | LAG)
    sizes = []
    for names in ("lag", "steps,minutes,lag,speed,inserts,shares"):
        assert written_runs.script("scripts/plot.py")(["a", f"--panels={names}", "--out=a.png"]) == 0
        sizes.append(pixels(tmp_path / "a.png").shape[:2])
    assert sizes[0] == (528, 720) and sizes[1] == (1392, 1200)


@pytest.mark.parametrize("suffix", plots.FORMATS)
def test_a_picture_is_of_the_kind_that_its_name_says(tmp_path: pathlib.Path, suffix: str) -> None:
    plots.learning_curve({"a": run(2, 3)}, tmp_path / f"a{suffix}")
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    assert (tmp_path / f"a{suffix}").read_bytes().startswith(starts[suffix])


def test_areas_are_the_shares_of_the_actors_time_and_the_line_is_the_learner_s() -> None:
    records = [{"kind": "train", "env_steps": 10 * i, **SHARES} for i in range(1, 5)]
    axes = axes_of(plots.shares("a", records))
    tops = [area.get_paths()[0].vertices[:, 1].max() for area in axes.collections]
    np.testing.assert_allclose(tops, [0.5, 0.8, 1.0])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), 0.4)


def test_the_median_lag_is_thick_and_a_run_without_lag_says_so() -> None:
    records = [{"kind": "train", "env_steps": 10 * i, **LAG} for i in range(1, 5)]
    drawn = axes_of(plots.gauge("lag", [(0, "a", records)]))
    widths = {float(line.get_ydata()[0]): line.get_linewidth() for line in drawn.lines}
    assert widths[1.0] > widths[3.0]
    empty = plots.gauge("lag", [(0, "a", [{"kind": "train", "env_steps": 1}])])
    assert empty.words == "" and [text.get_text() for text in axes_of(empty).texts] == ["not recorded by these runs"]


LEVELS = published.Marks((published.Level("solved", 475.0, "a"), published.Level("random play", 22.0, "b")))


def test_the_axis_begins_at_random_play_where_its_level_is_known() -> None:
    for axes in panels({"a": run(3, top=400.0)}, LEVELS):
        assert axes.get_ylim()[0] == pytest.approx(22.0) and axes.get_ylim()[1] > 475.0
        assert {text.get_text() for text in axes.texts} == {"solved", "random play"}
        levels = {float(line.get_ydata()[0]) for line in axes.lines if len({*line.get_ydata()}) == 1}
        assert levels == {22.0, 475.0}
    # What is worse is shown too.
    assert panels({"a": [evaluation(0, 1.0, [9.0]), *run(1)]}, LEVELS)[0].get_ylim()[0] == 9.0
    axes = panels({"a": run(3)})[0]
    assert not axes.texts and axes.get_ylim()[0] < 22.0


def test_a_band_is_drawn_where_there_are_several_seeds_only() -> None:
    for records, seeds in ((run(1), 0), (run(4), 4)):
        axes = panels({"a": records})[0]
        assert len(axes.collections) == (seeds > 1)
        assert len(titled(axes, "a")) == 1 and all(len(titled(axes, f"a, seed {i}")) == 1 for i in range(seeds))
    lone = plots.drawn({"a": curves.curve([run(1)])})
    assert plots.note_of(lone) == "" and plots.note_of(plots.drawn({"a": curves.curve([run(4)])}))


@pytest.mark.parametrize(("compiling_s", "left"), [(30.0, -1.6), (0.5, -0.5)])
def test_the_time_axis_tells_compiling_from_training(compiling_s: float, left: float) -> None:
    records = [evaluation(0, compiling_s, [1.0])]
    records += [{**one, "wall_s": one["wall_s"] + compiling_s} for one in run(1)]
    by_steps, by_time = panels({"a": records})
    (line,) = titled(by_time, "a")
    np.testing.assert_allclose(line.get_xdata(), 2.0 * np.arange(9))
    # To scale where it is short, and a tenth of the time of training where it is not.
    assert by_time.get_xlim() == pytest.approx((left, 1.01 * 16.0))
    assert [text.get_text() for text in by_time.texts] == [
        f"compiling, evaluating: {compiling_s:g} s"
    ] and not by_steps.texts
    assert by_steps.get_xlim()[0] == 0.0
    # Where one run lacks a record of that time, all begin at their start.
    for runs in ({"a": run(1)}, {"a": records, "b": run(1)}):
        by_time = panels(runs)[1]
        assert by_time.get_xlim()[0] == 0.0 and not by_time.texts
        np.testing.assert_array_equal(
            titled(by_time, "a")[0].get_xdata(), [one["wall_s"] for one in runs["a"] if one["kind"] == "eval"]
        )


def test_what_is_before_training_has_no_number_on_the_axis() -> None:
    by_time = panels({"a": [evaluation(0, 9.0, [1.0]), evaluation(10, 90.0, [2.0])]})[1]
    shown = by_time.xaxis.get_major_formatter()
    assert shown(-5.0, 0) == "" and shown(0.0, 0) == "0"


def test_a_gap_is_a_gap_and_a_lone_point_is_marked() -> None:
    returns = [1.0, 2.0, float("nan"), 3.0, float("nan"), 4.0, 5.0]
    axes = panels({"one": [evaluation(i, float(i), [value, value + 1]) for i, value in enumerate(returns)]})[0]
    line, alone = titled(axes, "one")
    np.testing.assert_array_equal(np.isnan(line.get_ydata()), np.isnan(returns))
    assert alone.get_marker() == "o" and alone.get_xdata().tolist() == [3.0] and alone.get_ydata().tolist() == [3.5]
    assert len(axes.collections[0].get_paths()) == 3


def test_long_lines_are_thinned_to_their_last_point() -> None:
    records = [{"kind": "train", "env_steps": i, "steps_per_second": float(i)} for i in range(10_001)]
    (line,) = axes_of(plots.gauge("speed", [(0, "one", records)])).lines
    assert 250 < len(line.get_xdata()) < 320 and line.get_xdata()[-1] == 10_000


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 10.0, ["0", "2", "4", "6", "8", "10"]),
        (-21.0, 20.0, ["−20", "−10", "0", "10", "20"]),
        (0.0, 500_000.0, ["0", "100k", "200k", "300k", "400k", "500k"]),
        (0.0, 1e-4, ["0", "2e−5", "4e−5", "6e−5", "8e−5", "0.0001"]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[str]) -> None:
    text = plots.svg(plots.Panel("", "", lambda axes: (axes.set_ylim(low, high), axes.set_xticks([]))))
    assert re.findall(r">([^<>\n]+)</text>", text.decode()) == expected


HOSTILE = (
    "<script>alert(1)</script>",
    r"$\frac",
    "$",
    "a\nb\x1b[31m\x00",
    "x" * 10_000,
    "\ud800",
    "漢字",
    "a]]>b",
    '"&',
)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("suffix", [pytest.param(".png", marks=pytest.mark.slow), ".svg"])
def test_names_of_others_are_text_and_nothing_else(tmp_path: pathlib.Path, name: str, suffix: str) -> None:
    work = published.Curve(name, np.array([1e3]), np.array([0.1]), np.array([5.0]), name)
    marks = published.Marks((published.Level(name, 3.0, name),), (work,))
    records = {name: [*run(2), {"kind": "train", "env_steps": 10, **SHARES, **LAG}]}
    drawn = {label: curves.curve([one]) for label, one in records.items()}
    plots.learning_curve(records, tmp_path / f"a{suffix}", name, plots.PANELS, marks)
    plots.draw_scores(drawn, tmp_path / "b.png")
    settings = [plots.Setting(name, [name], False, (name,)), plots.Setting(name, [0.5], True)]
    plots.draw_search(settings, [np.array([1.0, 2.0])], [True], tmp_path / f"c{suffix}", name)
    for path in (tmp_path / f"a{suffix}", tmp_path / f"c{suffix}"):
        if suffix == ".svg":
            texts = [one.text or "" for one in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
            assert any(text.startswith(plots.plain(name, 12)[:5]) for text in texts)
            assert max(map(len, texts)) < 200
        else:
            assert pixels(path).shape[1] in (720, 1200)


def test_a_picture_is_the_same_bytes_each_time(tmp_path: pathlib.Path) -> None:
    for suffix in plots.FORMATS:
        first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        for path in (first, second):
            plots.learning_curve({"a": run(3)}, path, marks=LEVELS)
        assert first.read_bytes() == second.read_bytes()


def test_published_runs_make_no_room_to_the_right(tmp_path: pathlib.Path) -> None:
    pictures = []
    marks = published.Marks(
        (published.Level("human", 50.0, "a"),),
        (published.Curve("far", np.array([1e9]), np.array([1e6]), np.array([90.0]), "b"),),
    )
    for one in (published.NO_MARKS, marks):
        plots.learning_curve({"many": run(5)}, tmp_path / "a.png", marks=one)
        pictures.append(columns_with(pixels(tmp_path / "a.png"), BLUE))
    # The curve is as wide as without them.
    assert abs(len(pictures[0]) - len(pictures[1])) < 0.05 * len(pictures[0])


def test_a_picture_that_cannot_be_written_leaves_the_one_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import figure

    def half(picture: figure.Figure, file: str, **given: Any) -> None:
        pathlib.Path(file).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.png"
    panel = plots.Panel("return", "steps", lambda axes: axes.plot([0, 1]), [])
    plots.write(path, [panel])
    before = path.read_bytes()
    monkeypatch.setattr(figure.Figure, "savefig", half)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        plots.write(path, [panel])
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
