"""Tests of the command that checks environments, also on environments that break each of its rules."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from fakes import pool as fake_pool

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import check
from jaxrl_dist.envs.host import as_host, pooled


class Wrong:
    """A right environment whose timesteps pass through a function."""

    def __init__(self, spoil: Callable[[types.TimeStep], types.TimeStep]) -> None:
        self._right: Any = as_host.AsHost(envs.make("toy:walk"), 3, jax.random.key(0))
        self._spoil = spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)

    def reset(self) -> types.TimeStep:
        return self._right.reset()

    def step(self, action: np.ndarray) -> types.TimeStep:
        return self._spoil(jax.tree.map(np.copy, self._right.step(action)))


def broken(spoil: Callable[[Any], Any], steps: int = 30) -> set[str]:
    report = check.check(lambda: Wrong(spoil), steps)  # type: ignore[arg-type, return-value]
    return {fact.rule for fact in report.facts if fact.broken}


def at(row: Any, step_type: int, **fields: float) -> Any:
    mask = row.step_type == step_type
    return row._replace(**{key: np.where(mask, np.float32(x), getattr(row, key)) for key, x in fields.items()})


def test_a_right_environment_breaks_nothing() -> None:
    assert broken(lambda row: row) == set()


SPOILED: dict[str, Callable[[Any], Any]] = {
    "the row after LAST is FIRST, and no other": lambda row: row._replace(step_type=np.maximum(row.step_type, 1)),
    "a FIRST row has reward 0 and discount 1": lambda row: at(row, types.FIRST, reward=2.0),
    "the discount is 0 or 1": lambda row: at(row, types.MID, discount=0.5),
    "the discount is 0 only at a true end or a life loss": lambda row: at(row, types.MID, discount=0.0),
    "a true end is LAST with discount 0": lambda row: row._replace(
        info=row.info._replace(game_over=row.step_type == types.MID)
    ),
    "episode lengths count the steps": lambda row: row._replace(
        info=row.info._replace(episode_length=row.info.episode_length // 2)
    ),
    "episode returns sum the raw rewards": lambda row: row._replace(
        info=row.info._replace(episode_return=row.info.episode_return + 1)
    ),
    "numbers are finite and rewards within their range": lambda row: row._replace(observation=row.observation * np.nan),
}


@pytest.mark.parametrize("rule", SPOILED)
def test_a_broken_rule_is_found(rule: str) -> None:
    assert rule in broken(SPOILED[rule])


@pytest.mark.parametrize(("legal", "is_broken"), [([1, 1, 1, 1], False), ([0, 1, 1, 0], False), ([0, 0, 1, 1], True)])
def test_a_mask_that_allows_nothing_is_found(legal: list[int], is_broken: bool) -> None:
    class Masked(Wrong):
        """Actions of two numbers, with the same mask in every row."""

        def __init__(self) -> None:
            super().__init__(self._masked)
            spec = self._right.spec
            mask = {"walk": spec.observation, "mask": jax.ShapeDtypeStruct((4,), np.bool_)}
            self.spec = spec._replace(observation=mask, action=types.MultiDiscreteSpace((2, 2)), mask="mask")

        def _masked(self, row: Any) -> Any:
            mask = np.tile(np.array(legal, bool), (3, 1))
            return row._replace(observation={"walk": row.observation, "mask": mask})

        def reset(self) -> Any:
            return self._masked(super().reset())

        def step(self, action: np.ndarray) -> Any:
            return super().step(action[:, 0])

    facts = {fact.rule: fact.broken for fact in check.check(lambda: Masked(), 30).facts}  # type: ignore[arg-type, return-value]
    assert facts.pop("the mask allows an action wherever one is asked for").startswith("row") == is_broken
    assert not any(facts.values())


def test_a_buffer_that_is_used_twice_is_found() -> None:
    buffer = np.zeros((3, 2), np.float32)

    def into_buffer(row: Any) -> Any:
        buffer[:] = row.observation
        return row._replace(observation=buffer)

    assert broken(into_buffer) == {"returned arrays are never written to again"}


def test_randomness_without_a_seed_is_found() -> None:
    rng = np.random.default_rng()
    noisy = broken(lambda row: row._replace(observation=row.observation + rng.normal(size=(3, 2)).astype(np.float32)))
    assert noisy == {"equal seeds and actions give equal rows"}


def test_wrong_types_are_found() -> None:
    environment = as_host.AsHost(envs.make("toy:walk"), 2, jax.random.key(0))  # type: ignore[arg-type]
    row = environment.reset()
    facts = check._rules_of_types(row._replace(reward=np.zeros(2)), environment.spec)  # type: ignore[arg-type]
    assert [bool(fact.broken) for fact in facts] == [False, True]
    facts = check._rules_of_types(row._replace(observation=np.zeros((2, 3), np.float32)), environment.spec)  # type: ignore[arg-type]
    assert [bool(fact.broken) for fact in facts] == [True, False]


def test_too_long_an_episode_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment: Any = envs.make("toy:walk")
    short = environment._replace(spec=environment.spec._replace(time_limit=3))
    with pytest.raises(errors.EnvironmentFault, match="time limit of 3 steps"):
        check.check(lambda: as_host.AsHost(short, 2, jax.random.key(0)), 20)
    monkeypatch.setattr(envs, "make", lambda *_: short)
    assert check.main(["toy:walk", "--num_envs=2", "--steps=30"]) == 1
    assert "BROKEN    no episode is longer than 3 steps: row " in capsys.readouterr().out


@pytest.mark.parametrize("rule", SPOILED)
def test_rows_of_an_environment_with_resets_of_its_own_are_judged_as_they_are(
    rule: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right: Any = envs.make("toy:walk")

    def step(state: Any, action: Any) -> Any:
        state, row = right.step(state, action)
        return state, _spoiled(rule, row)

    monkeypatch.setattr(envs, "make", lambda *_: right._replace(step=step))
    assert check.main(["toy:walk", "--num_envs=2", "--steps=30"]) == 1
    assert f"BROKEN    {rule}: row " in capsys.readouterr().out


def _spoiled(rule: str, row: Any) -> Any:
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), row)
    return jax.pure_callback(
        lambda given: jax.tree.map(
            lambda x, to: np.asarray(x, to.dtype), SPOILED[rule](jax.tree.map(np.asarray, given)), structs
        ),
        structs,
        row,
        vmap_method="sequential",
    )


@pytest.mark.parametrize("name", ["toy:episode", "envpool:CartPole-v1", "envpool:FrozenLake-v1"])
def test_the_command_says_what_holds(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name.startswith("envpool"):
        pytest.importorskip("envpool")
    assert check.main([name, "--num_envs=3", "--steps=60"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}\n  observation") and "BROKEN" not in printed
    assert "mean random return" in printed and "steps/s" in printed


def test_the_command_says_what_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spoil = SPOILED["the discount is 0 or 1"]
    monkeypatch.setattr(check, "_maker", lambda *_: lambda: Wrong(spoil))
    assert check.main(["toy:walk", "--steps=20"]) == 1
    assert "BROKEN    the discount is 0 or 1: row 1 of environment 0" in capsys.readouterr().out


def test_a_fault_of_the_environment_is_a_line(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(row: Any) -> Any:
        raise errors.EnvironmentFault("environment 1 died")

    monkeypatch.setattr(check, "_maker", lambda *_: lambda: Wrong(fail))
    assert check.main(["toy:walk"]) == 1
    assert capsys.readouterr().out.endswith("BROKEN    environment 1 died\n")


def test_an_environment_that_hangs_is_named(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    spec = types.EnvironmentSpec(
        "fake:episode", jax.ShapeDtypeStruct((2,), np.dtype(np.float32)), types.DiscreteSpace(3), "classic"
    )
    pool = fake_pool.FakePool("episode", 2, 2)
    pool.hold.clear()
    hanging = pooled.Pooled(pool, spec, 2, 0.2, convert=lambda x: x, life_loss=False)
    monkeypatch.setattr(check, "_maker", lambda *_: lambda: hanging)
    assert check.main(["toy:walk"]) == 1
    assert "BROKEN    fake:episode gave nothing for 0.2 s; it is stepping environments 0, 1" in capsys.readouterr().out
    pool.hold.set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage:"),
        (["toy:walk", "toy:walk"], "usage:"),
        (["toy:wlk"], "did you mean walk"),
        (["walk"], "expected suite:name, suites are"),
        (["toy:walk", "--num_env=3"], "did you mean --num_envs"),
        (["toy:walk", "--steps=0"], ">= 1"),
        (["toy:walk", "--steps"], "--steps=VALUE"),
        (["toy:episode", "--env.params.length=x"], "expected a whole number"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_the_exit_code_is_that_of_the_process() -> None:
    command = [sys.executable, "-m", "jaxrl_dist.envs.check", "toy:nothing"]
    assert subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 2


@pytest.mark.parametrize("name", ["choice", "choices"])
def test_actions_are_drawn_among_all_legal_ones_and_no_others(name: str) -> None:
    spec: Any = envs.make(f"toy:{name}").spec
    legal = np.array([1, 0, 1, 1, 0, 1] if name == "choice" else [1, 0, 1, 0, 1], bool)
    observation = {"action_mask": np.tile(legal, (500, 1)), "goal": (), "seen": ()}
    action = check._random_action(np.random.default_rng(0), spec, observation, 500)
    for column, wanted in zip(
        action.reshape(500, -1).T, [[0, 2, 3, 5]] if name == "choice" else [[0, 2], [1]], strict=True
    ):
        kinds, counts = np.unique(column, return_counts=True)
        assert kinds.tolist() == wanted and counts.min() > 0.8 * 500 / len(wanted)


def test_real_actions_are_drawn_from_all_of_their_bounds_and_not_without_end() -> None:
    low, high = np.float32([-2.0, 5.0, -np.inf]), np.float32([2.0, 7.0, np.inf])
    spec: Any = envs.make("toy:reach").spec._replace(action=types.BoxSpace((3,), low, high))
    action = check._random_action(np.random.default_rng(0), spec, (), 500)
    assert action.dtype == np.float32 and action.shape == (500, 3)
    np.testing.assert_allclose(action.min(0), [-2.0, 5.0, -1e3], rtol=0.02)
    np.testing.assert_allclose(action.max(0), [2.0, 7.0, 1e3], rtol=0.02)
