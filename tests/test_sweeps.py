"""Sweeps: what is refused, and that each member is the run alone with its values."""

import os
import pathlib
import subprocess
import sys
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import config, flags, metrics, policy, resolution, runner, sweeps, swept
from jaxrl_dist.parallel import mesh as meshes

CARTPOLE = "gymnax:CartPole-v1"


def resolved(sweep: str, **settings: Any) -> resolution.Resolved:
    return resolution.resolve({"system": "ppo", "env": CARTPOLE, "sweep": sweep, **settings})


def test_members_are_the_seeds_of_each_combination() -> None:
    settings = resolved("learner.learning_rate=1e-4,1e-3;agent.entropy_cost=0,0.01,0.02", num_seeds=2)
    combinations = sweeps.combinations(settings)
    assert [tuple(one.values()) for one in combinations] == [
        (rate, cost) for rate in (1e-4, 1e-3) for cost in (0.0, 0.01, 0.02)
    ]
    assert sweeps.num_members(settings) == 12
    grouped = sweeps.by_combination(settings, list(range(12)))
    assert grouped[1] == ({"learner.learning_rate": 1e-4, "agent.entropy_cost": 0.01}, [2, 3])
    assert sweeps.describe(combinations[-1]) == "learner.learning_rate=0.001 agent.entropy_cost=0.02"
    assert sweeps.combinations(resolved("")) == [{}] and sweeps.num_members(resolved("", num_seeds=3)) == 3


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("learner.learning_rat=1", "ppo has no setting learner.learning_rat; did you mean learner.learning_rate?"),
        ("foo=1,2", "--sweep=foo=1,2: ppo has no setting foo (--help"),
        ("foo", "--sweep=foo: expected NAME=A,B such as"),
        ("learner.epochs=1,2", "only numbers of agent and learner can be swept"),
        ("learner.learning_rate=1e-4,0", "expected a number > 0"),
        ("learner.learning_rate=", "expected a number > 0"),
        ("agent.discount=0.9,0.9", "a value is given twice"),
        ("agent.discount=0.9;agent.discount=0.8", "agent.discount is given twice"),
    ],
)
def test_a_wrong_sweep_is_one_line(sweep: str, message: str) -> None:
    with pytest.raises(config.UsageError) as caught:
        flags.parse([f"--sweep={sweep}"])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_setting_is_swept_or_given_by_a_flag() -> None:
    given = ["--sweep=agent.discount=0.9,0.99", "--agent.discount=0.5"]
    with pytest.raises(config.UsageError, match=r"^--agent\.discount=0\.5 is given, and in --sweep too; leave out one"):
        flags.parse(given)
    with pytest.raises(config.UsageError, match="in --sweep too"):
        runner.train("ppo", "toy:walk", sweep="agent.discount=0.9,0.99", settings={"agent.discount": 0.5})


def test_a_preset_s_value_may_be_swept() -> None:
    settings = flags.parse(["--preset=ppo/hidden_velocities", "--sweep=learner.learning_rate=1e-4,1e-3"]).settings
    assert settings is not None and len(sweeps.combinations(settings)) == 2


def test_a_layout_of_one_seed_refuses_a_sweep() -> None:
    with pytest.raises(config.UsageError, match="sebulba trains one seed at a time; valid: --layout=anakin"):
        flags.parse(["--sweep=agent.discount=0.9,0.8", "--layout=sebulba"])


def test_what_python_does_with_a_number_is_noted() -> None:
    """Branches, and arithmetic in Python's own precision; not what arrays do."""
    uses: dict[str, Any] = {
        "branch": lambda x: 1 if x else 2,
        "compare": lambda x: min(x, 0.5),
        "subtract": lambda x: 1 - x,
        "divide": lambda x: x / 3,
        "array": lambda x: jnp.ones(2) * x - x + (1 - jnp.minimum(x, jnp.zeros(3)).sum()),
        "halve": lambda x: x * 0.5 * jnp.ones(2),
        "halve, then branch": lambda x: bool(0.5 * x),
        "third": lambda x: x * 0.3,
    }
    found = {}
    for name, use in uses.items():
        refused: set[str] = set()
        use(swept.Watched(0.7, "it", refused))
        found[name] = bool(refused)
    assert [name for name, refused in found.items() if not refused] == ["array", "halve"]


@pytest.mark.parametrize(
    ("system", "valid", "not_valid"),
    [
        ("ppo", {"agent.entropy_cost", "agent.discount", "learner.learning_rate"}, {"agent.clip_epsilon"}),
        pytest.param(
            *("dqn", {"agent.discount", "learner.learning_rate"}, {"agent.epsilon_end", "learner.max_grad_norm"}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_decides_what_is_compiled_is_refused(system: str, valid: set[str], not_valid: set[str]) -> None:
    wrong = sorted(not_valid)[0]
    settings = {**conftest.SMALL[system], "sweep": f"{wrong}=0.1,0.2"}
    with pytest.raises(config.UsageError, match=f"--sweep: {wrong} decides what is compiled") as caught:
        conftest.Small(system, CARTPOLE, 1, settings)
    named = set(str(caught.value).partition("valid here: ")[2].partition(" (")[0].split(", "))
    assert valid <= named and not named & not_valid and "\n" not in str(caught.value)


def test_a_sweep_reports_and_resumes_by_combination(tmp_path: pathlib.Path) -> None:
    settings = {**conftest.SMALL["ppo"], "evaluation.episodes": 2, "log.tensorboard": False}
    settings["steps"] = 512
    named: Any = {"settings": settings, "out": str(tmp_path), "sweep": "learner.learning_rate=1e-4,1e-2"}
    first = jaxrl_dist.train("ppo", CARTPOLE, devices=jax.devices()[:1], callbacks=[lambda record: True], **named)
    run = jaxrl_dist.train("ppo", CARTPOLE, devices=jax.devices()[:2], **named)
    assert run.reason == "finished" and run.summary["resumed_from"] == first.summary["env_steps"]
    last = [record for record in metrics.read(tmp_path) if record["kind"] == "eval"][-1]
    assert [item["settings"] for item in run.summary["sweep"]] == [
        {"learner.learning_rate": 1e-4},
        {"learner.learning_rate": 1e-2},
    ]
    assert [item["eval_return_per_seed"] for item in run.summary["sweep"]] == [
        [score] for score in last["eval_return_per_seed"]
    ]
    evaluated = policy.evaluate(tmp_path, 3, 0, "latest", {})
    assert "eval_return" not in evaluated and [item["settings"] for item in evaluated["sweep"]] == [
        item["settings"] for item in run.summary["sweep"]
    ]
    assert all(len(item["eval_return_per_seed"]) == 1 and item["eval_episodes"] == 3 for item in evaluated["sweep"])
    policies = [jaxrl_dist.load(tmp_path, seed_index=i) for i in range(2)]
    assert [one.settings["learner.learning_rate"] for one in policies] == [1e-4, 1e-2]
    slow, fast = (np.concatenate([x.ravel() for x in jax.tree.leaves(one.params.network)]) for one in policies)
    assert np.abs(slow - fast).max() > 1e-3
    with pytest.raises(config.UsageError, match="seeds 0 to 1"):
        jaxrl_dist.load(tmp_path, seed_index=2)


@pytest.mark.slow
def test_members_as_one_batch_agree_with_members_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on accelerators."""
    settings = {**conftest.SMALL["ppo"], "sweep": "learner.learning_rate=1e-4,1e-2;agent.entropy_cost=0,0.1"}
    runs = []
    for together in (False, True):
        monkeypatch.setattr(meshes, "vectorises_seeds", lambda mesh, together=together: together)
        runs.append(conftest.Small("ppo", CARTPOLE, 1, settings).run(3))
    for one, other in zip(*(run.params for run in runs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
        assert len(np.unique(one.reshape(4, -1), axis=0)) > 1 or not one.any()


MEMBERS = """
import jax, jaxrl_dist
from jaxrl_dist import checkpoint
sizes, devices = {settings!r}, jax.devices()[:1]
def digest(run, index):
    network = jaxrl_dist.load(run.folder, seed_index=index).params.network
    return checkpoint.params_sha256(network)
run = jaxrl_dist.train({system!r}, {env!r}, devices=devices, settings=sizes, out={out!r} + "all", sweep={sweep!r},
                       seed=5, num_seeds=2)
for i, item in enumerate(run.summary["sweep"]):
    settings = sizes | item["settings"]
    alone = jaxrl_dist.train({system!r}, {env!r}, devices=devices, settings=settings, out={out!r} + str(i), seed=6)
    print("digests", digest(run, 2 * i + 1), digest(alone, 0))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "env", "sweep"),
    [
        ("ppo", CARTPOLE, "learner.learning_rate=1e-4,3e-3;agent.entropy_cost=0,0.013"),
        ("ppo", CARTPOLE, "agent.discount=0.9,0.997;agent.value_cost=0.3"),
        ("dqn", CARTPOLE, "learner.learning_rate=1e-4,3e-3;agent.discount=0.9,0.997"),
        ("sac", "gymnax:Pendulum-v1", "learner.learning_rate=1e-4,3e-3;agent.target_entropy=-1,-0.3"),
    ],
)
def test_a_member_is_the_run_alone_with_its_values(tmp_path: pathlib.Path, system: str, env: str, sweep: str) -> None:
    """To the bit in programs compiled as users do."""
    settings = {**conftest.SMALL[system], "evaluation.episodes": 2}
    code = MEMBERS.format(settings=settings, system=system, env=env, sweep=sweep, out=f"{tmp_path}/")
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=config.PACKAGE.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pairs = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("digests")]
    assert all(together == alone for together, alone in pairs)
    assert len({alone for _, alone in pairs}) == len(pairs) > 1
