"""The page about runs: whole, alone, escaped; and its charts, which show the numbers that they are given."""

import html.parser
import pathlib
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from fakes import written_runs

from jaxrl_dist.analysis import plots, report
from jaxrl_dist.analysis.report import pages
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
        self.source = text
        self.cells: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("th", "td"):
            self.cells.append((str(dict(attrs)["role"]), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if "style" not in self.open else ""
        if {"th", "td"} & set(self.open):
            role, text = self.cells[-1]
            self.cells[-1] = role, text + data

    def charts(self, start: str = "") -> list[str]:
        """Lists the words of charts."""
        shown = [given for tag, given in self.elements if tag == "svg" and given["class"] == "chart"]
        return [str(given["aria-label"]) for given in shown if str(given["aria-label"]).startswith(start)]

    def titles(self, start: str) -> list[list[str]]:
        """Lists the titles of what the charts with such words hold, their own first."""
        return [[str(one.text) for one in picture.iter("title")] for picture in self._pictures(start)]

    def styles(self, start: str) -> list[str]:
        """Lists the styles in the charts with such words, each as one text."""
        return [" ".join(one.get("style") or "" for one in picture.iter()) for picture in self._pictures(start)]

    def _pictures(self, start: str) -> list[ElementTree.Element]:
        found = [ElementTree.fromstring(one) for one in re.findall("<svg.*?</svg>", self.source, re.DOTALL)]
        return [one for one in found if str(one.get("aria-label")).startswith(start)]


def page(*folders: pathlib.Path) -> Page:
    return Page(report.page([run_view.read(folder, folder.name) for folder in folders], folders[0].parent))


def test_the_page_needs_nothing_beside_it(tmp_path: pathlib.Path) -> None:
    runs = [written_runs.write(tmp_path / name, written_runs.rising(3)) for name in ("a", "b")]
    text = report.page([run_view.read(folder, folder.name) for folder in runs], tmp_path)
    shown = Page(text)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in shown.elements}
    addresses = [value for _, given in shown.elements for key, value in given.items() if key in ("src", "href")]
    assert addresses and all(str(address).startswith(("#", "data:")) for address in addresses)
    style = (pages.TEMPLATES / "page.css").read_text()
    assert style.strip() in text
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


def test_names_that_are_no_text_are_written(tmp_path: pathlib.Path) -> None:
    folder = written_runs.write(tmp_path / "caf\udce9", written_runs.rising(2), flags={"init_from": "\ud800"})
    report.write([run_view.read(folder)], tmp_path / "page.html", "", [])
    assert "caf\\udce9" in (tmp_path / "page.html").read_text(encoding="utf-8")


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
    (curve, _) = shown.charts("Evaluation return over")
    assert all(f"{name} ends" in curve for name in ("a, agent.discount=0.9", "a, agent.discount=0.99", "b"))
    assert "(2 seeds)" in shown.text and "(4 seeds)" not in shown.text
    cells = [" ".join(text.split()) for _, text in shown.cells]
    for name, value in (
        ("a, agent.discount=0.9", "0.9 sweep"),
        ("a, agent.discount=0.99", "0.99 sweep"),
        ("b", "0.99 "),
    ):
        rows = [cells[i + 1] for i, cell in enumerate(cells) if cell == name]
        assert any(cell.startswith(value) for cell in rows), name
    # The program is one, with the colour of its first combination; the next run's is the third.
    classes = [str(given.get("class")) for tag, given in shown.elements if tag == "span"]
    swatches = [name for name in classes if name.startswith("swatch ")]
    assert swatches[:3] == ["swatch c0", "swatch c1", "swatch c2"]
    assert swatches[-2:] == ["swatch c0", "swatch c2"]
    assert [{f"var(--c{i})" in text for i in range(3)} for text in shown.styles("Evaluation return over")] == [
        {True}
    ] * 2


def test_one_seed_has_no_words_of_an_interval(tmp_path: pathlib.Path) -> None:
    one = page(written_runs.write(tmp_path / "a", written_runs.rising(1))).text
    assert "interquartile mean; shaded" not in one
    assert "interquartile mean; shaded" in page(written_runs.write(tmp_path / "b", written_runs.rising(2))).text


def test_tasks_have_charts_of_their_own(tmp_path: pathlib.Path) -> None:
    first = written_runs.write(tmp_path / "a", written_runs.rising(2))
    second = written_runs.write(tmp_path / "b", written_runs.rising(2), env="gymnax:Catch-bsuite")
    curves = page(first, second).charts("Evaluation return over")
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


def embedded(panel: plots.Panel, prefix: str = "p0-") -> ElementTree.Element:
    return ElementTree.fromstring(pages.embedded(panel, prefix, "chart"))


def test_a_chart_puts_points_where_their_numbers_say() -> None:
    def draw(axes: Any) -> None:
        axes.plot([0.0, 50.0, 100.0], [0.0, 10.0, np.nan], color=plots.COLOURS[0], gid="title one")
        axes.plot([0.0, 50.0], [5.0, 5.0], color=plots.COLOURS[1])
        axes.set_xlim(0.0, 50.0)
        axes.set_ylim(0.0, 10.0)

    ends = [("one", np.array([0.0, 10.0, np.nan]))]
    shown = embedded(plots.Panel("y", "x", draw, ends))
    lines = {
        path.get("style"): path.get("d") or "" for path in shown.iter("path") if "--c" in (path.get("style") or "")
    }
    first, second = ([float(x) for x in re.findall(r"[\d.]+", line)] for line in lines.values())
    # The last point is not known, so the first line goes through the corners of the panel, and the second half way up.
    left, bottom, right, top = first
    assert left < right and bottom > top
    assert second == pytest.approx([left, (bottom + top) / 2, right, (bottom + top) / 2], abs=0.1)
    assert shown.get("aria-label") == "y over x: one ends at 10"
    assert [title.text for title in shown.iter("title")] == ["y", "one"]


def test_text_of_pictures_is_text_in_the_fonts_and_colours_of_the_page(tmp_path: pathlib.Path) -> None:
    text = report.page([run_view.read(written_runs.write(tmp_path / "a", written_runs.rising(3)), "a")], tmp_path)
    pictures = [ElementTree.fromstring(one) for one in re.findall("<svg.*?</svg>", text, re.DOTALL)]
    charts = [one for one in pictures if one.get("class") == "chart"]
    assert len(charts) == 3 and len(pictures) == 4
    for one in pictures:
        assert one.get("role") == "img" and one.get("aria-label") and one.find("title") is not None
        assert not {"style", "metadata", "image", "script"} & {element.tag for element in one.iter()}
        styles = [element.get("style") or "" for element in one.iter()]
        assert not any("font-family" in style or "#" in style.replace("url(#", "") for style in styles)
    for one in charts:
        words = {element.text for element in one.iter("text")}
        assert "Environment steps per seed" in words or "Wall time (seconds)" in words
    names = [element.get("id") for one in pictures for element in one.iter() if element.get("id")]
    assert len(names) == len(set(names))
    used = {name for one in re.findall(r'(?:href="#|url\(#)(p\d[^")]*)', text) for name in [one]}
    assert used == set(names)
    style = (pages.TEMPLATES / "page.css").read_text()
    dark = style[style.index("prefers-color-scheme: dark") :]
    for name in set(re.findall(r"var\((--\w+)\)", text)):
        assert f"{name}: #" in style and f"{name}: #" in dark


def test_a_page_is_the_same_each_time_but_for_its_date(tmp_path: pathlib.Path) -> None:
    views = [run_view.read(written_runs.write(tmp_path / "a", written_runs.rising(3)), "a")]
    first, second = (re.sub("Written .*UTC", "", report.page(views, tmp_path)) for _ in range(2))
    assert first == second


HOSTILE = (
    "<script>alert(1)</script>",
    r"$\frac{1}{",
    "a\nb\x1b[31m",
    "x" * 10_000,
    "{{ 7 * 191 }}",
    "]]>-->",
    "\"'&lt;",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_others_are_text_and_nothing_else(tmp_path: pathlib.Path, name: str) -> None:
    measured = SHARES | {"policy_lag_p50": 1, "policy_lag_p99": 3, "bottleneck": name[:200]}
    runs = [written_runs.write(tmp_path / f"{i}", written_runs.rising(2), train=measured) for i in range(2)]
    views = []
    for i, run in enumerate(runs):
        view = run_view.read(run, f"{name}{i}")
        settings, origins = {**view.settings, "env": name, "env.params.x": i}, {**view.origins, "env.params.x": name}
        views.append(view._replace(settings=settings, origins=origins, troubles=(name,)))
    clean = page(*runs)
    shown = Page(report.page(views, tmp_path, name))
    assert {tag for tag, _ in shown.elements} == {tag for tag, _ in clean.elements} | {"ul", "li"}
    assert not any(key.startswith("on") for _, given in shown.elements for key in given)
    assert name in shown.text and "1337" not in shown.text.split("Settings")[0]


def test_one_place_takes_text_for_markup() -> None:
    sources = [path.read_text() for path in sorted(pages.TEMPLATES.parents[1].rglob("*.py"))]
    assert sum(text.count("Markup(") for text in sources) == 1
    for template in pages.TEMPLATES.glob("*.html"):
        assert not re.search(r"\|\s*safe|autoescape|Markup", template.read_text())


@pytest.mark.parametrize("count", [4, 12])
def test_a_setting_is_a_row_where_there_are_many(tmp_path: pathlib.Path, count: int) -> None:
    views, more = [], {f"agent.x{i}": "flag" for i in range(count)}
    for i in range(9):
        view = run_view.read(written_runs.write(tmp_path / f"{i}", written_runs.rising(1)), f"run {i}")
        settings = view.settings | dict.fromkeys(more, i)
        views.append(view._replace(settings=settings, origins=view.origins | more))
    shown = Page(report.page(views, tmp_path))
    (table,) = [
        given for tag, given in shown.elements if tag == "div" and "that differ" in (given.get("aria-label") or "")
    ]
    heads = [text for tag, text in shown.cells if tag == "columnheader"]
    assert table["tabindex"] == "0" and ("agent.x0" in heads) == (count == 4)


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
