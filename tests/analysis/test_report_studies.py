"""The pages of studies and searches: what they hold, that they are whole, alone and escaped, and where dots lie."""

import pathlib
import signal
from typing import Any

import pytest
from fakes import written_runs
from test_report import Page

from jaxrl_dist.analysis import plots, search_plots, study_table
from jaxrl_dist.analysis.report import charts, studies
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.training import study

NUM_SEEDS = 3


def cell(folder: pathlib.Path, label: str, **changes: Any) -> tuple[study_table.Row, plots.Curve]:
    """Returns row and curve of a setting whose run ended."""
    run = written_runs.write(folder / label, written_runs.rising(NUM_SEEDS, **changes.pop("rising", {})), **changes)
    view = run_view.read(run)
    row = study_table.row(label, f"python scripts/train.py --out={run}", [view], [], NUM_SEEDS, ("entropy",))
    return row, plots.curve([view.records])


def failed(label: str, reason: str) -> tuple[study_table.Row, plots.Curve]:
    return study_table.row(label, "python scripts/train.py", [], [reason], NUM_SEEDS, ("entropy",)), plots.curve([])


def written(folder: pathlib.Path) -> Page:
    """Reads the page of a folder, which needs nothing beside it."""
    page = Page((folder / "page.html").read_text(encoding="utf-8"))
    assert not list(folder.glob(".*.new"))
    assert not {"script", "link", "iframe", "object", "img"} & {tag for tag, _ in page.elements}
    addresses = [str(given[key]) for _, given in page.elements for key in ("src", "href") if key in given]
    assert addresses and all(address.startswith("#") for address in addresses)
    return page


def study_page(folder: pathlib.Path, **made: tuple[study_table.Row, plots.Curve]) -> Page:
    rows = study_table.compare_with_first([row for row, _ in made.values()])
    studies.write_study(folder, "ppo on tasks", rows, {row["setting"]: curve for row, curve in made.values()})
    return written(folder)


def charts_of(page: Page) -> list[str]:
    labels = [given.get("aria-label") or "" for tag, given in page.elements if tag == "svg"]
    return [label for label in labels if label.startswith("Evaluation return")]


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
    strips = [given for tag, given in page.elements if given.get("class") == "strip"]
    assert len(strips) == 2 and len({given["aria-label"] for given in strips}) == 1


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
        search_plots.Setting("rate", [1e-4, 1e-3, 1e-2, 1e-1], is_log=True),
        search_plots.Setting("core", ["lstm", "identity", "lstm", "lstm"], is_log=False, names=("identity", "lstm")),
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
    dots = [given for tag, given in page.elements if tag == "circle" and given.get("r") == "3"]
    large = [given for given in dots if given["class"] in ("dot c0", "dot c1") and given["cy"] != "12"]
    rate, core = [float(str(given["cx"])) for given in large[:3]], [float(str(given["cx"])) for given in large[3:]]
    # Others first, the best above them; of logarithms the middle one is half-way.
    assert rate[2] - rate[0] == pytest.approx(rate[1] - rate[2], abs=0.2)
    assert core[0] == core[1] > core[2]
    assert [given["class"] for given in large] == ["dot c0", "dot c0", "dot c1"] * 2


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (charts.logarithmic([1e-5, 1e-1]), ["1e−5", "0.0001", "0.001", "0.01", "0.1"]),
        (charts.logarithmic([2e-4, 6e-3]), ["0.0002", "0.0005", "0.001", "0.002", "0.005"]),
        (charts.logarithmic([0.0031, 0.0039]), ["0.0032", "0.0034", "0.0036", "0.0038"]),
        (charts.logarithmic([3.0]), ["2", "3", "4", "5"]),
        (charts.linear([0.91, 0.99]), ["0.92", "0.94", "0.96", "0.98"]),
        (charts.named_places(["a", "b"]), ["a", "b"]),
        (charts.named_places(["frame_stack_lstm"] * 4), ["frame_stack_…"] * 4),
    ],
)
def test_scales_have_round_numbers_within_their_ends(scale: charts.Scale, expected: list[str]) -> None:
    assert [text for _, text in scale.marks] == expected
    assert all(scale.low <= place <= scale.high for place, _ in scale.marks)


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
    names = [f"setting {i}" for i in range(charts.NUM_COLOURS + 1)]
    made = {name: cell(tmp_path, name, rising={"seed": i}) for i, name in enumerate(names)}
    few, many = (study_page(tmp_path, **{name: made[name] for name in names[:count]}) for count in (7, 8))
    assert len(charts_of(few)) == 2 and [areas(few), areas(many)] == [14, 8]
    assert all(f"{name} ends at" in label for label in charts_of(many) for name in names)
    apart = [given.get("aria-label") or "" for tag, given in many.elements if tag == "svg"]
    for name in names:
        (label,) = (label for label in apart if label.startswith(f"{name} over"))
        assert label.count("ends at") == NUM_SEEDS + 1
    assert "shaded in the charts of single runs" in many.text and "single runs" not in few.text


def areas(page: Page) -> int:
    return sum("area" in (given.get("class") or "").split() for _, given in page.elements)
