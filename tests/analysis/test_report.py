"""The page about runs: whole, alone, escaped; and its charts, which show the numbers that they are given."""

import html.parser
import pathlib
import re

import numpy as np
import pytest
from fakes import written_runs

from jaxrl_dist.analysis import report
from jaxrl_dist.analysis.report import charts, markup
from jaxrl_dist.runs import view as run_view

SHARES = {"share_environment": 0.5, "share_inference": 0.3, "share_transfer": 0.2, "share_learning": 0.4}
VOID = {"meta", "img", "br", "wbr"}


class Page(html.parser.HTMLParser):
    """Collects elements and text, and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if "style" not in self.open else ""


def page(*folders: pathlib.Path) -> Page:
    return Page(report.page([run_view.read(folder, folder.name) for folder in folders], folders[0].parent))


def test_the_page_needs_nothing_beside_it(tmp_path: pathlib.Path) -> None:
    runs = [written_runs.write(tmp_path / name, written_runs.rising(3)) for name in ("a", "b")]
    shown = page(*runs)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in shown.elements}
    addresses = [value for _, given in shown.elements for key, value in given.items() if key in ("src", "href")]
    assert addresses and all(str(address).startswith(("#", "data:")) for address in addresses)
    style = (pathlib.Path(report.__file__).parent / "page.css").read_text()
    assert "url(" not in style and "@import" not in style
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in shown.elements
    assert "prefers-color-scheme: dark" in style
    targets = {given["id"] for _, given in shown.elements if "id" in given}
    assert {str(address)[1:] for address in addresses} <= targets


def test_what_differs_comes_before_what_does_not(tmp_path: pathlib.Path) -> None:
    first = written_runs.write(tmp_path / "a", written_runs.rising(2), flags={"agent.discount": 0.9})
    second = written_runs.write(tmp_path / "b", written_runs.rising(2), "dqn")
    text = page(first, second).text
    differ, some, everything = (text.index(x) for x in ("Settings that differ", "only some of the runs", "All "))
    assert differ < some < everything
    assert "agent.discount" in text[differ:some] and "agent.clip_epsilon" not in text[differ:some]
    assert "out" not in re.split(r"\W+", text[differ:some])
    assert "--agent.discount=0.9" in text[everything:]


def test_everything_is_escaped(tmp_path: pathlib.Path) -> None:
    evil = "<img src=x onerror=alert(1)>&\"'"
    run = written_runs.write(tmp_path / "a", written_runs.rising(2), flags={"env.params.observe": evil})
    (run / "train.log").write_text(f"train.py: {evil}\n")
    (run / "videos").mkdir()
    (run / "videos" / "<b>.html").write_text("x")
    views = [run_view.read(run, evil)]
    shown = Page(report.page(views, tmp_path, evil))
    assert "img" not in {tag for tag, _ in shown.elements} and "b" not in {tag for tag, _ in shown.elements}
    assert not any(key.startswith("on") for _, given in shown.elements for key in given)
    # Heading, title, table, log line: as text.
    assert shown.text.count(evil) > 6


def test_runs_that_are_not_finished_are_shown_as_such(tmp_path: pathlib.Path) -> None:
    going = written_runs.write(tmp_path / "going", written_runs.rising(1), reason=None, share=0.5)
    fresh = written_runs.write(tmp_path / "fresh", np.empty((0, 1)), reason=None)
    missing = written_runs.write(tmp_path / "missing", np.array([[1.0], [np.nan]]))
    (missing / "metrics.jsonl").write_text((missing / "metrics.jsonl").read_text().replace("NaN", "null"))
    text = page(going, fresh, missing).text
    assert "not at its end, at 5k of 10k steps" in text
    assert "no end yet: still going, or killed, at 5,000 of 10,000 steps" in text
    assert "no end yet: still going, or killed, at 0 of 10,000 steps" in text and "no evaluation yet" in text
    assert "nan" not in text


def test_speed_shares_lag_and_placement_are_shown(tmp_path: pathlib.Path) -> None:
    measured = SHARES | {"policy_lag_p50": 1, "policy_lag_p99": 3, "samples_per_insert": 8.0, "bottleneck": "inference"}
    run = written_runs.write(tmp_path / "a", written_runs.rising(2), train=measured)
    text = page(run).text
    for words in (
        "12,345",
        "inference",
        "50%",
        "30%",
        "20%",
        "40%",
        "policy lag, median",
        "samples per insert",
        "2 × cpu",
    ):
        assert words in text, words
    assert "Share of time, a" in text


def test_a_sweep_has_a_line_for_each_combination(tmp_path: pathlib.Path) -> None:
    flags = {"sweep": "agent.discount=0.9,0.99", "num_seeds": 2}
    swept = written_runs.write(tmp_path / "a", written_runs.rising(4), flags=flags)
    other = written_runs.write(tmp_path / "b", written_runs.rising(2))
    shown = page(swept, other)
    (curve, _) = [
        str(given["aria-label"])
        for tag, given in shown.elements
        if tag == "svg" and str(given.get("aria-label")).startswith("Evaluation return")
    ]
    assert all(f"{name} ends" in curve for name in ("a, agent.discount=0.9", "a, agent.discount=0.99", "b"))
    assert "(2 seeds)" in shown.text and "(4 seeds)" not in shown.text
    differ = shown.text.index("Settings that differ")
    assert "0.9sweep0.99sweep0.99" in shown.text[differ:]
    # The program is one, with the colour of its first combination; the next run's is the third.
    drawn = [str(given["class"]) for tag, given in shown.elements if tag == "line"]
    swatches = [name for name in drawn if name.startswith("line ")]
    assert swatches[:3] == ["line c0", "line c1", "line c2"] and swatches[-2:] == ["line c0", "line c2"]


def test_one_seed_has_no_words_of_an_interval(tmp_path: pathlib.Path) -> None:
    one = page(written_runs.write(tmp_path / "a", written_runs.rising(1))).text
    assert "interquartile mean; shaded" not in one
    assert "interquartile mean; shaded" in page(written_runs.write(tmp_path / "b", written_runs.rising(2))).text


def test_tasks_have_charts_of_their_own(tmp_path: pathlib.Path) -> None:
    first = written_runs.write(tmp_path / "a", written_runs.rising(2))
    second = written_runs.write(tmp_path / "b", written_runs.rising(2), env="gymnax:Catch-bsuite")
    labels = [
        given["aria-label"] or ""
        for tag, given in page(first, second).elements
        if tag == "svg" and "aria-label" in given
    ]
    curves = [label for label in labels if label.startswith("Evaluation return")]
    assert len(curves) == 4
    assert not any("a ends" in label and "b ends" in label for label in curves)


def test_small_videos_are_embedded_and_large_ones_linked(tmp_path: pathlib.Path) -> None:
    run = written_runs.write(tmp_path / "my runs" / "a", written_runs.rising(1))
    (run / "videos").mkdir()
    for name, size in (("small.mp4", 10), ("small.png", 10), ("large.gif", 4 * 2**20), ("alone.png", 10), ("x.txt", 5)):
        (run / "videos" / name).write_bytes(b"0" * size)
    view = run_view.read(run)
    elements = Page(report.page([view], tmp_path)).elements
    (video,) = [given for tag, given in elements if tag == "video"]
    assert str(video["src"]).startswith("data:video/mp4;base64,") and str(video["poster"]).startswith("data:image/png")
    pictures = [given["alt"] for tag, given in elements if tag == "img"]
    assert pictures == ["alone"]
    links = [given["href"] for tag, given in elements if tag == "a" and not str(given["href"]).startswith("#")]
    assert links == ["my%20runs/a/videos/large.gif"]


def test_a_chart_puts_points_where_their_numbers_say() -> None:
    line = charts.Line(np.array([0.0, 50.0, 100.0]), np.array([0.0, 10.0, np.nan]), "c0", "one")
    text = charts.chart("y", "x", [line], y_range=(0.0, 10.0))
    # The last point is not known, so the axis ends at 50.
    assert 'd="M46.0 222.0 L384.0 10.0"' in text
    assert "y over x: one ends at 10" in text


def test_a_gap_is_a_gap_and_a_lone_point_is_marked() -> None:
    y = np.array([1.0, 2.0, np.nan, 3.0, np.nan, 4.0, 5.0])
    text = charts.chart("y", "x", [charts.Line(np.arange(7.0), y, "c0", "one", np.stack([y - 1, y + 1]))])
    assert text.count("M") - text.count("MiB") == 3 and text.count("<circle") == 1 and text.count("<polygon") == 2


def test_long_lines_are_thinned_to_their_last_point() -> None:
    line = charts.Line(np.arange(10_001.0), np.arange(10_001.0), "c0", "one")
    text = charts.chart("y", "x", [line])
    assert 250 < text.count("L") < 320 and "L384.0 " in text


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 10.0, [0, 2, 4, 6, 8, 10]),
        (-21.0, 20.0, [-20, -10, 0, 10, 20]),
        (0.0, 500_000.0, [0, 1e5, 2e5, 3e5, 4e5, 5e5]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert charts.ticks(low, high) == expected


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = markup.element("b", "1 < 2")
    assert markup.element("p", inner, " & ", title='"', data_x=1, hidden=False) == (
        '<p title="&quot;" data-x="1"><b>1 &lt; 2</b> &amp; </p>'
    )


def test_the_script_writes_a_page_or_refuses_in_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written_runs.write(tmp_path / "a", written_runs.rising(2))
    main = written_runs.script("scripts/report.py")
    assert main(["a", "--out=page.html", "--title=Mine"]) == 0 and capsys.readouterr().out == "page.html\n"
    assert "<h1>Mine</h1>" in (tmp_path / "page.html").read_text()
    wrong = {
        "report.py: none is no run folder: there is no such folder\n": ["none"],
        "report.py: --out=page.pdf: expected a name that ends in .html\n": ["a", "--out=page.pdf"],
        "report.py: --out=none/a.html cannot be written: No such file or directory\n": ["a", "--out=none/a.html"],
    }
    for message, arguments in wrong.items():
        assert main(arguments) == 2 and capsys.readouterr().err == message
