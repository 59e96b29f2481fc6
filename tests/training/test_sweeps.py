"""Sweeps: what is refused, and that each member is the run alone with its values."""

import functools
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import errors, systems
from jaxrl_dist.learning import members
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.runs import metrics
from jaxrl_dist.settings import resolve
from jaxrl_dist.settings import sweep as sweeps
from jaxrl_dist.systems import catalogue, training_flags
from jaxrl_dist.training import assemble, policy, runner

CARTPOLE = "gymnax:CartPole-v1"


def resolved(sweep: str, **settings: Any) -> resolve.Resolved:
    return catalogue.resolved({"system": "ppo", "env": CARTPOLE, "sweep": sweep, **settings})


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
    "sweep",
    [
        "learner.learning_rat=1",
        "foo=1,2",
        "foo",
        "learner.epochs=1,2",
        "learner.learning_rate=1e-4,0",
        "learner.learning_rate=",
        "agent.discount=0.9,0.9",
        "agent.discount=0.9;agent.discount=0.8",
    ],
)
def test_a_wrong_sweep_is_one_line(sweep: str) -> None:
    with conftest.refused(f"--sweep={sweep}"):
        training_flags.parse([f"--sweep={sweep}"])


def test_a_setting_is_swept_or_given_by_a_flag() -> None:
    given = ["--sweep=agent.discount=0.9,0.99", "--agent.discount=0.5"]
    with conftest.refused("--agent.discount=0.5", "--sweep"):
        training_flags.parse(given)
    with conftest.refused("--agent.discount=0.5", "--sweep"):
        runner.train("ppo", "toy:walk", sweep="agent.discount=0.9,0.99", settings={"agent.discount": 0.5})


def test_a_preset_s_value_may_be_swept() -> None:
    settings = training_flags.parse(
        ["--preset=ppo/hidden_velocities", "--sweep=learner.learning_rate=1e-4,1e-3"]
    ).settings
    assert settings is not None and len(sweeps.combinations(settings)) == 2


def test_a_layout_of_one_seed_refuses_a_sweep() -> None:
    with conftest.refused("--sweep=agent.discount=0.9,0.8", "--layout=anakin"):
        training_flags.parse(["--sweep=agent.discount=0.9,0.8", "--layout=sebulba"])


class Watched(float):
    """A number that notes in `refused` what Python, and not the program, does with it: there it must stay a number.

    A product with a power of two is exact in any precision, and passes. So does what a function `_check_…` does, which
    returns nothing: each combination of a sweep is built, and so checked, before they are trained together.
    """

    name: str
    refused: set[str]

    def __new__(cls, value: float, name: str, refused: set[str]) -> "Watched":
        made = super().__new__(cls, value)
        made.name, made.refused = name, refused
        return made

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        if not isinstance(other, Watched) and abs(math.frexp(other)[0]) == 0.5:
            return Watched(float(self) * other, self.name, self.refused)
        self.refused.add(self.name)
        return float(self) * float(other)

    __rmul__ = __mul__
    __hash__ = float.__hash__


def _noting(operation: str) -> Callable[..., Any]:
    """Makes an operation of `Watched` that notes its use, unless its operand is an array, which does it instead."""

    def operate(self: Watched, *operands: Any) -> Any:
        if not all(isinstance(operand, int | float) for operand in operands):
            return NotImplemented
        if not sys._getframe(1).f_code.co_name.startswith("_check_"):
            self.refused.add(self.name)
        return getattr(float, operation)(float(self), *map(float, operands))

    return operate


for _operation in (
    *("bool", "eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "truediv", "rtruediv"),
    *("pow", "rpow", "mod", "rmod", "floordiv", "rfloordiv", "neg", "abs", "int", "round"),
):
    setattr(Watched, f"__{_operation}__", _noting(f"__{_operation}__"))


def _check_half(x: Any) -> None:
    if x + 0.5 > 2:
        raise ValueError(x)


def test_what_python_does_with_a_number_is_noted() -> None:
    """Branches are noted, and arithmetic in Python's own precision; what arrays do is not."""
    uses: dict[str, Any] = {
        "branch": lambda x: 1 if x else 2,
        "compare": lambda x: min(x, 0.5),
        "subtract": lambda x: 1 - x,
        "divide": lambda x: x / 3,
        "array": lambda x: jnp.ones(2) * x - x + (1 - jnp.minimum(x, jnp.zeros(3)).sum()),
        "halve": lambda x: x * 0.5 * jnp.ones(2),
        "halve, then branch": lambda x: bool(0.5 * x),
        "third": lambda x: x * 0.3,
        "check": _check_half,
    }
    found = {}
    for name, use in uses.items():
        refused: set[str] = set()
        use(Watched(0.7, "it", refused))
        found[name] = bool(refused)
    assert [name for name, refused in found.items() if not refused] == ["array", "halve", "check"]


class Traced(NamedTuple):
    """Names of numbers of agent and learner: all, those marked to be swept, those that a run allows, those exact."""

    numbers: set[str]
    marked: set[str]
    allowed: set[str]
    exact: set[str]


@functools.cache
def traced(system: str) -> Traced:
    """Traces a system's training with every number watched.

    Returns:
        The numbers; those marked; those of these that a run may sweep; and all that pass through Python as they are,
        so that a member computes what the run alone with its value does.
    """
    env = CARTPOLE if "discrete" in systems.SYSTEMS[system].actions else "gymnax:Pendulum-v1"
    more = {"agent.actor_errors": False} if system == "r2d2" else {}
    named = {"system": system, "env": env, "layout": "anakin", **conftest.SMALL[system], **more}
    settings, environment = assemble.resolve(named)
    builder = assemble.Builder(settings, environment, meshes.make(jax.devices()[:1], 1))
    owned = {name: field for name, field in settings.fields.items() if name.startswith(("agent.", "learner."))}
    numbers = {name for name, field in owned.items() if field.kind == "float"}
    refused: set[str] = set()
    builder.trace({name: Watched(settings[name], name, refused) for name in numbers})
    marked = {name for name, field in owned.items() if field.sweep}
    apart = {name for name in numbers - refused if members.is_apart(name, builder.agent_and_learner)}
    return Traced(numbers, marked, {name for name in marked if builder.can_vary(name)}, apart)


# All agents, and the systems that turn on what others leave off.
LONG = (
    "a2c",
    "impala",
    "pqn",
    "rainbow",
    "r2d2",
    "ddpg",
    "d4pg",
    "sac",
    "iqn",
    "discrete_sac",
    "crossq",
    "mpo",
    "vmpo",
    "rnd",
    "es",
    "dreamer",
)


@pytest.mark.parametrize("system", ["ppo", *(pytest.param(one, marks=pytest.mark.slow) for one in LONG)])
def test_a_run_sweeps_only_what_python_leaves_alone(system: str) -> None:
    found = traced(system)
    assert found.allowed <= found.exact & found.marked
    assert {"learner.learning_rate", "learner.epsilon"} <= found.allowed


@pytest.mark.parametrize(
    ("systems_of_one", "owner"),
    [
        (("ppo",), "agent."),
        (("ppo", "td3", "dqn"), "learner."),
        *(
            pytest.param(names, "agent.", marks=pytest.mark.slow)
            for names in (
                ("a2c",),
                ("impala",),
                ("pqn",),
                ("dqn", "rainbow", "apex_dqn", "qr_dqn"),
                ("r2d2",),
                ("ddpg", "td3", "d4pg"),
                ("sac",),
                ("discrete_sac",),
                ("iqn",),
                ("crossq",),
                ("mpo",),
                ("vmpo",),
                ("ppo", "rnd"),
                ("es",),
                ("dreamer",),
            )
        ),
    ],
)
def test_a_number_is_marked_where_a_run_can_sweep_it_and_only_there(
    systems_of_one: tuple[str, ...], owner: str
) -> None:
    """Every marked number can be swept in one of its agent's systems; every other one is refused in one of them."""
    found = [traced(system) for system in systems_of_one]
    numbers = {name for one in found for name in one.numbers if name.startswith(owner)}
    marked = {name for one in found for name in one.marked if name.startswith(owner)}
    assert marked == {name for name in numbers if all(name in one.exact for one in found if name in one.numbers)} | {
        name for name in numbers & marked if any(name in one.allowed for one in found)
    }


@pytest.mark.parametrize(
    ("sweep", "given"),
    [
        ("agent.epsilon_wait=0.0,0.9", {"agent.epsilon_fraction": 0.5}),
        ("agent.epsilon_fraction=0.1,0.9", {"agent.epsilon_wait": 0.5}),
        ("agent.epsilon_fraction=0.1,0.9;agent.epsilon_wait=0.0,0.5", {}),
    ],
)
def test_a_combination_is_refused_as_its_values_are(sweep: str, given: dict[str, float]) -> None:
    flags = {**conftest.SMALL["dqn"], "system": "dqn", "env": "toy:walk", "sweep": sweep, **given}
    with conftest.refused("--agent.epsilon_wait="):
        assemble.assemble(*assemble.resolve(flags), jax.devices()[:1])


@pytest.mark.slow
def test_a_number_that_a_configuration_decides_by_is_refused_there() -> None:
    """The atoms of a distribution follow from the discount."""
    settings = {**conftest.SMALL["rainbow"], "layout": "anakin", "sweep": "agent.discount=0.9,0.99"}
    with pytest.raises(errors.UsageError, match="sweep=agent.discount=0.9,0.99: agent.discount ") as caught:
        conftest.Small("rainbow", CARTPOLE, 1, settings)
    assert "learner.learning_rate" in str(caught.value).partition("valid here: ")[2]


@pytest.mark.parametrize("name", ["agent.clip_epsilon", "learner.max_grad_norm"])
def test_what_decides_what_is_compiled_is_refused(name: str) -> None:
    with pytest.raises(errors.UsageError, match=f"sweep={name}=0.1,0.2: {name} ") as caught:
        training_flags.parse([f"--sweep={name}=0.1,0.2"])
    valid = set(str(caught.value).partition("valid here: ")[2].partition(" (")[0].split(", "))
    assert {"agent.entropy_cost", "agent.discount", "learner.learning_rate"} <= valid and name not in valid


@pytest.mark.slow
def test_a_sweep_reports_and_resumes_by_combination(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    named: dict[str, Any] = {"steps": 512, "sweep": "learner.learning_rate=1e-4,1e-2", "evaluation.episodes": 2}
    first = train(env=CARTPOLE, callbacks=[lambda record: record["env_steps"] > 0], **named)
    run = train(env=CARTPOLE, devices=jax.devices()[:2], **named)
    assert run.reason == "finished" and run.summary["resumed_from"] == first.summary["env_steps"] > 0
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
    with conftest.refused("seed_index=2", "0 to 1"):
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
from jaxrl_dist.runs import checkpoint
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


LONG_MEMBERS = (
    ("ppo", CARTPOLE, "learner.learning_rate=1e-4,3e-3;agent.entropy_cost=0,0.013"),
    ("dqn", CARTPOLE, "learner.learning_rate=1e-4,3e-3;agent.discount=0.9,0.997"),
    ("sac", "gymnax:Pendulum-v1", "learner.learning_rate=1e-4,3e-3;agent.target_entropy=-1,-0.3"),
)


@pytest.mark.parametrize(
    ("system", "env", "sweep"),
    [
        # Rewards are divided by their deviation, alone and before they are scaled.
        ("ppo", CARTPOLE, "agent.discount=0.9,0.997;agent.value_cost=0.3"),
        ("ppo", CARTPOLE, "agent.discount=0.997;agent.reward_scale=1,0.3"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in LONG_MEMBERS),
    ],
)
def test_a_member_is_the_run_alone_with_its_values(tmp_path: pathlib.Path, system: str, env: str, sweep: str) -> None:
    """To the bit in programs compiled as users do."""
    settings = {**conftest.SMALL[system], "evaluation.episodes": 2}
    code = MEMBERS.format(settings=settings, system=system, env=env, sweep=sweep, out=f"{tmp_path}/")
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=conftest.PACKAGE.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pairs = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("digests")]
    assert all(together == alone for together, alone in pairs)
    assert len({alone for _, alone in pairs}) == len(pairs) > 1
