"""Evolution strategies: noise, ranks, returns and gradient against the paper in float64, and what crosses devices."""

import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import agents, envs, networks, types
from jaxrl_dist.agents import es
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import mesh, sebulba
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import assemble, hlo, targets

CARTPOLE = "gymnax:CartPole-v1"
N, T = 6, 9
CONFIG = es.Config(sigma=0.3, weight_decay=0.07)


def _made() -> tuple[agents.Agent, types.Params]:
    agent = es.make(CONFIG, envs.make("toy:walk").spec, networks.Config(torso="mlp", hidden_sizes=(3,)))
    return agent, agent.init(jax.random.key(5))


def _flat(network: Any, axes: int = 0) -> np.ndarray:
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(network)]
    return np.concatenate([x.reshape(*x.shape[:axes], -1) for x in leaves], axis=-1)


def _perturbed(agent: agents.Agent, params: types.Params) -> np.ndarray:
    found, index = agent.exploration(params, jnp.arange(N), N, 0.0)
    np.testing.assert_array_equal(index, np.arange(N))
    return _flat(found, 1)


def _ranks(fitness: np.ndarray) -> np.ndarray:
    """Centred ranks, each number compared with all; half of the equal ones count as lower."""
    lower = [sum(other < x for other in fitness) + (sum(other == x for other in fitness) - 1) / 2 for x in fitness]
    return np.array(lower) / (len(fitness) - 1) - 0.5


@pytest.mark.parametrize("fitness", [[3.0, -1.0, 2.5, 10.0], [1.0, 1.0, 0.0, 2.0, 1.0], [4.0, 4.0], [-np.inf, 0.0]])
def test_ranks_are_centred_and_equal_returns_share_theirs(fitness: list[float]) -> None:
    found = es.centred_ranks(jnp.asarray(fitness, jnp.float32))
    np.testing.assert_allclose(found, _ranks(np.array(fitness)), atol=1e-7)
    assert abs(float(found.sum())) < 1e-6


def test_one_member_has_no_rank_and_is_refused(tmp_path: pathlib.Path) -> None:
    np.testing.assert_array_equal(es.centred_ranks(jnp.array([3.0])), [0.0])
    with conftest.refused("--env.num_envs=1"):
        conftest.train_in(tmp_path, "es", CARTPOLE, **{"env.num_envs": 1})


def test_pairs_have_opposite_noise_of_deviation_sigma_which_is_new_in_each_generation() -> None:
    agent, params = _made()
    mean, found = _flat(params.network), _perturbed(agent, params)
    noise = (found - mean) / 0.3
    np.testing.assert_allclose(noise[0::2], -noise[1::2], atol=1e-5)
    assert noise[::2].size > 50 and abs(noise[::2].std() - 1) < 0.2 and abs(noise[::2].mean()) < 0.3
    after = agent.adapt(params, _unroll(np.zeros((T, N)), np.zeros((T, N), np.int8)), {}, (), types.LOCAL)
    assert int(after.statistics.generation) == 1 and after.network is params.network
    every = [*noise[::2], *((_perturbed(agent, after) - mean) / 0.3)[::2]]
    other = _flat(agent.exploration(agent.init(jax.random.key(6)), jnp.arange(N), N, 0.0)[0], 1)
    assert np.abs(np.corrcoef([*every, other[0]]) - np.eye(7)).max() < 0.6
    # An environment's own parameters do not depend on which device has it.
    alone, _ = agent.exploration(params, jnp.array([3]), N, 0.0)
    np.testing.assert_array_equal(_flat(alone, 1)[0], found[3])


def _unroll(reward: np.ndarray, step_type: np.ndarray) -> types.Unroll:
    timestep = types.TimeStep(
        jnp.asarray(step_type),
        jnp.asarray(reward, jnp.float32),
        jnp.ones(reward.shape),
        jnp.zeros((*reward.shape, 2)),
        (),
    )
    member = jnp.broadcast_to(jnp.arange(reward.shape[1]), reward.shape)
    return types.Unroll(types.Step(timestep, jnp.zeros(reward.shape, int), member, ()), ())


def _rows(seed: int) -> tuple[types.Unroll, np.ndarray]:
    """Rewards of first and later episodes, and the returns of the first: of column b it ends at row b + 2."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(T, N)).round(2)
    step_type = np.full((T, N), types.MID, np.int8)
    step_type[0] = types.FIRST
    wanted = np.zeros(N)
    for b in range(N):
        end = b + 2
        wanted[b] = reward[1 : end + 1, b].sum()
        step_type[end, b] = types.LAST
        if end + 1 < T:
            step_type[end + 1, b] = types.FIRST
    reward[step_type == types.FIRST] = 0
    return _unroll(reward, step_type), wanted


@pytest.mark.parametrize("devices", [1, 2])
def test_the_gradient_is_that_of_the_paper_over_all_devices(devices: int) -> None:
    agent, params = _made()
    unroll, fitness = _rows(3)
    noise = (_perturbed(agent, params) - _flat(params.network)) / 0.3
    axis = mesh.AXIS if devices > 1 else types.LOCAL

    def one(steps: types.Step) -> types.Gradient:
        inputs = types.LossInputs(types.Unroll(steps, ()), (), jax.random.key(0), jnp.float32(0), axis)
        assert agent.gradient is not None
        return agent.gradient(params, inputs._replace(batch=agent.prepare(params, inputs)))

    def dealt(x: jax.Array) -> jax.Array:
        return jnp.stack(jnp.split(x, devices, 1))

    found = jax.jit(jax.vmap(one, axis_name="devices"))(jax.tree.map(dealt, unroll.steps))
    wanted = -sum(rank * e for rank, e in zip(_ranks(fitness), noise, strict=True)) / N + 0.07 * _flat(params.network)
    for device in range(devices):
        own = jax.tree.map(lambda x, device=device: x[device], found)
        np.testing.assert_allclose(_flat(own.sums) / float(own.valid), wanted, atol=2e-6)
        assert own.valid == N and own.metrics["fitness"] == pytest.approx(fitness.sum(), abs=1e-5)
        assert own.maxima["largest_fitness"] == pytest.approx(fitness.max()) and own.priorities.shape == (N // devices,)
    assert np.abs(wanted).max() > 0.01


def test_the_learner_steps_by_the_agent_s_gradient_and_reduces_nothing() -> None:
    agent, params = _made()
    unroll, _ = _rows(3)
    rule = learner.Config(optimizer="sgd", learning_rate=0.5, anneal=False, max_grad_norm=0.0)
    rules = learner.make(rule, agent, types.Axis(sum=_refuse, max=lambda x: x, gather=lambda x: x))
    assert agent.gradient is not None
    inputs = types.LossInputs(unroll, (), jax.random.key(0), jnp.float32(0), types.LOCAL)
    gradient = agent.gradient(params, inputs._replace(batch=agent.prepare(params, inputs)))
    state, _, metrics = rules.update(
        rules.init(params), types.Sample(unroll, (), jnp.ones(N)), jax.random.key(0), jnp.float32(0)
    )
    moved = (_flat(params.network) - _flat(state.params.network)) / 0.5
    np.testing.assert_allclose(moved, _flat(gradient.sums) / N, atol=1e-6)
    assert metrics["fitness"] == pytest.approx(float(gradient.metrics["fitness"]) / N)
    assert int(state.params.statistics.generation) == 1
    with pytest.raises(ValueError, match="no loss"):
        agent.loss(params, inputs)


def _refuse(tree: Any) -> Any:
    assert not jax.tree.leaves(tree)
    return tree


def test_each_environment_acts_by_its_own_parameters() -> None:
    agent, params = _made()
    exploration, timestep = (
        agent.exploration(params, jnp.arange(N), N, 0.0),
        unrolls.zero_timestep(envs.make("toy:walk").spec, N),
    )
    timestep = timestep._replace(observation=np.full((N, 2), 3.0, np.float32))
    inputs = types.ActInputs(timestep, agent.init_carry(N), jax.random.key(0), exploration)
    output, actions = agent.act(params, inputs), []
    for b in range(N):
        own = params._replace(network=jax.tree.map(lambda x, b=b: x[b], exploration[0]))
        actions.append(int(agent.evaluate(own, inputs._replace(exploration=())).action[b]))
    assert output.action.tolist() == actions and len(set(actions)) > 1
    assert output.extras.tolist() == list(range(N))


def test_unrolls_open_with_first_rows_and_moments_of_observations_move(small: Any) -> None:
    """Episodes have 7 steps, and unrolls 16: without the reset, the second unroll would open in mid-episode."""
    settings = {"agent.normalise_observations": True, "layout.unroll_length": 16}
    run = small("es", "toy:time_limit", 1, settings).run(3)
    assert set(np.asarray(run.state.actors.timestep.step_type).ravel().tolist()) == {types.FIRST}
    # Rewards are steps / 2 + action: the first episode of each of three unrolls earns 10.5 at least, and 24.5 at most.
    fitness = np.asarray(run.metrics.learner["fitness"]) / 3
    assert 10.5 <= float(fitness[0]) <= 24.5
    rows = np.asarray(run.state.learner.params.statistics.observation.observation.rows)
    assert rows.tolist() == [3 * 8 * 14]


def test_what_crosses_devices_does_not_grow_with_the_network() -> None:
    """All collectives of the compiled program of two devices, of a narrow network and of a wide one."""
    found, sizes = [], []
    for width in (4, 64):
        flags = {**conftest.SMALL["es"], "system": "es", "env": CARTPOLE, "network.hidden_sizes": (width, width)}
        settings, environment = assemble.resolve(flags)
        parts = assemble.assemble(settings, environment, jax.devices()[:2])
        template = parts.layout.template(jax.eval_shape(lambda settings=settings: assemble.seed_keys(settings)))
        lowered = parts.layout.program.lower(*parts.layout.run_arguments(template, 0, 10, 100))
        program = hlo.read(lowered.compile().as_text(), targets.make("cpu").speeds)
        found.append(sorted(one for _, loop in program.walk() for one in loop.collectives))
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(template.learner.params.network)))
    assert found[0] == found[1] and sizes[1] > 20 * sizes[0]
    gathered = [moved for kind, moved in found[0] if kind == "all-gather"]
    # A device sends index and return of its 4 environments; the rest are five sums of episodes, and the best return.
    assert sum(gathered) == 4 * 8 and sum(moved for _, moved in found[0]) == 4 * 8 + 6 * 4


def test_layouts_whose_environments_go_on_and_several_steps_are_refused() -> None:
    with conftest.refused("--layout=sebulba", "anakin"):
        training_flags.parse(["--system=es", "--layout=sebulba"])
    with pytest.raises(Exception, match="learner.epochs=2"):
        conftest.Small("es", CARTPOLE, 1, {"learner.epochs": 2})
    settings, environment = assemble.resolve({**conftest.SMALL["a2c"], "system": "a2c", "env": CARTPOLE})
    parts = assemble.assemble(settings, environment, jax.devices()[:1]).layout._parts  # type: ignore[attr-defined]
    parts = parts._replace(agent=parts.agent._replace(fresh_episodes=True))
    with conftest.refused("layout=sebulba", "anakin"):
        sebulba.LAYOUT.make(parts)


def test_two_devices_play_the_episodes_of_one(small: Any) -> None:
    """First states are of the environment's own number; sums of states may be rounded otherwise."""
    one, two = (small("es", CARTPOLE, devices, {}).run(3) for devices in (1, 2))
    for name in ("fitness", "largest_fitness"):
        np.testing.assert_array_equal(*(np.asarray(run.metrics.learner[name]) for run in (one, two)))
    starts = [np.asarray(run.state.actors.timestep.observation)[0] for run in (one, two)]
    np.testing.assert_allclose(*starts, rtol=1e-3, atol=1e-6)
    assert len(np.unique(starts[0][:, 0])) == len(starts[0])


def test_each_generation_has_first_states_of_its_own(small: Any) -> None:
    """Of members that are nearly alike and do not learn, the episodes differ by their first states alone."""
    run = small("es", CARTPOLE, 1, {"agent.sigma": 1e-9, "learner.learning_rate": 1e-12})
    first, second = (np.asarray(run.run(1).state.actors.timestep.observation) for _ in range(2))
    assert (np.abs(first - second).max(-1) > 1e-4).all()


def test_inputs_of_values_are_refused() -> None:
    network = networks.Config(torso="mlp", value_inputs=("goal",))
    with conftest.refused("network.value_inputs=goal", "network.policy_inputs=goal"):
        es.make(es.Config(), envs.make("toy:reach").spec, network)


def test_environments_of_several_agents_are_refused() -> None:
    """Both members of a pair would have one episode and its return, and the gradient would be 0."""
    settings, environment = assemble.resolve({"system": "es", "env": "toy:team"})
    with conftest.refused("--env=toy:team", "3 agents", "--system=ippo"):
        assemble.make_agent(settings, environment.spec)
