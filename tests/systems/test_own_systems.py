"""Systems of users: `--system=module:SYSTEM`, and what installed packages offer."""

import dataclasses
import importlib
import json
import pathlib
import re
import shutil
import sys
import types

import conftest
import marks
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import envs, errors, systems
from jaxrl_dist.settings import cited, user_code
from jaxrl_dist.systems import catalogue, training_flags

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "writing_an_agent.md"
NAME = "reinforce:SYSTEM"
SMALL = {"env.num_envs": 4, "layout.unroll_length": 8, "network.hidden_sizes": (8,), "evaluation.episodes": 2}


@pytest.fixture
def reinforce(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The file of the page, where Python looks."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "reinforce.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "reinforce", raising=False)
    catalogue._own_system.cache_clear()
    return folder


@pytest.mark.usefixtures("reinforce")
@pytest.mark.parametrize("layout", marks.some(["anakin", "sebulba", "async_gradient"], fast={"sebulba"}))
def test_a_file_of_the_user_s_trains_and_resumes_in_every_layout(layout: str, tmp_path: pathlib.Path) -> None:
    own = {"layout.num_workers": 1} if layout == "async_gradient" else {}
    settings = {**SMALL, **own, "agent.discount": 0.9}
    out = tmp_path / "run"
    first = jaxrl_dist.train(NAME, "toy:walk", layout=layout, steps=64, out=str(out), settings=settings)
    assert first.reason == "finished" and np.isfinite(first.summary["eval_return_mean"])
    written = json.loads((out / "config.json").read_text())["settings"]
    assert written["system"]["value"] == NAME and written["agent.discount"]["value"] == 0.9
    second = jaxrl_dist.train(NAME, "toy:walk", layout=layout, steps=128, out=str(out), settings=settings)
    assert second.summary["resumed_from"] == 64 and second.summary["env_steps"] == 128
    assert second.summary["params_sha256"] != first.summary["params_sha256"]
    policy = jaxrl_dist.load(out, trust=["reinforce"])
    assert policy.env_steps == 128 and policy.settings["agent.discount"] == 0.9


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("LossOutput(loss, batch", "LossOutput(loss.mean(), batch", ["loss().loss ", "()", "(32,)"]),
        ("batch.taught, jnp", "batch.taught.sum(), jnp", ["loss().valid ", "()", "(32,)"]),
        ("jnp.zeros_like(loss), masked", "loss[:, None], masked", ["loss().priority ", "(32, 1)", "(32,)"]),
        ("masked, {})", "{'entropy': loss.mean()}, {})", ["loss().metrics['entropy'] ", "()", "(32,)"]),
        ("masked, {})", "masked, {'ratio': loss[:3]})", ["loss().maxima['ratio'] ", "(3,)", "(32,)"]),
        ("return types.LossOutput(loss, batch.taught, jnp.zeros_like(loss), masked, {})", "return loss.mean()",
         ["loss() ", "()", "types.LossOutput"]),
        ("distribution(outputs).sample(inputs.key), ", "distribution(outputs).sample(inputs.key)[0], ",
         ["act().action ", "()", "(4,)"]),
        ('outputs["value"][..., 0], carry)', 'outputs["value"][..., 0], (jnp.zeros(4),))', ["act().carry "]),
        ("distribution(outputs).mode(), ", "distribution(outputs).mode()[..., None], ", ["evaluate().action ", "1), "]),
    ],
)  # fmt: skip
def test_results_of_wrong_shapes_are_refused_as_the_run_is_built(
    reinforce: pathlib.Path, tmp_path: pathlib.Path, right: str, wrong: str, named: list[str]
) -> None:
    code = (reinforce / "reinforce.py").read_text()
    assert code.count(right) == 1
    (reinforce / "reinforce.py").write_text(code.replace(right, wrong))
    with conftest.refused(f"--system={NAME}: ", *named):
        jaxrl_dist.train(NAME, "toy:walk", steps=32, out=str(tmp_path / "run"), settings=SMALL)


def test_a_run_whose_file_is_gone_says_what_it_needs(reinforce: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "run"
    jaxrl_dist.train(NAME, "toy:walk", steps=32, out=str(out), settings=SMALL)
    shutil.rmtree(reinforce)
    sys.modules.pop("reinforce")
    catalogue._own_system.cache_clear()
    with conftest.refused("--system=reinforce:SYSTEM: ", "ModuleNotFoundError", "'reinforce'"):
        jaxrl_dist.load(out, trust=["reinforce"])


@pytest.mark.usefixtures("reinforce")
def test_its_flags_are_checked_and_described_like_ours() -> None:
    parsed = training_flags.parse([f"--system={NAME}", "--agent.discount=0.9"])
    assert parsed.settings is not None and parsed.settings["agent.discount"] == 0.9
    with conftest.refused("--agent.discount=1.5: "):
        training_flags.parse([f"--system={NAME}", "--agent.discount=1.5"])
    with conftest.refused("--agent.discont: ", NAME, " --agent.discount?"):
        training_flags.parse([f"--system={NAME}", "--agent.discont=0.5"])
    assert "--agent.discount" in training_flags.parse([f"--system={NAME}", "--help"]).text


@pytest.mark.parametrize(
    ("name", "code", "named"),
    [
        ("own_row:SISTEM", "from jaxrl_dist.systems import SYSTEMS\nSYSTEM = SYSTEMS['ppo']", [" SYSTEM?"]),
        ("own_row:SYSTEM", "SYSTEM = 3", ["own_row "]),
        ("own_row:SYSTEM", "import no_such_library", ["ModuleNotFoundError", "own_row.py:1: ", "'no_such_library'"]),
        ("nowhere:SYSTEM", "", ["ModuleNotFoundError", "'nowhere'"]),
        ("own_row:", "", ["module:NAME"]),
        (
            "own_row:SYSTEM",
            "import dataclasses\nfrom jaxrl_dist.systems import SYSTEMS\n"
            "@dataclasses.dataclass\nclass Config:\n    size: int = 3\n"
            "SYSTEM = dataclasses.replace(SYSTEMS['ppo'], config=Config)",
            ["Config.size "],
        ),
    ],
)
def test_what_is_no_system_is_refused_in_one_line(
    name: str, code: str, named: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_row.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_row", raising=False)
    catalogue._own_system.cache_clear()
    with conftest.refused(f"--system={name}: ", *named):
        training_flags.parse([f"--system={name}"])


@pytest.fixture
def package(reinforce: pathlib.Path) -> None:
    """An installed package that offers a system and a suite."""
    (reinforce / "my_suite.py").write_text(
        "from jaxrl_dist.envs.suites import toy\nSUITE = toy.SUITE._replace(name='anything')\n"
    )
    about = reinforce / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[jaxrl_dist.systems]\nmine = reinforce:SYSTEM\n[jaxrl_dist.envs]\nmy_suite = my_suite:SUITE\n"
    )


@pytest.mark.usefixtures("package")
def test_an_installed_package_offers_systems_and_suites(tmp_path: pathlib.Path) -> None:
    for cached in (user_code.installed, envs.registry):
        cached.cache_clear()
    try:
        run = jaxrl_dist.train("mine", "my_suite:walk", steps=32, out=str(tmp_path / "run"), settings=SMALL)
        assert run.reason == "finished" and run.summary["system"] == "mine"
        # Its folder may name what is installed, but nothing else of the same module.
        assert jaxrl_dist.load(run.folder).env_steps == 32
        config = tmp_path / "run" / "config.json"
        config.write_text(config.read_text().replace('"mine"', '"reinforce:SYSTEM"'))
        with conftest.refused("--system=reinforce:SYSTEM: ", "--trust=reinforce"):
            jaxrl_dist.load(run.folder)
        assert "mine: reinforce:SYSTEM" in catalogue.list_text() and "my_suite: " in catalogue.list_text()
        with conftest.refused("--system=min: ", " mine?"):
            training_flags.parse(["--system=min"])
    finally:
        for cached in (user_code.installed, envs.registry):
            cached.cache_clear()


def _row() -> systems.System:
    """A row that no module has, made anew as by a notebook that runs again."""
    settings = cited("ours", {"agent.discount": 0.8})
    return dataclasses.replace(systems.SYSTEMS["ppo"], name="own_ppo", settings=settings, families={}, by_layout={})


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["anakin", "sebulba", "async_gradient"])
def test_a_row_that_a_program_made_trains_resumes_and_loads_with_it_alone(layout: str, tmp_path: pathlib.Path) -> None:
    own = {"layout.num_workers": 1} if layout == "async_gradient" else {}
    given = {"layout": layout, "out": str(tmp_path / "run"), "settings": {**SMALL, "network": "mlp", **own}}
    jaxrl_dist.train(_row(), "toy:walk", steps=64, **given)
    written = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert re.fullmatch(r"own_ppo#[0-9a-f]{8}", written["system"]["value"])
    assert written["agent.discount"]["value"] == 0.8
    assert jaxrl_dist.train(_row(), "toy:walk", steps=128, **given).summary["resumed_from"] == 64
    assert jaxrl_dist.load(tmp_path / "run", system=_row()).env_steps == 128
    with conftest.refused(f"--system={written['system']['value']}: "):
        jaxrl_dist.load(tmp_path / "run")
    other = dataclasses.replace(_row(), settings={})
    with pytest.raises(errors.UsageError, match=f"^system=own_ppo#.*: .*{written['system']['value']}$"):
        jaxrl_dist.load(tmp_path / "run", system=other)
    with conftest.refused("--out=", f"system {written['system']['value']} -> own_ppo#"):
        jaxrl_dist.train(other, "toy:walk", steps=128, **given)


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_a_row_of_the_program_itself_has_no_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = types.ModuleType("__main__")
    program.ROW = _row()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, program)
    assert re.fullmatch(r"own_ppo#[0-9a-f]{8}", catalogue.named_row(program.ROW).name)


def test_a_row_of_a_module_goes_by_the_module_s_name(reinforce: pathlib.Path, tmp_path: pathlib.Path) -> None:
    del reinforce
    row = importlib.import_module("reinforce").SYSTEM
    run = jaxrl_dist.train(row, "toy:walk", steps=32, out=str(tmp_path / "run"), settings=SMALL)
    assert run.summary["system"] == NAME and jaxrl_dist.load(run.folder, trust=["reinforce"]).env_steps == 32
    assert jaxrl_dist.make(row, "toy:walk").settings["system"] == NAME
    ours = jaxrl_dist.make(systems.SYSTEMS["dqn"], "toy:walk").settings
    assert ours["system"] == "dqn" and ours == jaxrl_dist.make("dqn", "toy:walk").settings
