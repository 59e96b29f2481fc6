"""Peers' compiled programs beside ours: the table is whole, and keeps what cannot be compiled here.

What needs the compilers runs in the environment of `make compiled`.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from jaxrl_dist.training import hlo

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
# Ours starts more than .7 of these peers' kernels per environment step: about as many as theirs in a gradient step.
ABOVE = {"purejaxrl/dqn", "rejax/ppo", "rejax/dqn", "rejax/sac"}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import compiled_peers

    return compiled_peers


def _ratio(row: dict[str, Any]) -> float:
    return float(row["ours"]["kernels_per_step"] / row["kernels_per_step"])


def test_the_table_has_a_row_for_every_program(peers: Any) -> None:
    table = peers.read()
    assert list(table) == list(peers.rows())
    assert {name for name, row in table.items() if _ratio(row) > 0.7} == ABOVE


def test_ours_is_the_program_of_the_other_table(peers: Any) -> None:
    import compiled

    own = compiled.read()["ppo_large@h200"]
    for name in ("purejaxrl/ppo", "rejax/ppo", "stoix/ff_ppo"):
        assert peers.read()[name]["ours"]["kernels_per_step"] == own["kernels_per_step"]


def test_an_iteration_is_told_by_its_passes(peers: Any) -> None:
    inner = hlo.Loop("", 4, kernels=5)
    loop = hlo.Loop("", peers.ITERATIONS, kernels=10, loops=[inner])
    small = hlo.Loop("", peers.ITERATIONS, kernels=1)
    assert peers.iteration(hlo.Loop("", 1, kernels=9, loops=[small, hlo.Loop("", 1, loops=[loop])])) is loop
    with pytest.raises(ValueError, match=str(peers.ITERATIONS)):
        peers.iteration(inner)
    inner.passes = None
    with pytest.raises(ValueError, match="device alone"):
        peers.iteration(loop)


def test_a_mapped_program_is_found_where_its_peer_calls_it(peers: Any) -> None:
    import jax
    import jax.numpy as jnp

    def learner_fn(x: jax.Array) -> jax.Array:
        return jax.lax.pmean(x, "device") * 2

    original = jax.pmap
    with peers._Mapped("learner_fn") as mapped:
        reset = jax.pmap(lambda x: x[:3] + 1, axis_name="device")
        learn = jax.pmap(learner_fn, axis_name="device", donate_argnums=(0,))
        begun = reset(jnp.ones((1, 5)))
        assert begun.shape == (1, 3) and not begun.any(), "nothing runs but what is looked for"
        learn(begun)
        raise AssertionError("the peer's loop goes on")
    assert jax.pmap is original
    text = mapped.lower(jax.devices()[0]).compile().as_text()
    assert "f32[1,3]" in text


def test_rows_of_clones_that_are_not_there_are_kept(peers: Any, monkeypatch: Any, tmp_path: Any, capsys: Any) -> None:
    table = tmp_path / "table.jsonl"
    table.write_text(peers.TABLE.read_text())
    monkeypatch.setattr(peers, "TABLE", table)
    monkeypatch.setattr(peers, "PACKAGES", tmp_path)
    monkeypatch.setattr(peers, "_compare", lambda name, row, folder: {"version": "9", "error": f"TypeError: {name}"})
    assert peers.main(["--write", "--rows=purejaxrl/ppo,rejax/ppo"]) == 0
    printed, before, after = capsys.readouterr().out, json.loads(peers.TABLE.read_text().splitlines()[0]), peers.read()
    assert f"| purejaxrl/ppo | {before['version']} |" in printed and "does not compile: TypeError: rejax/ppo" in printed
    assert after["rejax/ppo"] == {"version": "9", "error": "TypeError: rejax/ppo"}
    assert {"row": "purejaxrl/ppo", **after["purejaxrl/ppo"]} == before and list(after) == list(peers.rows())


def test_a_peer_that_fails_has_its_error_as_a_row(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Traceback:\n  File\njax.errors.JaxRuntimeError: UNKNOWN: no 'scf.if'\n  note: more\n"
    monkeypatch.setattr(peers, "version", lambda peer, folder: "1.0")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", said))
    found = peers._compare("rejax/ppo", peers.rows()["rejax/ppo"], "")
    assert found == {"version": "1.0", "error": "jax.errors.JaxRuntimeError: UNKNOWN: no 'scf.if'"}


def test_what_is_missing_is_refused_in_one_line(peers: Any, monkeypatch: Any, tmp_path: Any, capsys: Any) -> None:
    monkeypatch.setattr(peers, "PACKAGES", tmp_path / "none")
    assert peers.main([]) == 2
    assert "make compiled" in capsys.readouterr().err
    monkeypatch.setattr(peers, "PACKAGES", tmp_path)
    assert peers.main(["--rows=acme"]) == 2
    assert "--rows=acme" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rejax/ppo", "rejax/sac", "brax/ppo"])
def test_a_peer_s_program_is_still_that_of_the_table(name: str, peers: Any) -> None:
    if importlib.util.find_spec("jax_cuda12_plugin") is None or not peers.PACKAGES.is_dir():
        pytest.skip("no compiler, or no peers here; `make compiled` installs them")
    command = [sys.executable, str(BENCHMARKS / "compiled_peers.py"), f"--measure={name}"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, timeout=900, check=True).stdout.splitlines()[-1])
    assert found["loops"] == peers.read()[name]["loops"]
