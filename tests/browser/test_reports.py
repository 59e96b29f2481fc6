"""Five kinds of report, opened from disk in a browser."""

import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import PIL.Image
import pytest
from browser import checks
from fakes import written_runs

pytestmark = pytest.mark.slow

_SHARES = {"share_environment": 0.5, "share_inference": 0.3, "share_transfer": 0.2, "share_learning": 0.4}
_LAG = {"policy_lag_p50": 1, "policy_lag_p99": 3, "samples_per_insert": 8.0, "bottleneck": "inference"}
_TINY = ["--env=toy:walk", "--steps=1280", "--env.num_envs=8", "--layout.unroll_length=16", "--network.hidden_sizes=16"]
_TINY += ["--network.torso=mlp", "--learner.minibatches=2", "--evaluation.episodes=4"]
KINDS = ("one", "several", "sweep", "study", "search")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """The pages by kind: of made-up runs those of report.py, of tiny runs those of study.py."""
    root = tmp_path_factory.mktemp("reports")
    one = written_runs.write(root / "one", written_runs.rising(1), train=_SHARES | _LAG)
    _film(one)
    several = [
        written_runs.write(
            root / f"a run with a rather long name, number {i}",
            written_runs.rising(3, seed=i),
            system,
            flags={"agent.discount": 0.9 + i / 100},
            train=_SHARES,
            reason="finished" if i else None,
        )
        for i, system in enumerate(("ppo", "dqn", "ppo", "r2d2"))
    ]
    rates = "learner.learning_rate=0.0001,0.0003,0.001,0.003;agent.entropy_cost=0.0,0.001,0.01"
    swept = written_runs.write(root / "sweep", written_runs.rising(24), flags={"sweep": rates, "num_seeds": 2})
    write = written_runs.script("scripts/report.py")
    for kind, runs in {"one": [one], "several": several, "sweep": [swept]}.items():
        assert write([*map(str, runs), f"--out={root / kind}.html"]) == 0
    asked = {
        "study": ["--setting=near: --agent.discount=0.9", "--setting=far: --agent.discount=0.99"],
        "search": ["--search=learner.learning_rate=log:1e-4..1e-2", "--search=agent.discount=0.9,0.99", "--trials=2"],
    }
    for kind, flags in asked.items():
        command = [sys.executable, str(checks.ROOT / "scripts" / "study.py"), f"--out={root / kind}-runs", *flags]
        subprocess.run([*command, "--num_seeds=2", "--", *_TINY], check=True, timeout=300, capture_output=True)
        (root / f"{kind}-runs" / "page.html").rename(root / f"{kind}.html")
    return {kind: root / f"{kind}.html" for kind in KINDS}


def _film(run: pathlib.Path) -> None:
    (run / "videos").mkdir()
    frames = [PIL.Image.fromarray(np.full((100, 150, 3), 60 * i, np.uint8)) for i in range(4)]
    frames[0].save(run / "videos" / "latest-seed0-episode0.gif", save_all=True, append_images=frames[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_serves_everyone(chromium: Any, reports: dict[str, pathlib.Path], kind: str) -> None:
    found = checks.examine(chromium, reports[kind], f"report/{kind}")
    assert not found, "\n".join(found)
