"""No code from a folder: what reads a run imports and starts nothing that its files alone name."""

import ast
import importlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import conftest
import jax
import pytest
from fakes import written_runs

import jaxrl_dist
from jaxrl_dist import commands, envs, errors
from jaxrl_dist.envs import parameters
from jaxrl_dist.export import share
from jaxrl_dist.runs import checkpoint
from jaxrl_dist.settings import user_code
from jaxrl_dist.systems import catalogue
from jaxrl_dist.training import assemble, event_replay, policy, stop, video

ROOT = conftest.PACKAGE.parent
# What a name can lead to: each import, and each call of one of these, leaves the file that `ran` looks for.
CODE = """
import os, pathlib
RAN = pathlib.Path(os.environ["RAN"])
RAN.touch()

import flax.linen as nn
from jaxrl_dist.envs.suites import toy
from jaxrl_dist.systems import SYSTEMS

SYSTEM = SYSTEMS["ppo"]

def make(stmt=""):
    return toy.bare("walk", 3)

def play(session):
    RAN.touch()

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(8)(x)
"""
GYMNASIUM = """
import gymnasium
if "Theirs-v0" not in gymnasium.registry:
    gymnasium.register("Theirs-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
"""
FEW = {"env.num_envs": 4, "evaluation.episodes": 2, "learner.epochs": 1, "learner.minibatches": 1}
SETTINGS = {**conftest.SMALL["ppo"], **FEW, "system": "ppo", "env": "toy:walk"}


@pytest.fixture
def ran(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The file that exists once code of the module `theirs` has run; the module lies where Python looks."""
    folder, marker = tmp_path / "code", tmp_path / "ran"
    folder.mkdir()
    (folder / "theirs.py").write_text(CODE)
    (folder / "their_games.py").write_text(CODE + GYMNASIUM)
    (folder / "program").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (folder / "program").chmod(0o755)
    monkeypatch.setenv("RAN", str(marker))
    monkeypatch.syspath_prepend(folder)
    for name in ("theirs", "their_games"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    catalogue._own_system.cache_clear()
    return marker


def write(folder: pathlib.Path, **named: Any) -> pathlib.Path:
    """Writes a run with these settings on top of a small one, and parameters that fit; returns its folder."""
    settings, environment = assemble.resolve({**SETTINGS, **named, "steps": 64})
    parts = assemble.assemble(settings, environment, jax.devices()[:1])
    params = parts.init(assemble.seed_keys(settings)).learner.params
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings.as_json()))
    checkpoint.save(folder / "checkpoints", "latest", params, {"env_steps": 64})
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of this package's parts alone."""
    return write(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def run(whole: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of it to damage."""
    return pathlib.Path(shutil.copytree(whole, tmp_path / "run"))


def rename(run: pathlib.Path, **values: Any) -> None:
    """Gives settings of a run's `config.json` other values, in a layout that can serve its environment."""
    contents = json.loads((run / "config.json").read_text())
    if values.get("env", "").startswith(("gymnasium:", "external:", "envpool:")):
        contents = catalogue.resolved({**SETTINGS, "env": values["env"]}, "classic").as_json()
    for name, value in values.items():
        contents["settings"].setdefault(name, {"origin": "flag"})["value"] = value
    (run / "config.json").write_text(json.dumps(contents))


NAMED: list[dict[str, str]] = [
    {"env": "custom:theirs:make"},
    {"env": "custom:timeit:timeit", "env.params.stmt": "open(__import__('os').environ['RAN'], 'w')"},
    {"env": "gymnasium:their_games:Theirs-v0"},
    {"env": "external:theirs:play", "env.params.observation": "float32[3]", "env.params.actions": "2"},
    {"network.torso": "theirs:Net"},
    {"system": "theirs:SYSTEM"},
]
READERS: list[Callable[..., Any]] = [
    policy.load,
    lambda run, **more: policy.evaluate(run, 1, 0, "latest", {}, **more),
    video.record_video,
    event_replay.replay_schedule,
    lambda run, **more: event_replay.roll_back(run, 1, **more),
]


@pytest.mark.parametrize("named", NAMED, ids=lambda named: next(iter(named.values())))
@pytest.mark.parametrize("is_imported", [False, True])
def test_what_the_folder_alone_names_is_not_imported(
    named: dict[str, str], is_imported: bool, run: pathlib.Path, ran: pathlib.Path
) -> None:
    name, value = next(iter(named.items()))
    module = value.rpartition(":")[0].rpartition(":")[2]
    if is_imported:
        # That a program has the module, and the cache its system, is no reason to call it for a folder.
        __import__(module)
        catalogue.find_system("theirs:SYSTEM")
        ran.unlink()
    rename(run, **named)
    for read in READERS:
        with conftest.refused(f"--{name}={value}: ".replace("network.torso", "network"), f"--trust={module}"):
            read(run)
    assert not ran.exists()


def test_what_is_trusted_is_imported_and_nothing_beside_it(
    tmp_path: pathlib.Path, run: pathlib.Path, ran: pathlib.Path
) -> None:
    own = write(tmp_path / "own", env="custom:theirs:make", **{"network.torso": "theirs:Net"})
    assert policy.load(own, trust=["theirs"]).env_steps == 64
    assert policy.evaluate(own, 1, 0, "latest", {}, ["theirs"])["env"] == "custom:theirs:make"
    with conftest.refused("--env=", "--trust=theirs"):
        policy.load(own, trust=["their_games", "theirs:make", "their"])
    with pytest.raises(errors.UsageError, match=r"^env=custom:theirs:make: .*trust=\['theirs'\]"):
        policy.load(own)
    rename(run, env="custom:timeit:timeit", **{"network.torso": "theirs:Net"})
    ran.unlink()
    with conftest.refused("--env=custom:timeit:timeit: "):
        policy.load(run, trust=["theirs"])
    assert not ran.exists()


def test_what_a_program_has_registered_with_gymnasium_is_not_a_folder_s_to_make(run: pathlib.Path) -> None:
    pytest.importorskip("gymnasium")
    importlib.import_module("fakes.registered")
    rename(run, env="gymnasium:Counting-v0")
    with conftest.refused("--env=gymnasium:Counting-v0: ", "--trust=fakes.registered"):
        policy.load(run)
    for env, trust in (("Counting-v0", ["fakes.registered"]), ("CartPole-v1", [])):
        with user_code.trusting(trust):
            envs.make(f"gymnasium:{env}")


def test_a_function_that_is_trusted_may_make_its_environment_of_others(
    run: pathlib.Path, ran: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ran.parent / "code" / "outer.py").write_text(
        "from jaxrl_dist import envs\ndef make():\n    return envs.make('custom:theirs:make', {'stmt': 'a/b'})\n"
    )
    monkeypatch.delitem(sys.modules, "outer", raising=False)
    rename(run, env="custom:outer:make")
    assert policy.load(run, trust=["outer"]).env_steps == 64
    rename(run, env="custom:theirs:make")
    with conftest.refused("--trust=theirs"):
        policy.load(run, trust=["outer"])


def test_a_failure_is_run_again_only_where_its_modules_are_trusted(run: pathlib.Path, ran: pathlib.Path) -> None:
    rename(run, env="custom:theirs:make")
    checkpoint.save(run / "failure", "state", {}, {"iteration": 0, "total": 1, "num_devices": 1})
    with conftest.refused("--env=custom:theirs:make: ", "--trust=theirs"):
        jaxrl_dist.replay_failure(run)
    assert not ran.exists()
    # The state of this failure is empty, so that all there is to it is that the module was imported.
    with conftest.refused("the failure"):
        jaxrl_dist.replay_failure(run, trust=["theirs"])
    assert ran.exists()


def test_trust_is_a_list_of_names(run: pathlib.Path) -> None:
    for value in ("theirs", 3, [3], None):
        for read in READERS:
            with conftest.refused("trust=", "my_module"):
                read(run, trust=value)


def test_the_command_that_names_a_module_resumes_by_itself(train: conftest.Train, ran: pathlib.Path) -> None:
    named = {"env": "custom:theirs:make", "network.torso": "theirs:Net", "env.params.stmt": "a/b.c"}
    train(steps=128, **named)
    assert train(steps=256, **named).summary["resumed_from"] == 128
    assert ran.exists()


PROGRAMS = [
    {"env": "envpool:Basic-v1", "env.params.vzd_path": "{code}/program"},
    {"env": "envpool:Basic-v1", "env.params.vzd_path": "program"},
    {"env": "envpool:Basic-v1", "env.params.game_args": "+exec x"},
    {"env": "gymnasium:CartPole-v1", "env.params.env_id": "theirs:Env"},
    {"env": "gymnasium:Ant-v5", "env.params.xml_file": "ant.xml"},
    {"env": "gymnasium:CartPole-v1", "env.params.wrappers": "['theirs.Wrapper']"},
]


@pytest.mark.parametrize("named", PROGRAMS, ids=lambda named: "-".join(named.values()))
def test_programs_and_files_for_a_simulator_are_not_taken_from_a_folder(
    named: dict[str, str], run: pathlib.Path, ran: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {name: value.format(code=tmp_path / "code") for name, value in named.items()}
    name, value = next(entry for entry in named.items() if entry[0] != "env")
    monkeypatch.chdir(tmp_path / "code")
    rename(run, **named)
    with conftest.refused(f"--{name}={value}: ", f"--trust={value}"):
        policy.load(run)
    assert not ran.exists()
    # The program's owner may name it, in a command of his own or for a folder.
    params = {name.removeprefix("env.params."): value}
    parameters.check_trusted(params)
    with user_code.trusting([value]):
        parameters.check_trusted(params)


@pytest.mark.parametrize("text", ["spring", "0.5", "1e-5", "-3", "float32[4]", "OPEN_DIVERSE_G", "0,2", "true", ""])
def test_plain_values_of_parameters_are_taken_from_a_folder(text: str) -> None:
    with user_code.trusting([]):
        parameters.check_trusted({"backend": text, "frame_skip": text})


def test_parameters_that_the_command_gives_are_trusted(tmp_path: pathlib.Path, ran: pathlib.Path) -> None:
    own = write(tmp_path / "own", env="custom:theirs:make", **{"env.params.stmt": "x"})
    assert policy.load(own, settings={"env.params.stmt": "files/x.npz"}, trust=["theirs"]).env_steps == 64
    assert ran.exists()


@pytest.mark.parametrize("script", ["evaluate", "export", "replay_schedule", "rollback"])
def test_commands_refuse_in_one_line_and_take_trust(
    script: str, run: pathlib.Path, ran: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename(run, env="custom:theirs:make")
    given = {
        "evaluate": [f"--run={run}", "--episodes=1"],
        "export": [f"--run={run}", "--format=stablehlo"],
        "rollback": [str(run), "1"],
    }.get(script, [str(run)])
    call = written_runs.script(f"scripts/{script}.py")
    assert call([*given, "--trust=their_games,other"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"{script}.py: --env=custom:theirs:make: ") and line.endswith("--trust=theirs\n")
    assert line.count("\n") == 1 and not ran.exists()
    # The two others then find that it is no asynchronous run.
    assert call([*given, "--trust=other,theirs"]) == (0 if script in ("evaluate", "export") else 2)
    assert ran.exists() and "--trust" not in capsys.readouterr().err


@pytest.mark.parametrize("script", ["plot", "report", "compare"])
def test_commands_that_only_draw_import_nothing_that_a_folder_names(
    script: str, tmp_path: pathlib.Path, ran: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = written_runs.write(tmp_path / "run", written_runs.rising(1))
    rename(run, env="custom:theirs:make", system="theirs:SYSTEM", **{"network.torso": "theirs:Net"})
    assert written_runs.script(f"scripts/{script}.py")([str(run)]) in (0, 2)
    assert not ran.exists()


def test_sharing_imports_nothing_and_what_is_shared_needs_trust_as_before(
    tmp_path: pathlib.Path, run: pathlib.Path, ran: pathlib.Path
) -> None:
    rename(run, env="custom:theirs:make", **{"network.torso": "theirs:Net"})
    shared = share.share(run, str(tmp_path / "shared"))["to"]
    with conftest.refused("--env=custom:theirs:make: ", "--trust=theirs"):
        policy.load(shared)
    assert not ran.exists()
    assert policy.load(write(tmp_path / "own", env="custom:theirs:make"), trust=["theirs"]).env_steps == 64


def test_a_run_starts_from_the_parameters_of_another_without_its_code(
    run: pathlib.Path, train: conftest.Train, ran: pathlib.Path
) -> None:
    rename(run, env="custom:theirs:make", system="theirs:SYSTEM", **{"network.torso": "theirs:Net"})
    assert train(init_from=str(run), folder="next", steps=64, **FEW).reason == "finished"
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "arguments", "here"),
    [
        ("train", [], True),
        ("study", [], True),
        ("evaluate", ["--run=x"], False),
        ("evaluate", ["--run=x", "--trust=theirs"], True),
        ("export", ["--run=x"], False),
        ("share", ["--run=x", "--to=y"], False),
        ("rollback", ["--trust", "theirs", "x", "1"], True),
        ("replay_schedule", ["--flagfile=x"], True),
        ("plot", ["x"], False),
        ("report", ["x"], False),
        ("compare", ["x"], False),
    ],
)
def test_the_current_folder_is_last_where_a_command_may_name_a_module_of_it(
    name: str, arguments: list[str], here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    monkeypatch.setattr(sys, "path", ["of the script", "package", "standard library"])
    heeded: list[bool] = []
    load = importlib.import_module

    def imported(module: str) -> ModuleType:
        # An interrupt within the import of JAX would be dropped, or end in a traceback.
        assert heeded
        return load(module)

    monkeypatch.setattr(importlib, "import_module", imported)
    monkeypatch.setattr(stop, "leave_on_signals", lambda: heeded.append(True))
    monkeypatch.setattr(commands, "run", lambda main, name, arguments: 0)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    assert commands.start(name) == 0
    assert sys.path == ["package", "standard library", *[""] * here]


@pytest.mark.slow
def test_no_file_of_the_current_folder_takes_the_place_of_a_module(
    tmp_path: pathlib.Path, ran: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the command nor in the processes of its environments, which import the module that is trusted."""
    pytest.importorskip("gymnasium")
    here = tmp_path / "code"
    own = write(here / "run", env="gymnasium:their_games:Theirs-v0", **{"env.params.workers": 1})
    ran.unlink()
    for name in ("json", "runpy", "random", "commands", "warp", "numpy", "gymnasium", "jaxrl_dist", "seaborn"):
        (here / f"{name}.py").write_text("import os; open(os.environ['RAN'] + 'TOO', 'w')")
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), f"--run={own}", "--episodes=1"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"}
    refused, done = (
        subprocess.run([*command, *trust], cwd=here, env=environment, capture_output=True, text=True, timeout=120)
        for trust in ([], ["--trust=their_games"])
    )
    assert refused.returncode == 2 and refused.stderr.endswith("--trust=their_games\n"), refused.stderr
    assert done.returncode == 0 and json.loads(done.stdout)["env"] == "gymnasium:their_games:Theirs-v0", done.stderr
    assert ran.exists() and not (tmp_path / "ranTOO").exists()


HOSTILE: list[Any] = [
    *(value for named in [*NAMED, *PROGRAMS] for value in named.values()),
    *("auto", "#", ":", "a:", ":a", "__main__:x", "../../etc", "\0", "\ud800", "\n\x1b[2J", "x" * 5000, "9" * 5000),
    *("gymnasium:CartPole-v1", "dqn", "sebulba", "cpu:9", "nan", "1e400000000", "agent.discount=theirs:Net"),
    *(None, True, 0, -1, 7, 10**30, float("inf"), float("nan"), [], [[]], ["theirs:Net"], {}, {"value": "theirs:Net"}),
]
NEVER_THERE = ("env.params.stmt", "env.params.observe", "env.params.vzd_path", "replay.capacity", "nothing.at_all", "")


def damaged(text: str, generator: random.Random) -> bytes:
    """Returns a file with random bytes cut, changed or put in."""
    data = bytearray(text.encode())
    start, kind = generator.randrange(len(data)), generator.randrange(4)
    if kind == 0:
        return bytes(data[:start])
    if kind == 1:
        data[start] = generator.randrange(256)
    put = generator.choice([b"{", b"]", b'"', b"null", b"1e999", b"[" * 100_000, b'"theirs:Net"'])
    data[start : start + generator.randrange(100) * (kind == 2)] = put if kind > 1 else data[start : start + 1]
    return bytes(data)


def test_whatever_a_folder_says_no_code_of_it_runs_and_the_answer_is_one_line(
    run: pathlib.Path, ran: pathlib.Path
) -> None:
    generator = random.Random(7)
    text = (run / "config.json").read_text()
    names = [*json.loads(text)["settings"], *NEVER_THERE]
    cases = [(name, generator.choice(HOSTILE)) for name in names]
    cases += [(name, value) for name in ("env", "system", "network.torso") for value in HOSTILE[:12]]
    loaded = 0
    for name, value in [*cases, *[("", None)] * 30]:
        if value is None:
            (run / "config.json").write_bytes(damaged(text, generator))
        else:
            contents = json.loads(text)
            contents["settings"].setdefault(name, {"origin": "flag"})["value"] = value
            (run / "config.json").write_text(json.dumps(contents))
        try:
            loaded += policy.load(run).env_steps == 64
        except (errors.UsageError, errors.CheckpointError) as error:
            assert errors.as_typed(error).isprintable(), (name, value)
        assert not ran.exists(), (name, value)
    assert 5 < loaded < len(cases)


BY_NAME = {"import_module", "__import__", "run_path", "run_module", "spec_from_file_location"}
# Names of the package's own files, of installed packages, and, in the last two, of what the user has named or trusts.
IMPORTERS = {
    *("__init__.py", "commands/__init__.py", "envs/__init__.py", "systems/__init__.py", "envs/suites/gymnax.py"),
    *("envs/suites/gymnasium.py", "envs/suites/pettingzoo.py", "envs/host/together.py", "envs/host/worker_process.py"),
    "settings/user_code.py",
}


def test_modules_are_imported_by_computed_names_in_known_places_alone() -> None:
    found = set()
    for path in conftest.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in BY_NAME:
                constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
                found |= set() if constant else {path.relative_to(conftest.PACKAGE).as_posix()}
    assert found == IMPORTERS
