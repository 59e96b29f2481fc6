"""The zoo: its rows are presets, and what was measured stands in its table, in the preset, and in the document."""

import json
import pathlib
from typing import Any

import conftest
import numpy as np
import pytest

from jaxrl_dist.analysis import reference
from jaxrl_dist.systems import catalogue

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import zoo

    return zoo


def test_every_row_is_a_preset_of_one_task(zoo: Any) -> None:
    assert len(set(zoo.ROWS)) == len(zoo.ROWS) and set(zoo.ROWS) <= set(catalogue.preset_names())
    assert zoo.reference_name("ppo/lunar_lander") == "lunar_lander_ppo"
    assert set(zoo.PUBLISHED) <= set(zoo.ROWS)


def test_what_was_measured_stands_everywhere(zoo: Any) -> None:
    table = zoo.jsonl.read(zoo.TABLE)
    assert set(table) <= set(zoo.ROWS)
    assert zoo.table() in zoo.RESULTS.read_text(encoding="utf-8")
    references = {one.name: one for one in reference.read_all(ROOT / "benchmarks" / "reference")}
    for name, row in table.items():
        curve = references.get(zoo.reference_name(name))
        assert (curve is None) == (len(row["returns"]) < reference.SMALLEST_SEEDS)
        if curve is not None:
            np.testing.assert_allclose(curve.returns[-1], row["returns"], rtol=1e-4, atol=1e-4)
        assert f"# Result: {zoo.scored(row)}, " in (catalogue.PRESETS / f"{name}.flags").read_text(encoding="utf-8")


def test_a_row_is_written_where_it_belongs(zoo: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = (catalogue.PRESETS / "ppo" / "acrobot.flags").read_text(encoding="utf-8")
    (tmp_path / "presets" / "ppo").mkdir(parents=True)
    (tmp_path / "presets" / "ppo" / "acrobot.flags").write_text(preset, encoding="utf-8")
    start, end = zoo.MARKERS
    (tmp_path / "results.md").write_text(f"before\n{start}old\n{end}after\n", encoding="utf-8")
    row = {"row": "ppo/acrobot", "returns": [-90.0, -80.0, -70.0, -100.0, -85.0], "steps": 500_000, "wall_s": 90}
    (tmp_path / "zoo.jsonl").write_text(
        json.dumps(row | {"commit": "0123456789, fedcba9876-dirty"}) + "\n", encoding="utf-8"
    )
    monkeypatch.setattr(zoo, "TABLE", tmp_path / "zoo.jsonl")
    monkeypatch.setattr(zoo, "RESULTS", tmp_path / "results.md")
    monkeypatch.setattr(zoo.catalogue, "PRESETS", tmp_path / "presets")
    zoo.write()
    # Without the lowest and the highest: (90 + 85 + 80) / 3.
    wanted = (
        "| `gymnax:Acrobot-v1` | 500k | −85 [−95, −73.33] | −100 | 5 | 1.5 | −86.4 ± 1.3, CleanRL | 0123456, fedcba9 |"
    )
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert text.startswith(f"before\n{start}\n| preset |") and text.endswith(f"\n{end}after\n") and "old" not in text
    assert wanted in text
    missing = text.partition("\nNot measured yet: ")[2]
    assert "`a2c/acrobot`" in missing and "`ppo/acrobot`" not in missing
    written = (tmp_path / "presets" / "ppo" / "acrobot.flags").read_text(encoding="utf-8")
    assert "# Result: -85 [-95, -73.33], 5 seeds (docs/results.md, zoo).\n" in written
    assert len(written.splitlines()) == len(preset.splitlines())


def test_rows_that_a_table_lacks_are_run_and_kept_in_order(zoo: Any, tmp_path: pathlib.Path) -> None:
    table, run, rows = tmp_path / "table.jsonl", [], {"a/x": 1.0, "a/y": 2.0, "b/x": 3.0}

    def train(value: float, folder: pathlib.Path) -> dict[str, Any]:
        run.append(value)
        (folder / "seed0").mkdir(parents=True, exist_ok=True)
        if value > 3:
            raise OSError
        return {"returns": [value]}

    def fill(*flags: str) -> dict[str, Any]:
        flags = (f"--runs={tmp_path}", *flags)
        return zoo.jsonl.fill(table, rows, zoo.jsonl.parser(None).parse_args(flags), train)

    assert fill("--minutes=0") == {} and run == []
    assert fill("--rows=b/") == {"b/x": {"returns": [3.0]}}
    assert list(fill("--rows=a/x,b/")) == ["a/x", "b/x"] and run == [3.0, 1.0]
    assert list(fill()) == list(rows) and run == [3.0, 1.0, 2.0]
    assert list(zoo.jsonl.read(table)) == list(rows)
    rows["b/y"] = 4.0
    with pytest.raises(OSError):
        fill()
    # What a stopped row trained stays for the next call; what is in the table goes.
    assert sorted((tmp_path / "table").rglob("seed0")) == [tmp_path / "table" / "b" / "y" / "seed0"]


@pytest.mark.slow
def test_a_row_that_was_stopped_goes_on(zoo: Any, tmp_path: pathlib.Path) -> None:
    flags = ("--system=a2c", "--env=toy:walk", *(f"--{name}={value}" for name, value in conftest.SMALL["a2c"].items()))

    def train(*seeds: int) -> Any:
        def read(run: pathlib.Path) -> dict[str, Any]:
            return {**json.loads((run / "summary.json").read_text()), "lines": (run / "metrics.jsonl").read_text()}

        return zoo.programs.train(flags, [(seed, 1) for seed in seeds], tmp_path, read)

    (first,), wall_s, commit, device = train(0)
    config = json.loads((tmp_path / "seed0" / "config.json").read_text())
    (session,) = config["software"]
    assert session["commit"] == commit
    session["commit"] = "fedcba9876543210"
    (tmp_path / "seed0" / "config.json").write_text(json.dumps(config))
    both = train(0, 1)
    (again, other), both_s, commits, _ = both
    assert device == "cpu" and "device" not in both.facts() and both._replace(device="A").facts()["device"] == "A"
    assert commits == f"fedcba9876543210, {commit}"
    assert first["wall_s"] == wall_s and both_s == wall_s + other["wall_s"] > wall_s > 0
    assert (
        again["lines"] == first["lines"] and again["params_sha256"] == first["params_sha256"] != other["params_sha256"]
    )
