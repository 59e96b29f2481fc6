"""Trackers, with stand-ins for their packages that note every call; and with the packages, where they are installed."""

import json
import pathlib
import sys
import threading
import types
from typing import Any

import conftest
import pytest

import jaxrl_dist
from jaxrl_dist.runs import loggers, software, trackers
from jaxrl_dist.runs import metrics as run_metrics
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import resume

Call = tuple[str, Any]
EXTRAS = {"wandb": ("log.wandb", "shop"), "mlflow": ("log.mlflow", "shop")}


def write(folder: pathlib.Path, *steps: int, discount: float = 0.9, **destinations: str) -> None:
    settings = loggers.Config(tensorboard=False, progress=False, **destinations)
    named = {"agent.discount": discount, "network.hidden_sizes": (16, 16)}
    with loggers.Logger(folder, settings, title="ppo on it", settings=named, display=False) as logger:
        for step in steps:
            logger.log({"kind": "train", "env_steps": step, "loss": step / 2, "per_seed": [1.0, None], "note": "text"})


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in that appends to its `calls`; it is logged in, and `broken` makes its `log` raise."""
    module: Any = types.ModuleType("wandb")
    module.calls, module.broken = [], False

    def log(values: dict[str, float]) -> None:
        if module.broken:
            raise ConnectionError("no route")
        module.calls.append(("log", values))

    def init(**arguments: Any) -> Any:
        module.calls.append(("init", arguments))
        own = {"define_metric": lambda name, step_metric: None, "finish": lambda: module.calls.append(("finish", {}))}
        return types.SimpleNamespace(log=log, **own)

    module.login, module.init, module.Settings = lambda prompt: True, init, dict
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Calls of the client of a stand-in."""
    calls: list[Call] = []

    class Client:
        def get_experiment_by_name(self, name: str) -> None:
            calls.append(("experiment", name))

        def create_experiment(self, name: str) -> str:
            return f"id of {name}"

        def create_run(self, experiment_id: str, run_name: str) -> Any:
            calls.append(("create", (experiment_id, run_name)))
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="run 7"))

        def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
            # As the service: https://mlflow.org/docs/latest/rest-api.html (log-batch).
            assert len(metrics) <= 1_000 and len(params) <= 100
            calls.append(("batch", (run_id, *[item[:2] + item[3:] for item in metrics], *params)))

        def update_run(self, run_id: str, status: str) -> None:
            calls.append((status, run_id))

        def set_terminated(self, run_id: str) -> None:
            calls.append(("finish", run_id))

    package, entities, tracking = (types.ModuleType(name) for name in ("mlflow", "entities", "tracking"))
    entities.Metric = entities.Param = lambda *values: values  # type: ignore[attr-defined]
    tracking.MlflowClient = Client  # type: ignore[attr-defined]
    package.entities, package.tracking = entities, tracking  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    return calls


def test_wandb_gets_numbers_settings_and_an_end(tmp_path: pathlib.Path, wandb: Any) -> None:
    write(tmp_path, 10, wandb="shop")
    (_, opened), *rest = wandb.calls
    assert (opened["project"], opened["name"], opened["dir"]) == ("shop", "ppo on it", str(tmp_path))
    assert opened["config"]["agent.discount"] == 0.9
    assert rest == [("log", {"env_steps": 10, "train/loss": 5.0, "train/per_seed/0": 1.0}), ("finish", {})]


def test_a_resumed_run_goes_on_in_its_own_run_and_sends_nothing_twice(tmp_path: pathlib.Path, wandb: Any) -> None:
    write(tmp_path, 10, 20, wandb="shop")
    run_metrics.truncate_after(tmp_path, 10)
    write(tmp_path, 20, 30, wandb="shop")
    opened = [values for name, values in wandb.calls if name == "init"]
    assert opened[0]["id"] == opened[1]["id"] and opened[1]["resume"] == "allow"
    assert [values["env_steps"] for name, values in wandb.calls if name == "log"] == [10, 20, 30]
    write(tmp_path, 40, wandb="elsewhere")
    assert wandb.calls[-3][1]["id"] != opened[0]["id"]


def test_mlflow_gets_numbers_settings_and_an_end_and_is_resumed(tmp_path: pathlib.Path, mlflow: list[Call]) -> None:
    write(tmp_path, 10, mlflow="shop")
    assert mlflow == [
        ("experiment", "shop"),
        ("create", ("id of shop", "ppo on it")),
        ("batch", ("run 7", ("agent.discount", "0.9"), ("network.hidden_sizes", "(16, 16)"))),
        ("batch", ("run 7", ("train/loss", 5.0, 10), ("train/per_seed/0", 1.0, 10))),
        ("finish", "run 7"),
    ]
    mlflow.clear()
    write(tmp_path, 10, 20, mlflow="shop")
    numbers = ("batch", ("run 7", ("train/loss", 10.0, 20), ("train/per_seed/0", 1.0, 20)))
    assert mlflow == [("RUNNING", "run 7"), numbers, ("finish", "run 7")]


def test_mlflow_gets_as_many_numbers_at_once_as_it_takes(tmp_path: pathlib.Path, mlflow: list[Call]) -> None:
    settings = loggers.Config(tensorboard=False, progress=False, mlflow="shop")
    with loggers.Logger(tmp_path, settings, title="it", settings={}, display=False) as logger:
        logger.log({"kind": "train", "env_steps": 10, "per_seed": [1.0] * 1_500})
    sent = [values[1:] for name, values in mlflow if name == "batch"]
    assert [len(numbers) for numbers in sent if numbers] == [1_000, 500]
    assert {name for numbers in sent for name, *_ in numbers} == {f"train/per_seed/{i}" for i in range(1_500)}


def test_a_run_that_begins_anew_in_its_folder_is_another_run_of_each_tracker(
    tmp_path: pathlib.Path, wandb: Any, mlflow: list[Call]
) -> None:
    write(tmp_path, 0, wandb="shop", mlflow="shop")
    resume._begin_anew(tmp_path)
    write(tmp_path, 0, 10, discount=0.5, wandb="shop", mlflow="shop")
    first, second = [values for name, values in wandb.calls if name == "init"]
    assert first["id"] != second["id"] and second["config"]["agent.discount"] == 0.5
    assert [values["env_steps"] for name, values in wandb.calls if name == "log"] == [0, 0, 10]
    told = [values for name, values in mlflow if name == "batch"]
    assert [name for name, _ in mlflow].count("create") == 2 and "RUNNING" not in dict(mlflow)
    assert [values[1] for values in told if values[1][0] == "agent.discount"] == [
        ("agent.discount", "0.9"),
        ("agent.discount", "0.5"),
    ]
    assert [values[1][2] for values in told if values[1][0] == "train/loss"] == [0, 0, 10]


def test_a_tracker_that_fails_warns_once_and_the_other_goes_on(
    tmp_path: pathlib.Path, wandb: Any, mlflow: list[Call]
) -> None:
    wandb.broken = True
    with pytest.warns(RuntimeWarning, match=r"Weights & Biases .*ConnectionError: no route\b") as caught:
        write(tmp_path, 10, 20, wandb="shop", mlflow="shop")
    assert len(caught) == 1
    assert [record["env_steps"] for record in run_metrics.read(tmp_path)] == [10, 20]
    assert [values[1][1:] for name, values in mlflow if name == "batch" and values[1][0] == "train/loss"] == [
        (5.0, 10),
        (10.0, 20),
    ]


def test_a_tracker_that_hangs_delays_nothing(
    tmp_path: pathlib.Path, wandb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(wandb, "login", lambda prompt: released.wait(60))
    monkeypatch.setattr(trackers, "_CLOSE_TIMEOUT_S", 0.2)
    with pytest.warns(RuntimeWarning, match="Weights & Biases .*TimeoutError: .*2 records") as caught:
        write(tmp_path, 10, 20, wandb="shop")
    released.set()
    assert len(caught) == 1
    assert [record["env_steps"] for record in run_metrics.read(tmp_path)] == [10, 20]


def test_nobody_is_asked_for_a_password(tmp_path: pathlib.Path, wandb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "login", lambda prompt: prompt)
    with pytest.warns(RuntimeWarning, match="`wandb login`.*WANDB_MODE=offline"):
        write(tmp_path, 10, wandb="shop")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write(tmp_path, 20, wandb="shop")
    assert [name for name, _ in wandb.calls] == ["init", "log", "finish"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_refused_before_anything_else(
    tmp_path: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with conftest.refused(f"--log.{name}=shop", f'pip install "{name}'):
        training_flags.parse([f"--log.{name}=shop"])
    with conftest.refused(f"--log.{name}=shop", f'pip install "{name}'):
        jaxrl_dist.train("ppo", "gymnax:CartPole-v1", settings={f"log.{name}": "shop"}, out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_folder_of_the_name_is_no_package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights & Biases leaves a folder `wandb` where it ran, which Python would take for a package without code."""
    (tmp_path / "no_such_tracker").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not software.is_installed("no_such_tracker")
    assert software.is_installed("json")


@pytest.mark.slow
def test_the_packages_themselves(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, a run of each, resumed once."""
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    from mlflow import tracking

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    write(tmp_path, 10, 20, wandb="shop", mlflow="shop")
    write(tmp_path, 20, 30, wandb="shop", mlflow="shop")
    kept = {name: json.loads((tmp_path / f"{name}_run.json").read_text()) for name in software.TRACKERS}
    assert all(item["sent"] == {"train": 30} for item in kept.values())
    sessions = list((tmp_path / "wandb").glob(f"offline-run-*-{kept['wandb']['id']}/*.wandb"))
    assert sessions and all(path.stat().st_size for path in sessions)
    client = tracking.MlflowClient()
    history = client.get_metric_history(kept["mlflow"]["id"], "train/loss")
    assert sorted((item.step, item.value) for item in history) == [(10, 5.0), (20, 10.0), (30, 15.0)]
    assert client.get_run(kept["mlflow"]["id"]).data.params["agent.discount"] == "0.9"
