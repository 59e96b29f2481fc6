"""Searches with a stand-in for the training process: what is drawn, how a search goes on, and what its page says."""

import dataclasses
import json
import math
import pathlib
import subprocess
import sys
import types
from typing import Any

import conftest
import pytest
from test_study import COMMON, STAND_IN, starts

from jaxrl_dist.training import search, study

RATE, DISCOUNT = "learner.learning_rate=log:1e-4..1e-2", "agent.discount=0.8..0.9"


@pytest.fixture
def train_command(tmp_path: pathlib.Path) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(STAND_IN.format(root=str(conftest.PACKAGE.parent)))
    return [sys.executable, str(script)]


def made(tmp_path: pathlib.Path, *texts: str, trials: int = 3, **changes: Any) -> search.Search:
    plan = study.Study(tmp_path / "out", COMMON, (), **{"num_seeds": 2, **changes})
    return search.Search(plan, tuple(search.parse_range(text, COMMON) for text in texts), trials)


def run(asked: search.Search, train_command: list[str]) -> list[dict[str, Any]]:
    return search.run(asked, train_command, say=lambda text: None)


def test_draws_are_in_range_spread_and_depend_on_their_number_only(tmp_path: pathlib.Path) -> None:
    whole, choice = "env.num_envs=log:1..64", "network.core=lstm,identity"
    asked = made(tmp_path, RATE, DISCOUNT, whole, choice, trials=400)
    draws = [search._draw_at_random(asked, i, (), ()) for i in range(400)]
    rates = [math.log10(draw["learner.learning_rate"]) for draw in draws]
    # A third of its logarithms lies in each third of the range: 133 ± 4 standard deviations.
    assert min(rates) >= -4 and max(rates) <= -2 and 95 < sum(rate < -4 + 2 / 3 for rate in rates) < 171
    assert all(0.8 <= draw["agent.discount"] <= 0.9 for draw in draws)
    sizes = [draw["env.num_envs"] for draw in draws]
    assert {type(size) for size in sizes} == {int} and min(sizes) == 1 and 32 < max(sizes) <= 64
    assert {draw["network.core"] for draw in draws} == {"lstm", "identity"}
    # Both ends of whole numbers are drawn as often as those between.
    one = search.Range("env.num_envs", 1.0, 4.0, is_whole=True)
    assert [search._draw(one, share) for share in (0.0, 0.24, 0.26, 0.74, 0.76, 0.999)] == [1, 1, 2, 3, 4, 4]
    assert search._draw_at_random(made(tmp_path, RATE), 7, (), ()) == {
        "learner.learning_rate": draws[7]["learner.learning_rate"]
    }


def test_a_search_ranks_its_trials_and_goes_on(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    first = run(made(tmp_path, RATE, DISCOUNT, trials=2), train_command)
    rows = run(made(tmp_path, RATE, DISCOUNT, trials=3), train_command)
    assert starts(tmp_path) == ["trial_000", "trial_001", "trial_002"]
    assert rows[:2] == first and json.loads((tmp_path / "out" / "table.json").read_text()) == rows
    for row in rows:
        assert row["eval_return_iqm"] == pytest.approx(100 * row["searched"]["agent.discount"] + 0.5)
        assert f"--agent.discount={row['searched']['agent.discount']}" in row["command"]
    text = (tmp_path / "out" / "table.md").read_text()
    shown = [float(line.split("|")[3]) for line in text.splitlines() if line.startswith("| trial 0")]
    assert shown == sorted(shown, reverse=True) and len(shown) == 3
    page = (tmp_path / "out" / "page.html").read_text()
    assert "<h1>ppo on gymnax:CartPole-v1</h1>" in page and "3 of 3 trials finished" in page
    assert (tmp_path / "out" / "search.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_trial_of_which_a_seed_failed_is_never_the_best() -> None:
    rows: list[Any] = [
        {"state": state, "eval_return_iqm": iqm} for state in ("finished", "failed") for iqm in (9.0, None)
    ]
    assert [search._score(row) for row in rows] == [9.0, -math.inf, -math.inf, -math.inf]


def test_a_failed_trial_is_named_and_tried_again(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    (tmp_path / "fail").write_text("trial_001")
    rows = run(made(tmp_path, DISCOUNT), train_command)
    assert [row["state"] for row in rows] == ["finished", "failed", "finished"]
    text = (tmp_path / "out" / "table.md").read_text()
    assert "trial 001 failed" in text and "the reason" in text
    assert text.splitlines()[4].startswith("| trial 001 |")
    (tmp_path / "fail").unlink()
    assert [row["state"] for row in run(made(tmp_path, DISCOUNT), train_command)] == ["finished"] * 3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("learner.learning_rat=0..1", "--learner.learning_rate"),
        ("agent.discount=0.5..2", "--search=agent.discount=0.5..2"),
        ("agent.discount=0.9..0.8", "--search=agent.discount=0.9..0.8"),
        ("learner.max_grad_norm=log:0..1", "--search=learner.max_grad_norm=log:0..1"),
        ("network.core=a..b", "--search=network.core=a..b"),
        ("network.core=lstm,lst", "did you mean lstm?"),
        ("agent.discount", "--search=agent.discount"),
        ("env.params.tau=1,2", "--search=env.params.tau=1,2"),
    ],
)
def test_a_wrong_range_is_one_line(text: str, named: str) -> None:
    with conftest.refused(named):
        search.parse_range(text, COMMON)


def test_values_may_be_names_with_colons() -> None:
    assert search.parse_range("network=my_module:MyNet,mlp", COMMON).choices == ("my_module:MyNet", "mlp")


def test_lists_of_several_widths_are_values() -> None:
    of = lambda text: search.parse_range(f"network.hidden_sizes={text}", COMMON).choices  # noqa: E731
    assert of("64;64,64;256,256") == ((64,), (64, 64), (256, 256))
    assert of("64,64;") == ((64, 64), ())
    assert of("16,64") == ((16,), (64,))


def test_a_draw_that_does_not_go_together_is_not_kept(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    """A discount is a flag of each system, the range of the clip only of some."""
    for seed in range(20):
        asked = made(tmp_path, "system=ppo,a2c", "agent.clip_epsilon=0.1,0.2", trials=9, first_seed=seed)
        systems = [search._draw_at_random(asked, i, (), ())["system"] for i in range(9)]
        if (first := systems.index("a2c")) in (1, 2):
            break
    assert first in (1, 2)
    for _ in range(2):
        with conftest.refused("agent.clip_epsilon", "a2c"):
            run(asked, train_command)
        assert starts(tmp_path) == [f"trial_{i:03}" for i in range(first)]
    assert len(run(dataclasses.replace(asked, trials=first), train_command)) == first


def test_another_search_in_the_folder_is_refused(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    run(made(tmp_path, DISCOUNT, trials=1), train_command)
    for other in (made(tmp_path, RATE), made(tmp_path, DISCOUNT, first_seed=5)):
        with conftest.refused(f"--out={tmp_path / 'out'} "):
            run(other, train_command)
    with conftest.refused("--search: ", "agent.discount, agent.discount"):
        run(made(tmp_path, DISCOUNT, DISCOUNT), train_command)


@pytest.mark.parametrize(
    "drawn",
    [
        {"agent.discount": 0.85, "env": "custom:theirs:make"},
        {"env": "custom:theirs:make"},
        {"agent.discount": "0.85 --env=custom:theirs:make"},
        {"agent.discount": 0.95},
        {"agent.discount": None},
        ["agent.discount"],
        7,
    ],
    ids=str,
)
def test_a_search_goes_on_with_trials_that_it_can_have_drawn(
    drawn: Any, tmp_path: pathlib.Path, train_command: list[str]
) -> None:
    asked = made(tmp_path, DISCOUNT)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trials.json").write_text(json.dumps({"asked": search._asked(asked), "drawn": [drawn]}))
    with conftest.refused("trials.json", "--out"):
        run(asked, train_command)
    assert not starts(tmp_path)


def test_another_number_of_seeds_is_refused_and_the_table_stays(
    tmp_path: pathlib.Path, train_command: list[str]
) -> None:
    run(made(tmp_path, RATE, trials=1), train_command)
    before = (tmp_path / "out" / "table.md").read_text()
    with conftest.refused("(num_seeds 2 -> 3)"):
        run(made(tmp_path, RATE, trials=2, num_seeds=3), train_command)
    assert (tmp_path / "out" / "table.md").read_text() == before


def test_the_script_refuses_what_cannot_be(tmp_path: pathlib.Path) -> None:
    script = [sys.executable, str(conftest.PACKAGE.parent / "scripts" / "study.py"), "--out=x"]
    for arguments, message in (
        (["--search=agent.discount=0..1", "--setting=a:"], "study.py: --search and --setting: give one of them"),
        (["--search=agent.discount=0..1", "--trials=0"], "study.py: --trials=0: expected a whole number >= 1"),
        (["--search=seed=0..9"], "study.py: trial 000: --seed is chosen by the study"),
        (["--trials=3"], "study.py: --trials=3: give --search, too"),
        (["--search=agent.discount=0..1", "--means=entropy"], "study.py: --means=entropy: "),
    ):
        done = subprocess.run([*script, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith(message), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_optuna_is_told_of_every_trial(
    tmp_path: pathlib.Path, train_command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in that asks for one more hundredth each time, from the trials it was told of."""
    told: list[list[Any]] = []

    def create_study(direction: str, sampler: Any) -> Any:
        told.append([])
        ask = lambda spaces: types.SimpleNamespace(params={"agent.discount": 0.8 + 0.01 * len(told[-1])})  # noqa: E731
        return types.SimpleNamespace(add_trial=told[-1].append, ask=ask)

    module: Any = types.ModuleType("optuna")
    module.create_study = create_study
    module.logging = types.SimpleNamespace(set_verbosity=lambda level: None, WARNING=30)
    module.samplers = types.SimpleNamespace(TPESampler=lambda seed: seed)
    module.distributions = types.SimpleNamespace(FloatDistribution=lambda *bounds, log: bounds)
    create = lambda params, distributions, **known: (params["agent.discount"], known)  # noqa: E731
    module.trial = types.SimpleNamespace(create_trial=create, TrialState=types.SimpleNamespace(FAIL="failed"))
    monkeypatch.setitem(sys.modules, "optuna", module)
    (tmp_path / "fail").write_text("trial_000")
    asked = made(tmp_path, DISCOUNT)
    rows = run(search.Search(asked.plan, asked.ranges, 3, "optuna"), train_command)
    assert [row["searched"]["agent.discount"] for row in rows] == [0.8, 0.81, 0.82]
    assert told[-1][0] == (0.8, {"state": "failed"})
    assert told[-1][1] == (0.81, {"value": pytest.approx(81.5)})
    monkeypatch.setitem(sys.modules, "optuna", None)
    with conftest.refused('pip install "optuna>='):
        run(search.Search(asked.plan, asked.ranges, 3, "optuna"), train_command)


@pytest.mark.slow
def test_optuna_gets_choices_as_text_also_from_what_was_kept(
    tmp_path: pathlib.Path, train_command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    module: Any = types.ModuleType("optuna")
    ask = lambda spaces: types.SimpleNamespace(params={"network.hidden_sizes": "64"})  # noqa: E731
    module.create_study = lambda direction, sampler: types.SimpleNamespace(add_trial=told.append, ask=ask)
    module.logging = types.SimpleNamespace(set_verbosity=lambda level: None, WARNING=30)
    module.samplers = types.SimpleNamespace(TPESampler=lambda seed: seed)
    module.distributions = types.SimpleNamespace(CategoricalDistribution=lambda choices: choices)
    create = lambda params, distributions, **known: (params, distributions)  # noqa: E731
    module.trial = types.SimpleNamespace(create_trial=create)
    monkeypatch.setitem(sys.modules, "optuna", module)
    asked = made(tmp_path, "network.hidden_sizes=16,64")
    for trials in (1, 2):
        rows = run(search.Search(asked.plan, asked.ranges, trials, "optuna"), train_command)
    # The second session read the first trial from the file.
    assert told == [({"network.hidden_sizes": "64"}, {"network.hidden_sizes": ("16", "64")})]
    assert [tuple(row["searched"]["network.hidden_sizes"]) for row in rows] == [(64,), (64,)]


@pytest.mark.slow
def test_optuna_itself_finds_the_better_half(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    pytest.importorskip("optuna")
    asked = made(tmp_path, DISCOUNT, num_seeds=1)
    rows = run(search.Search(asked.plan, asked.ranges, 25, "optuna"), train_command)
    late = [row["searched"]["agent.discount"] for row in rows[15:]]
    assert sum(late) / len(late) > 0.87
