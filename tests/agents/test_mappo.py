"""Several agents that learn: whose parameters are whose, what policy and critic see, and evaluation of a team."""

import dataclasses
import functools
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import agents, envs, networks, types
from jaxrl_dist.agents import dqn, es, mappo, ppo
from jaxrl_dist.agents.shared import own_parameters
from jaxrl_dist.parallel import unroll

AGENTS, NUM_ENVS, LENGTH = 3, 2, 9
NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,), shared=False)
CONFIG = mappo.Config(share_parameters=False, scale_rewards=True, normalise_observations=True, central_critic=False)
# Forwarded as they are, since they take trees of parameters as they come, or numbers.
UNCHANGED = {
    *("init_carry", "staleness", "context", "taught", "lookahead", "keeps_sequences", "gradient", "target", "parts"),
    *("first_error", "pace", "adopt", "fresh_episodes", "acts_together"),
}


def team() -> envs.Environment:
    environment = envs.make("toy:team")
    assert isinstance(environment, envs.Environment)
    return environment


def played(agent: agents.Agent, params: types.Params) -> types.Unroll:
    columns = envs.columns(team())
    state, timestep = columns.reset(jax.random.key(0), jnp.arange(NUM_ENVS))
    actors = unroll.ActorState(state, timestep, agent.init_carry(NUM_ENVS * AGENTS))
    play = unroll.device_unroll(agent, team(), LENGTH)
    return jax.jit(play)(params, actors, jax.random.key(1), (), jnp.int32(0))[1]


def of_agent(sequences: types.Unroll, a: int) -> types.Unroll:
    steps = jax.tree.map(lambda x: x[:, a::AGENTS], sequences.steps)
    return types.Unroll(steps, jax.tree.map(lambda x: x[a::AGENTS], sequences.carry))


def inputs(batch: Any, key: int = 2) -> types.LossInputs:
    return types.LossInputs(batch, (), jax.random.key(key), jnp.float32(0), types.LOCAL)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["identity", "lstm"])
def test_agents_apart_are_as_many_agents_alone(core: str) -> None:
    network = networks.Config(torso="mlp", hidden_sizes=(8,), shared=False, core=core, core_size=4)
    together = mappo.make(CONFIG, team().spec, network)
    alone = ppo.make(ppo.Config(scale_rewards=True, normalise_observations=True), team().spec, network)
    params = together.init(jax.random.key(5))
    rows = played(together, params)
    # Statistics that differ tell apart whose are used.
    params = jax.jit(together.adapt, static_argnums=4)(params, rows, {}, (), types.LOCAL)
    batch = together.prepare(params, inputs(rows))
    assert together.epoch is not None and alone.epoch is not None
    items = LENGTH * NUM_ENVS if core == "identity" else NUM_ENVS
    order = jnp.arange(items).reshape(2, -1)
    batch = together.epoch(batch, order, types.LOCAL)
    output, gradient = taught(together, params, batch)
    summed = np.zeros(items)
    for a in range(AGENTS):
        own = jax.tree.map(lambda x: x[a], params)  # noqa: B023
        one = alone.epoch(alone.prepare(own, inputs(of_agent(rows, a))), order, types.LOCAL)
        expected, its_gradient = taught(alone, own, one)
        summed += np.asarray(expected.loss)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x[a], y, rtol=1e-4, atol=1e-6),  # noqa: B023
            gradient,
            its_gradient,
        )
    np.testing.assert_allclose(output.loss, summed, rtol=1e-4, atol=1e-6)
    assert output.valid.sum() == (rows.steps.timestep.step_type[:-1] != types.LAST).sum()


def taught(agent: agents.Agent, params: types.Params, batch: Any) -> tuple[types.LossOutput, Any]:
    def loss(network: Any) -> Any:
        output = agent.loss(params._replace(network=network), inputs(batch))
        return output.loss.sum(), output

    gradient, output = jax.jit(jax.grad(loss, has_aux=True))(params.network)
    return output, gradient


def test_each_agent_acts_by_its_own_parameters() -> None:
    # The memory shows more of what acted than an action does.
    network = networks.Config(torso="mlp", hidden_sizes=(8,), core="lstm", core_size=4)
    together = mappo.make(CONFIG, team().spec, network)
    params = together.init(jax.random.key(5))
    alone = ppo.make(ppo.Config(scale_rewards=True, normalise_observations=True), team().spec, network)
    timestep = envs.columns(team()).reset(jax.random.key(0), jnp.arange(NUM_ENVS))[1]._replace(info=())
    # Rows that differ by more than their agent.
    timestep = timestep._replace(observation={**timestep.observation, "goal": jnp.arange(6.0)[:, None]})
    carry = together.init_carry(NUM_ENVS * AGENTS)
    output = together.evaluate(params, types.ActInputs(timestep, carry, jax.random.key(1)))
    for a in range(AGENTS):
        own, rows, its = jax.tree.map(lambda x: x[a], params), *_rows((timestep, carry), a)  # noqa: B023
        expected = alone.evaluate(own, types.ActInputs(rows, its, jax.random.key(1)))
        assert output.action[a::AGENTS].tolist() == expected.action.tolist()
        near = functools.partial(np.testing.assert_allclose, rtol=1e-5)
        jax.tree.map(near, _rows(output.carry, a), expected.carry)


def test_agents_of_one_environment_draw_apart_though_they_see_the_same() -> None:
    together = mappo.make(CONFIG, team().spec, NETWORK)
    params = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), together.init(jax.random.key(5)))
    timestep = envs.columns(team()).reset(jax.random.key(0), jnp.arange(NUM_ENVS))[1]._replace(info=())
    same = {**timestep.observation, "goal": jnp.zeros((6, 1)), "agent": jnp.zeros(6, jnp.int32)}
    carry, timestep = together.init_carry(6), timestep._replace(observation=same)
    keys = (jax.random.key(k) for k in range(8))
    draws = [together.act(params, types.ActInputs(timestep, carry, key)).action for key in keys]
    assert any(len(set(draw.reshape(NUM_ENVS, AGENTS)[0].tolist())) > 1 for draw in draws)


def test_agents_of_one_environment_learn_by_keys_of_their_own() -> None:
    def loss(params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
        zero = jnp.zeros(NUM_ENVS)
        return types.LossOutput(zero, zero, zero, {}, {}, aux=jax.random.normal(inputs.key))

    inner = ppo.make(ppo.Config(), team().spec, NETWORK)
    inner = inner._replace(prepare=lambda params, inputs: jax.random.normal(inputs.key, (1,)), loss=loss)
    outer = own_parameters.make(inner, AGENTS)
    params = outer.init(jax.random.key(5))
    prepared = outer.prepare(params, inputs(played(outer, params)))
    draws = prepared, outer.loss(params, inputs(prepared)).aux
    assert [len(np.unique(draw)) for draw in draws] == [AGENTS, AGENTS]


def test_the_largest_of_agents_apart_is_that_of_any_of_them() -> None:
    def loss(params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
        zero = jnp.zeros(NUM_ENVS)
        return types.LossOutput(zero, zero, inputs.batch, {}, {"largest": inputs.batch, "most": -inputs.batch})

    inner = ppo.make(ppo.Config(), team().spec, NETWORK)._replace(loss=loss)
    # Rows are environments, columns agents.
    batch = jnp.array([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
    found = own_parameters.make(inner, AGENTS).loss(types.Params(jnp.zeros(AGENTS), ()), inputs(batch))
    assert {name: x.tolist() for name, x in found.maxima.items()} == {"largest": [5.0, 4.0], "most": [-1.0, 0.0]}
    assert found.priority.tolist() == [5.0, 4.0]


def _rows(tree: Any, a: int) -> Any:
    return jax.tree.map(lambda x: x[a::AGENTS], tree)


def test_the_wrapper_knows_every_function_of_an_agent() -> None:
    inner = ppo.make(ppo.Config(), team().spec, NETWORK)
    outer = own_parameters.make(inner, AGENTS)
    kept = {name for name in agents.Agent._fields if getattr(outer, name) is getattr(inner, name)}
    changed = set(agents.Agent._fields) - kept
    assert changed == set(agents.Agent._fields) - UNCHANGED


def prepared(agent: agents.Agent, changed: str) -> tuple[types.Params, list[Any]]:
    """Plays, and prepares the rows as they are and with another leaf of the observation."""
    params = agent.init(jax.random.key(0))
    rows = played(agent, params)
    timestep = rows.steps.timestep
    observation = {**timestep.observation, changed: timestep.observation[changed] + 1}
    other = rows._replace(steps=rows.steps._replace(timestep=timestep._replace(observation=observation)))
    return params, [agent.prepare(params, inputs(one)) for one in (rows, other)]


def test_only_the_critic_sees_what_is_privileged() -> None:
    for central in (False, True):
        agent = mappo.make(mappo.Config(central_critic=central), team().spec, NETWORK)
        params, (first, second) = prepared(agent, "all")
        assert np.array_equal(first.value, second.value) != central
        outputs = [agent.loss(params, inputs(one)).metrics["entropy"] for one in (first, second)]
        assert np.array_equal(*outputs)


def test_a_critic_that_is_not_central_sees_what_its_policy_sees() -> None:
    both = {"policy_inputs": ("agent",), "value_inputs": ("agent", "goal")}
    for named, sees in (({}, True), ({"policy_inputs": ("agent",)}, False), (both, True)):
        agent = mappo.make(mappo.Config(central_critic=False), team().spec, dataclasses.replace(NETWORK, **named))
        _, (first, second) = prepared(agent, "goal")
        assert np.array_equal(first.value, second.value) != sees


def test_evaluation_counts_an_episode_of_a_team_once(small: Any) -> None:
    run = small("ippo", "toy:team", 2, {})
    returns = run.parts.evaluate(run.state.learner.params, run.keys, 0)
    assert returns.shape == (1, run.parts.settings["evaluation.episodes"])
    # The mean over agents of whole rewards, and of two and four halves of those whose episodes ended before.
    assert np.isin(np.round(returns * AGENTS, 4), np.arange(3, 19)).all()
    run.run(3)
    steps = 3 * 16 * 8
    episodes = int(run.metrics.episodes.episodes.sum())
    assert run.layout.rows_per_iteration == 16 * 8 and episodes == pytest.approx(steps / 8, abs=8)
    assert int(run.metrics.episodes.episode_length.sum()) == 7 * episodes
    # Of 24 rows of a whole episode, 7 + 5 + 3 are taught, and the three that begin it.
    valid = int(run.metrics.episodes.valid_steps.sum())
    assert valid == pytest.approx(steps / 8 * 15, rel=0.1)


def test_agents_alone_share_nothing() -> None:
    with conftest.refused("agent.share_parameters=false"):
        mappo.make(mappo.Config(share_parameters=False), envs.make("toy:walk").spec, NETWORK)


def test_agents_that_replay_or_give_their_gradient_share() -> None:
    # Evolution strategies themselves refuse several agents.
    for module, spec in ((dqn, team().spec), (es, team().spec._replace(num_agents=1))):
        agent = module.make(module.Config(), spec, NETWORK)  # type: ignore[attr-defined]
        with conftest.refused("agent.share_parameters=false"):
            own_parameters.make(agent, AGENTS)


def test_rows_of_half_a_team_are_refused() -> None:
    agent = mappo.make(CONFIG, team().spec, NETWORK)
    timestep: Any = unroll.zero_timestep(team().spec, 4)
    with conftest.refused("agent.share_parameters=false"):
        agent.act(agent.init(jax.random.key(0)), types.ActInputs(timestep, agent.init_carry(4), jax.random.key(1)))
