"""Several agents in every layout: columns on the host are those on the device, and runs are exact."""

import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import envs
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.parallel import unroll

TEAM, AGENTS, NUM_ENVS, LENGTH = "toy:team", 3, 2, 10
APART = {"agent.share_parameters": False}
SEBULBA = {"layout": "sebulba", "layout.num_actors": 2}
ASYNC = {
    **{"layout": "async_gradient", "layout.num_workers": 2, "layout.schedule": "virtual"},
    **{"learner.epochs": 1, "learner.minibatches": 1},
}


def test_unrolls_on_host_and_device_are_the_same_rows_and_episodes() -> None:
    made = jaxrl_dist.make("ppo", TEAM, settings={"env.num_envs": NUM_ENVS, "network.hidden_sizes": (8,)})
    agent, environment = made.agent, made.environment
    assert isinstance(environment, envs.Environment)
    params, key = agent.init(jax.random.key(1)), jax.random.key(2)
    state, timestep = envs.columns(environment).reset(jax.random.key(0), jnp.arange(NUM_ENVS))
    actors = unroll.ActorState(state, timestep, agent.init_carry(NUM_ENVS * AGENTS))
    act_key = jax.random.split(jax.random.fold_in(key, 0))[0]
    on_device = jax.jit(unroll.device_unroll(agent, environment, LENGTH))
    after, rows, sums = on_device(params, actors, act_key, (), jnp.int32(5))
    host = as_host.AsHost(environment, NUM_ENVS, jax.random.key(0))
    play = unroll.HostUnroll(agent, environment.spec, NUM_ENVS, LENGTH, parts=2)
    first, carry = host.reset()._replace(info=()), agent.init_carry(NUM_ENVS * AGENTS)
    published = unroll.Published(params, jnp.int32(5), jnp.float32(0.0))
    parts, closing = play.run(published, key, 0, jnp.arange(NUM_ENVS), host, first, carry)
    for part, own in zip(parts, (slice(0, AGENTS), slice(AGENTS, None)), strict=True):
        assert part.steps.action.shape == (LENGTH + 1, AGENTS)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x[:, own], y, rtol=1e-5), rows.steps, part.steps)  # noqa: B023
    np.testing.assert_array_equal(closing.timestep.step_type, after.timestep.step_type)
    # One episode ends in each environment, of 7 steps; an agent's own ends are not counted.
    assert int(sums.episodes) == closing.episodes.episodes[0] == NUM_ENVS
    assert int(sums.episode_length) == closing.episodes.episode_length[0] == 7 * NUM_ENVS
    assert float(sums.episode_return) == pytest.approx(float(closing.episodes.episode_return[0]))
    assert int(sums.valid_steps) == closing.episodes.valid_steps[0] < LENGTH * NUM_ENVS * AGENTS


def test_each_column_explores_by_its_own_index() -> None:
    settings = {"env.num_envs": NUM_ENVS, "replay.capacity": 960, "replay.min_size": 96}
    made = jaxrl_dist.make("apex_dqn", TEAM, settings={"layout": "anakin", **settings})
    spec = made.environment.spec
    asked = []

    def exploration(params: Any, index: Any, count: int, progress: Any) -> Any:
        asked.append((np.asarray(index).tolist(), count))
        return made.agent.exploration(params, index, count, progress)

    agent = made.agent._replace(exploration=exploration)
    play = unroll.HostUnroll(agent, spec, 4, LENGTH, parts=1)
    published = unroll.Published(agent.init(jax.random.key(0)), jnp.int32(0), jnp.float32(0.0))
    with jax.disable_jit():
        found = play._begun(published, jax.random.key(0), jnp.int32(0), jnp.array([2, 3]))[1]
    assert asked == [([6, 7, 8, 9, 10, 11], 12)] and found.shape == (6,)


CASES = {
    "sebulba": ("ippo", 2, SEBULBA),
    "sebulba-apart": ("mappo", 1, {**SEBULBA, **APART}),
    "async": ("mappo", 1, ASYNC),
    "async-apart": ("ippo", 1, {**ASYNC, **APART}),
    "replay": ("dqn", 2, {"replay.capacity": 960, "replay.min_size": 96}),
}


@pytest.mark.parametrize("case", marks.some(list(CASES), fast={"sebulba"}))
def test_columns_move_finite_parameters_in_every_layout(small: Any, case: str) -> None:
    system, num_devices, settings = CASES[case]
    run = small(system, TEAM, num_devices, settings)
    before = run.params
    run.run(3)
    after = run.params
    run.layout.close()
    assert all(np.isfinite(leaf).all() for leaf in after)
    assert not all(map(np.array_equal, before, after))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [pytest.param({}, id="anakin"), pytest.param({**SEBULBA, "layout.policy_lag": "1"}, id="sebulba")]
)
def test_a_resumed_run_is_the_same_bit_by_bit(small: Any, tmp_path: pathlib.Path, layout: dict[str, Any]) -> None:
    settings = {**layout, **APART, "agent.scale_rewards": True}
    whole = small("mappo", TEAM, 1, settings).run(3).run(2)
    first = small("mappo", TEAM, 1, settings).run(3)
    second = first.handed_to(small("mappo", TEAM, 1, settings), tmp_path).run(2)
    jax.tree.map(np.testing.assert_array_equal, whole.params, second.params)
    assert whole.metrics.episodes.episodes.sum() > 0
    for run in (whole, second):
        run.layout.close()


@pytest.mark.slow
def test_seeds_and_sweeps_together_are_those_alone(small: Any) -> None:
    swept = {"sweep": "learner.learning_rate=0.001,0.01", "num_seeds": 2}
    together = small("mappo", TEAM, 1, {**APART, **swept}).run(3)
    alone = small("mappo", TEAM, 1, {**APART, "seed": 1, "learner.learning_rate": 0.01}).run(3)
    networks = (jax.tree.leaves(run.state.learner.params.network) for run in (together, alone))
    for a, b in zip(*networks, strict=True):
        np.testing.assert_allclose(a[3], b[0], rtol=1e-3, atol=1e-5)


def test_sizes_are_those_of_columns(small: Any) -> None:
    sizes = {"env.num_envs": 4, "layout.unroll_length": 5, "learner.minibatches": 6}
    small("ippo", TEAM, 1, sizes)
    with conftest.refused("--learner.minibatches=6", "20 items"):
        small("ippo", TEAM, 1, {**sizes, **APART})


def test_agents_who_act_together_are_not_taken_as_they_get_ready(small: Any) -> None:
    with conftest.refused("--layout.ready_envs=2", "3 agents"):
        small("ppo", TEAM, 1, {**SEBULBA, "layout.ready_envs": 2, "layout.policy_lag": "free"})
