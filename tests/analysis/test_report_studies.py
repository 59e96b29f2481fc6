"""The pages of studies and searches: what they hold, that they are whole, alone and escaped, and where dots lie."""

import pathlib
import signal
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from fakes import written_runs
from test_plots import axes_of
from test_report import Page

from jaxrl_dist.analysis import curves, plots, published, study_table
from jaxrl_dist.analysis.report import studies
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.training import study

NUM_SEEDS = 3
LEVELS = published.Marks((published.Level("solved", 110.0, "of a test"), published.Level("random play", 1.0, "too")))


def cell(folder: pathlib.Path, label: str, **changes: Any) -> tuple[study_table.Row, curves.Curve]:
    """Returns row and curve of a setting whose run ended."""
    run = written_runs.write(folder / label, written_runs.rising(NUM_SEEDS, **changes.pop("rising", {})), **changes)
    view = run_view.read(run)
    row = study_table.row(label, f"python scripts/train.py --out={run}", [view], [], NUM_SEEDS, ("entropy",))
    return row, curves.curve([view.records])


def failed(label: str, reason: str) -> tuple[study_table.Row, curves.Curve]:
    return study_table.row(label, "python scripts/train.py", [], [reason], NUM_SEEDS, ("entropy",)), curves.curve([])


def written(folder: pathlib.Path) -> Page:
    """Reads the page of a folder, which needs nothing beside it."""
    page = Page((folder / "page.html").read_text(encoding="utf-8"))
    assert not list(folder.glob(".*.new"))
    assert not {"script", "link", "iframe", "object", "img"} & {tag for tag, _ in page.elements}
    addresses = [str(given[key]) for _, given in page.elements for key in ("src", "href") if key in given]
    assert addresses and all(address.startswith("#") for address in addresses)
    return page


def study_page(folder: pathlib.Path, **made: tuple[study_table.Row, curves.Curve]) -> Page:
    rows = study_table.compare_with_first([row for row, _ in made.values()])
    found = {row["setting"]: curve for row, curve in made.values()}
    studies.write_study(folder, "ppo on tasks", rows, found, dict.fromkeys(found, LEVELS))
    return written(folder)


def charts_of(page: Page) -> list[str]:
    return page.charts("Evaluation return")


def test_a_study_is_a_table_curves_failures_and_commands(tmp_path: pathlib.Path) -> None:
    first, second = cell(tmp_path, "a"), cell(tmp_path, "b", rising={"seed": 1, "top": 50.0})
    page = study_page(tmp_path, a=first, b=second, c=failed("c", "runs/c: exit code 1: <b>"))
    cells = [cell for row in study_table.table([first[0], second[0]]).rows for cell in row]
    assert all(cell.replace(", ", ",\u00a0") in page.text for cell in cells)
    assert f"Study {tmp_path}: 2 of 3 settings finished." in page.text
    assert "mean entropy" in page.text and "P(better than first)" in page.text
    assert "c: runs/c: exit code 1: <b>" in page.text
    assert all(row["command"] in page.text for row, _ in (first, second)) and "versions: " in page.text
    by_steps, by_time = charts_of(page)
    assert "steps" in by_steps and "wall time" in by_time
    assert all("a ends at" in label and "b ends at" in label and "c ends" not in label for label in (by_steps, by_time))
    strips = [str(given["aria-label"]) for tag, given in page.elements if given.get("class") == "strip"]
    assert len(strips) == 2 and len(set(strips)) == 1 and strips[0].startswith(f"{NUM_SEEDS} seeds")
    assert "solved: of a test" in page.text and "random play: too" in page.text


def test_environments_have_tables_and_charts_of_their_own(tmp_path: pathlib.Path) -> None:
    catch = cell(tmp_path, "c", env="gymnax:Catch-bsuite")
    page = study_page(tmp_path, a=cell(tmp_path, "a"), b=failed("b", "why"), c=catch)
    assert sum(tag == "table" and given.get("class") == "cards wide" for tag, given in page.elements) == 3
    parts = ("gymnax:CartPole-v1", "gymnax:Catch-bsuite", "Nothing finished yet")
    places = [page.text.index(name) for name in parts]
    assert places == sorted(places)
    assert len(charts_of(page)) == 4 and not any("a ends" in x and "c ends" in x for x in charts_of(page))


def test_a_study_of_which_nothing_is_finished_has_a_page(tmp_path: pathlib.Path) -> None:
    page = study_page(tmp_path, a=failed("a", "why"))
    assert "0 of 1 settings finished" in page.text and "a: why" in page.text and charts_of(page) == []


def test_a_search_shows_the_best_first_and_each_setting(tmp_path: pathlib.Path) -> None:
    made = [cell(tmp_path, f"trial {i}", rising={"top": top})[0] for i, top in enumerate((50.0, 100.0, 20.0))]
    rows = [*made, failed("trial 3", "why")[0]]
    text = study_table.Table(
        ["trial", "rate", "core", "state"],
        [[rows[i]["setting"], f"1e-{i}", "lstm", rows[i]["state"]] for i in (1, 0, 2, 3)],
        ("4 of 9 trials",),
    )
    settings = [
        plots.Setting("rate", [1e-4, 1e-3, 1e-2, 1e-1], is_log=True),
        plots.Setting("core", ["lstm", "identity", "lstm", "lstm"], is_log=False, names=("identity", "lstm")),
    ]
    studies.write_search(tmp_path, "ppo on CartPole", rows, text, settings, 9)
    page = written(tmp_path)
    assert f"Search {tmp_path}: 3 of 9 trials finished." in page.text and "trial 3: why" in page.text
    assert page.text.index("trial 1") < page.text.index("trial 0") < page.text.index("trial 2")
    assert page.text.count("python scripts/train.py") == 1 and rows[1]["command"] in page.text
    assert [label.partition(":")[0] for label in charts_of(page)] == [
        "Evaluation return over rate",
        "Evaluation return over core",
    ]
    rate, core = (axes_of(plots.against(one, TRIALS)) for one in settings)
    for axes in (rate, core):
        large = [line for line in axes.lines if line.get_marker() == "o"]
        # Others first, the best above them.
        assert [line.get_color() for line in large] == [*plots.COLOURS[:1] * 2, plots.COLOURS[1]]
        assert [plots.title_in(line.get_gid()) for line in large] == ["a", "c", "b"]
    places = [float(rate.transData.transform((line.get_xdata()[0], 1.0))[0]) for line in rate.lines[1::2]]
    # Of logarithms the middle one is half-way.
    assert places[2] - places[0] == pytest.approx(places[1] - places[2], abs=0.2)
    first, second, best = (line.get_xdata()[0] for line in core.lines[1::2])
    assert first == second > best
    titles = page.titles("Evaluation return over rate")[0]
    assert set(titles) == {"Evaluation return", *(row["setting"] for row in made)}


RETURNS = [*(np.array([x, x + 1.0]) for x in (50.0, 100.0, 20.0)), np.array([])]
TRIALS = plots.trials(["a", "b", "c", "d"], RETURNS, [True] * 4)


def test_the_best_trial_is_the_first_with_the_largest_centre_of_those_that_have_one() -> None:
    assert [one.is_best for one in TRIALS] == [False, True, False, False]
    assert [one.centre for one in TRIALS] == [50.5, 100.5, 20.5, -np.inf]
    assert not any(one.is_best for one in plots.trials(["a", "b"], [np.array([]), np.array([])], [True] * 2))
    # A trial of which a seed failed is drawn, but is not the best.
    part = plots.trials(["a", "b", "c", "d"], RETURNS, [True, False, True, False])
    assert [one.is_best for one in part] == [True, False, False, False] and len(part[1].returns) == 2


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (plots.Setting("x", [1e-5, 1e-1], True), ["1e−5", "0.0001", "0.001", "0.01", "0.1"]),
        (plots.Setting("x", [2e-4, 6e-3], True), ["0.0002", "0.0005", "0.001", "0.002", "0.005"]),
        (plots.Setting("x", [0.0031, 0.0039], True), ["0.0032", "0.0034", "0.0036", "0.0038"]),
        (plots.Setting("x", [3.0], True), ["2", "3", "4", "5"]),
        (plots.Setting("x", [0.91, 0.99], False), ["0.92", "0.94", "0.96", "0.98"]),
        (plots.Setting("x", ["a", "b"], False, ("a", "b")), ["a", "b"]),
        (plots.Setting("x", ["frame_stack_lstm"], False, ("frame_stack_lstm",) * 4), ["frame_stack_…"] * 4),
    ],
)
def test_scales_have_round_numbers_within_their_ends(setting: plots.Setting, expected: list[str]) -> None:
    count = len(setting.values)
    panel = plots.against(setting, plots.trials([""] * count, [np.array([1.0])] * count, [True] * count))
    shown = ElementTree.fromstring(plots.svg(panel)).iter("{http://www.w3.org/2000/svg}g")
    ticks = [one for one in shown if (one.get("id") or "").startswith("xtick")]
    texts = ["".join(one.itertext()).strip() for one in ticks]
    assert [text for text in texts if text] == expected
    low, high = axes_of(panel).get_xlim()
    assert all(low < place < high for place in setting.places)


def test_the_script_ends_with_the_path_of_the_page(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table.md").write_text("| setting |\n")
    # The script's own is for its process, not for this one.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(study, "run", lambda plan, train_command: [{"state": "finished"}])
    assert written_runs.script("scripts/study.py")([f"--out={tmp_path}", "--", "--env=gymnax:CartPole-v1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "page.html")


def test_of_many_settings_each_has_a_chart_and_the_first_two_show_means(tmp_path: pathlib.Path) -> None:
    names = [f"setting {i}" for i in range(len(plots.COLOURS) + 1)]
    made = {name: cell(tmp_path, name, rising={"seed": i}) for i, name in enumerate(names)}
    few, many = (study_page(tmp_path, **{name: made[name] for name in names[:count]}) for count in (7, 8))
    assert len(charts_of(few)) == 2 and [areas(few), areas(many)] == [14, 8]
    assert all(f"{name} ends at" in label for label in charts_of(many) for name in names)
    for name in names:
        ((own, *titles),) = many.titles(f"{name} over")
        others = {other for other in names if other != name}
        assert own == name and set(titles) == {name, *others} | {f"{name}, seed {i}" for i in range(NUM_SEEDS)}
    assert "shaded in the charts of single runs" in many.text and "single runs" not in few.text


def areas(page: Page) -> int:
    """Counts what is shaded with the fifth of a colour."""
    return sum(text.count("fill-opacity: 0.2") for text in page.styles(""))
