"""Sizes without a flag fit the environments; those with a flag stay, and so does every published setting."""

import pytest

import jaxrl_dist
from jaxrl_dist import errors, systems
from jaxrl_dist.learning import learner
from jaxrl_dist.settings.resolve import FLAG
from jaxrl_dist.systems import catalogue, families
from jaxrl_dist.training import assemble


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_published_sizes_fit_already(name: str) -> None:
    row = systems.SYSTEMS[name]
    for layout in row.layout_names:
        for family in families.FAMILIES:
            found = catalogue.resolved({"system": name, "layout": layout}, family)
            assert [origin for origin in found.origins.values() if "fitted" in origin] == [], (layout, family)


@pytest.mark.parametrize("name", [name for name in catalogue.preset_names() if not name.endswith("/paper")])
def test_sizes_of_presets_fit_already(name: str) -> None:
    try:
        found = assemble.resolve({"preset": name})[0]
    except errors.UsageError as error:
        pytest.skip(str(error))
    assert [origin for origin in found.origins.values() if "fitted" in origin] == []


# Settings that are given, and what becomes of others in the family of classic control.
CASES = {
    # 96,000 rows are no multiple of 256 columns × 10 rows.
    "capacity": ("r2d2", "anakin", {"env.num_envs": 256}, {"replay.capacity": 97_280}),
    "capacity of a multiple": ("dqn", "anakin", {"env.num_envs": 50}, {"replay.capacity": 10_000}),
    # A window of one step, the row after it, and the frames of a stack, for each of 8,192 columns of one step.
    "a window each": ("dqn", "anakin", {"env.num_envs": 8192, "agent.n_step": 3}, {"replay.capacity": 8 * 8192}),
    "given": ("dqn", "anakin", {"env.num_envs": 7, "replay.capacity": 700}, {"replay.capacity": 700}),
    "learning starts": ("dqn", "anakin", {"env.num_envs": 7, "replay.capacity": 700}, {"replay.min_size": 700}),
    "as it was": ("dqn", "anakin", {"env.num_envs": 7}, {"replay.min_size": 1_000}),
    "local replays": ("gorila", "async_gradient", {"env.num_envs": 12}, {"replay.capacity": 10_020}),
    "rows": ("ppo", "anakin", {"env.num_envs": 3}, {"learner.minibatches": 4}),
    "odd rows": ("ppo", "anakin", {"env.num_envs": 3, "layout.unroll_length": 5}, {"learner.minibatches": 3}),
    "columns": ("ppo", "anakin", {"env.num_envs": 6, "network.core": "lstm"}, {"learner.minibatches": 3}),
    "its own columns": ("ppo", "anakin", {"network.core": "lstm"}, {"learner.minibatches": 4}),
    "minibatches given": (
        "ppo",
        "anakin",
        {"env.num_envs": 6, "network.core": "gru", "learner.minibatches": 2},
        {"learner.minibatches": 2},
    ),
    "actors": ("impala", "sebulba", {"env.num_envs": 7}, {"layout.num_actors": 1}),
    "workers": ("gorila", "async_gradient", {"env.num_envs": 6}, {"layout.num_workers": 3}),
}


@pytest.mark.parametrize(("name", "layout", "given", "expected"), CASES.values(), ids=CASES)
def test_sizes_fit_what_is_given(name: str, layout: str, given: dict[str, object], expected: dict[str, object]) -> None:
    found = catalogue.resolved({"system": name, "layout": layout, **given}, "classic")
    before = catalogue.resolved({"system": name, "layout": layout}, "classic")
    for setting, value in expected.items():
        assert found[setting] == value
        is_fitted = setting not in given and value != before[setting]
        assert ("fitted to env.num_envs" in found.origins[setting]) == is_fitted
    assert all(found.origins[setting] == FLAG for setting in given)


def test_impalas_minibatches_divide_its_columns() -> None:
    found = catalogue.resolved({"system": "impala", "layout": "anakin", "env.num_envs": 6}, "minatar")
    assert found["learner.minibatches"] == 3


@pytest.mark.parametrize("name", [name for name, row in systems.SYSTEMS.items() if "discrete" in row.actions])
def test_the_table_says_which_agents_learn_from_columns(name: str) -> None:
    if systems.SYSTEMS[name].replay.keeps_rows:
        pytest.skip("batches of a replay have a size of their own")
    found, task = assemble.resolve({"system": name})
    agent = assemble.make_agent(found, task.spec)
    assert systems.SYSTEMS[name].sequences == agent.keeps_sequences


@pytest.mark.parametrize("num_envs", [3, 11, 48, 256])
@pytest.mark.parametrize("name", ["dqn", "r2d2", "ppo", "impala", "rainbow", "impala_replay"])
def test_any_number_of_environments_makes_a_replay(name: str, num_envs: int) -> None:
    flags = {"system": name, "env": "gymnax:CartPole-v1", "layout": "anakin", "env.num_envs": num_envs}
    found, task = assemble.resolve(flags)
    made = assemble.make_replay(found, assemble.make_agent(found, task.spec), found.group("learner", learner.Config))
    assert made.updates > (0, 0)


def test_what_is_given_is_refused_where_it_does_not_fit() -> None:
    with pytest.raises(errors.UsageError, match=r"replay\.capacity=1000 is no multiple of 256"):
        jaxrl_dist.make("dqn", "toy:walk", settings={"env.num_envs": 256, "replay.capacity": 1000})
