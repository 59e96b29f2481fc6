"""Run folders as a trainer leaves them, written without training."""

import functools
import importlib
import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import Any

import conftest
import numpy as np

from jaxrl_dist import commands
from jaxrl_dist.runs import software
from jaxrl_dist.systems import catalogue

TOTAL = 10_000


def rising(num_seeds: int, seed: int = 0, num_points: int = 20, top: float = 100.0, spread: float = 10.0) -> np.ndarray:
    """Returns curves f64 [n, S] that rise to a ceiling which differs a little between seeds."""
    generator = np.random.default_rng(seed)
    shares = np.arange(1, num_points + 1)[:, None] / num_points
    ceilings = top + spread * generator.normal(size=num_seeds)
    return ceilings * np.tanh(3 * shares) + 0.1 * spread * generator.normal(size=(num_points, num_seeds))


def script(path: str) -> Callable[[list[str]], int]:
    """Returns what a script runs, to call it in this process with arguments; a benchmark's is its `main`."""
    name = pathlib.Path(path).stem
    if name in commands.NAMES:
        return functools.partial(commands.run, importlib.import_module(f"jaxrl_dist.commands.{name}").main, name)
    spec = importlib.util.spec_from_file_location(name, conftest.PACKAGE.parent / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def write(
    folder: pathlib.Path,
    returns: np.ndarray,
    system: str = "ppo",
    env: str = "gymnax:CartPole-v1",
    flags: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    reason: str | None = "finished",
    share: float = 1.0,
) -> pathlib.Path:
    """Writes a run.

    Args:
        folder: of the run.
        returns: f64 [n, S], of its evaluations.
        system: of the run.
        env: of the run.
        flags: further settings.
        train: numbers of every training record.
        reason: why it ended, None where it has not.
        share: of the steps that it has come to.
    """
    folder.mkdir(parents=True)
    given = {"system": system, "env": env, "steps": TOTAL, "num_seeds": returns.shape[1], "out": str(folder)}
    settings = catalogue.resolved({**given, **(flags or {})}, "classic")
    (folder / "config.json").write_text(json.dumps(software.record(settings.as_json(), None)))
    steps = np.linspace(0, share * settings["steps"], len(returns) + 1)[1:].astype(int).tolist()
    lines = []
    for step, row in zip(steps, returns, strict=True):
        common = {"env_steps": step, "wall_s": step / 100}
        lines.append({"kind": "train", **common, "steps_per_second": 1e4, **(train or {})})
        ends = [float(row.min()), float(row.max())]
        numbers = {"eval_return": row.mean(), "eval_return_iqm": row.mean(), "eval_return_ci95": ends}
        lines.append({"kind": "eval", **common, **numbers, "eval_return_per_seed": row.tolist(), "eval_episodes": 8})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if reason:
        summary = {"env_steps": steps[-1] if steps else 0, "reason": reason, "wall_s": 100.0, "train_s": 60.0}
        summary |= {"compile_s": 9.0, "steps_per_second": 12345.0, "num_devices": 2, "device": "cpu"}
        summary |= {"env": env, "eval_return_per_seed": returns[-1].tolist() if steps else None}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder
