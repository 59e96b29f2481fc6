"""The learner: one update on N devices is one on the whole batch (T1), poisoned rows teach nothing (T8), schedules."""

import collections
import dataclasses
import functools
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import optax
import pytest
from fakes import calls
from oracles import learner as oracle

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import (
    a2c,
    alphazero,
    crossq,
    discrete_sac,
    dpg,
    dqn,
    dreamer,
    impala,
    iqn,
    mappo,
    mpo,
    muzero,
    ppo,
    pqn,
    r2d2,
    rnd,
    sac,
    vmpo,
)
from jaxrl_dist.learning import learner, optimizers
from jaxrl_dist.parallel import mesh as meshes

T, B, D = 6, 8, 3
SPEC = types.EnvironmentSpec(
    "toy:random", jax.ShapeDtypeStruct((D,), jnp.float32), types.DiscreteSpace(4), "classic", (-1.0, 1.0)
)
PAIR = SPEC._replace(num_agents=2)
BOX = SPEC._replace(action=types.BoxSpace((2,), -1.0, 1.0))
NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,), shared=False)
NORMALISED = networks.Config(torso="mlp", hidden_sizes=(8,), layer_norm=True)
LSTM = networks.Config(torso="mlp", hidden_sizes=(8,), core="lstm", core_size=4)
A2C = a2c.Config(normalise_observations=True, scale_rewards=True)
PPO = ppo.Config(normalise_observations=True, scale_rewards=True)
_SIZES = {"units": 8, "layers": 1, "recurrent_units": 8, "blocks": 2, "latents": 3, "classes": 4, "num_bins": 15}
DREAMER = dreamer.Config(length=T, horizon=3, **_SIZES)
SEARCH = {"num_atoms": 11, "value_bound": 5.0, "simulations": 3, "n_step": 2}
MUZERO = muzero.Config(**SEARCH, unroll_steps=3, latent_size=4, model_size=4)
SGD = learner.Config(optimizer="sgd", learning_rate=0.1, anneal=False, shuffle=False, max_grad_norm=0.5)
CASES = {
    "ppo": (ppo, PPO, SPEC, NETWORK),
    "ppo-batch-advantage": (ppo, ppo.Config(normalise_advantage="batch"), SPEC, NETWORK),
    "ppo-gaussian": (ppo, PPO, BOX, NETWORK),
    "ppo-tanh": (ppo, ppo.Config(distribution="tanh_gaussian"), BOX, NETWORK),
    "dppo": (ppo, ppo.Config(clip_epsilon=0.0, clip_value=0.0, kl_penalty=2.0, kl_target=1e-3), SPEC, NETWORK),
    "ppo-lstm": (ppo, PPO, SPEC, LSTM),
    "ippo-apart": (mappo, mappo.Config(share_parameters=False), PAIR, NETWORK),
    "ippo-apart-lstm": (mappo, mappo.Config(share_parameters=False), PAIR, LSTM),
    # A draw of rows is each device's own.
    "rnd": (rnd, rnd.Config(predictor_share=1.0, feature_size=4), SPEC, NETWORK),
    "rnd-lstm": (rnd, rnd.Config(predictor_share=1.0, feature_size=4, scale_rewards=True), SPEC, LSTM),
    "a2c": (a2c, A2C, SPEC, NETWORK),
    "a2c-gaussian": (a2c, a2c.Config(gae_lambda=0.9), BOX, NETWORK),
    "a2c-lstm": (a2c, A2C, SPEC, LSTM),
    "impala": (impala, impala.Config(normalise_observations=True, scale_rewards=True), SPEC, NETWORK),
    "impala-lstm": (impala, impala.Config(trace_decay=0.9), SPEC, LSTM),
    "pqn": (pqn, pqn.Config(clip_rewards=1.0, reward_scale=0.5), SPEC, NORMALISED),
    "pqn-lstm": (pqn, pqn.Config(trace_decay=0.9), SPEC, LSTM),
    "dqn": (dqn, dqn.Config(n_step=3, double=True), SPEC, NETWORK),
    "dqn-c51": (dqn, dqn.Config(num_atoms=11, dueling=True, value_low=-3.0, value_high=3.0), SPEC, NETWORK),
    "dqn-quantiles": (dqn, dqn.Config(num_atoms=7, distribution="quantile", double=True), SPEC, NETWORK),
    "dqn-munchausen": (dqn, dqn.Config(temperature=0.5, munchausen=0.9), SPEC, NETWORK),
    "discrete_sac": (discrete_sac, discrete_sac.Config(n_step=3), SPEC, NETWORK),
    "iqn": (iqn, iqn.Config(num_levels=5, num_target_levels=4, num_policy_levels=3), SPEC, NETWORK),
    "muzero": (muzero, MUZERO, SPEC, NETWORK),
    "muzero-reanalysed": (muzero, dataclasses.replace(MUZERO, target_values=True, reanalyse=1.0), SPEC, NETWORK),
    "alphazero": (alphazero, alphazero.Config(**SEARCH), SPEC, NETWORK),
    "vmpo": (vmpo, vmpo.Config(normalise_observations=True, scale_rewards=True), SPEC, NETWORK),
    "vmpo-gaussian-lstm": (vmpo, vmpo.Config(), BOX, LSTM),
    "mpo": (mpo, mpo.Config(n_step=2, num_samples=4), BOX, NETWORK),
    "crossq": (crossq, crossq.Config(renorm_wait=0.0), BOX, NETWORK),
    "td3": (dpg, dpg.Config(num_critics=2, n_step=3), BOX, NETWORK),
    "sac": (sac, sac.Config(), BOX, NETWORK),
    "d4pg": (dpg, dpg.Config(num_atoms=11, value_low=-3.0, value_high=3.0), BOX, NETWORK),
    "r2d2": (r2d2, r2d2.Config(burn_in=3, taught=4, n_step=2), SPEC, LSTM),
    "dreamer": (dreamer, DREAMER, SPEC, networks.Config()),
    "dreamer-continuous": (dreamer, DREAMER, BOX, networks.Config()),
}


def _unroll(agent, spec, length, columns, seed=0):
    """Random rows whose episodes end at different rates in different columns, so that devices teach unequally."""
    rng = np.random.default_rng(seed)
    step_type = np.full((length, columns), types.MID, np.int8)
    for b in range(columns):
        t = int(rng.integers(0, 3))
        while t < length:
            step_type[t, b] = types.LAST
            if t + 1 < length:
                step_type[t + 1, b] = types.FIRST
            t += 2 + (b * b) // 4
    terminated = (step_type == types.LAST) & (rng.random((length, columns)) < 0.5)
    first = step_type == types.FIRST
    reward = np.where(first, 0.0, rng.normal(size=(length, columns))).astype(np.float32)
    timestep = types.TimeStep(
        jnp.asarray(step_type),
        jnp.asarray(reward),
        jnp.asarray(1.0 - terminated, jnp.float32),
        jnp.asarray(rng.normal(size=(length, columns, D)), jnp.float32),
        (),
    )
    params = jax.jit(agent.init)(jax.random.key(1))
    given = {"exploration": jnp.full(columns, 0.5), "state": jnp.zeros(columns)}
    act = jax.jit(functools.partial(calls.act, agent, params, **given))
    rows, carry = [], agent.init_carry(columns)
    for t in range(length):
        one = jax.tree.map(lambda x, t=t: x[t], timestep)
        output = act(carry=carry, timestep=one, key=jax.random.key(t))
        carry = output.carry
        rows.append(types.Step(one, output.action, output.extras, jnp.zeros(columns, jnp.int32)))
    steps = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    return types.Unroll(steps, agent.init_carry(columns))


def _sample(case, seed=0, columns=B):
    module, settings, spec, network = CASES[case]
    agent = module.make(settings, spec, network, *((_thought_step,) if module is alphazero else ()))
    length = agent.taught + agent.lookahead + agent.context if agent.taught else T + 1
    weights = jnp.asarray(np.random.default_rng(seed).uniform(0.5, 1.0, columns), jnp.float32)
    weights = weights if agent.taught else jnp.ones(columns)
    return agent, types.Sample(_unroll(agent, spec, length, columns, seed), (), weights)


def _thought_step(state, action):
    """The model of an agent that needs one; its rows are not those that are learned from."""
    return state, types.TimeStep(jnp.int8(types.MID), jnp.float32(action), jnp.ones(()), jnp.zeros(D), ())


def _update_on(agent, settings, sample, num_devices, start=None):
    update, arguments = _updates_of(agent, settings, sample, num_devices, start)
    return update(*arguments)


def _updates_of(agent, settings, sample, num_devices, start=None):
    """Returns a program of two updates, and its arguments."""
    start = agent.init(jax.random.key(0)) if start is None else start
    mesh = meshes.make(jax.devices()[:num_devices], 1)
    rules = learner.make(settings, agent, meshes.AXIS)

    def update(sequences, weights):
        state = rules.init(start)
        sample = types.Sample(jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), sequences.steps), (), weights)
        sample = sample._replace(sequences=types.Unroll(sample.sequences, sequences.carry))
        for i in range(2):
            state, _, metrics = rules.update(state, sample, jax.random.key(i), jnp.float32(0.0))
        return state, metrics

    steps = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0)[None], sample.sequences.steps)
    sequences = types.Unroll(steps, jax.tree.map(lambda x: x[None], sample.sequences.carry))
    kinds = (meshes.COLUMNS, meshes.COLUMNS)
    mapped = meshes.device_map(update, mesh, kinds, (meshes.PER_SEED, meshes.PER_SEED))
    return jax.jit(mapped), (sequences, sample.weights[None])


def _reductions():
    """Every agent on two devices; one of them also on eight, and with sums."""
    # CrossQ's critics are normalised by a device's own rows. Rounding decides what a search finds among equals, and
    # which category Dreamer imagines: columns in another order move it as far.
    apart = ("crossq", "muzero-reanalysed", "dreamer", "dreamer-continuous")
    yield from ((case, 2, "mean") for case in CASES if case not in apart)
    yield from (("ppo", 8, "mean"), ("ppo", 2, "sum"))


# The squashed policy's entropy, IQN's levels, MPO's actions and MuZero's behind an end are draws, which each device
# makes for its own rows.
DRAWN = ("ppo-tanh", "iqn", "mpo", "muzero")


def _draw_the_same(patched: pytest.MonkeyPatch) -> None:
    """Lets every draw be one number for all rows."""

    def constant(value: float) -> Any:
        return lambda key, shape=(), dtype=jnp.float32, **_: jnp.full(shape, value, dtype)

    for name, value in {"uniform": 0.3, "normal": 0.7}.items():
        patched.setattr(jax.random, name, constant(value))
    patched.setattr(jax.random, "randint", lambda key, shape, low, high, **_: jnp.full(shape, low + 1))


@pytest.mark.parametrize(("case", "num_devices", "reduction"), marks.some(_reductions(), fast={"ppo-2-mean"}))
def test_one_update_on_n_devices_is_one_update_on_the_whole_batch(case, num_devices, reduction, monkeypatch):
    agent, sample = _sample(case)
    start = agent.init(jax.random.key(0))
    if case in DRAWN:
        _draw_the_same(monkeypatch)
    settings = learner.Config(**{**vars(SGD), "reduction": reduction, "epochs": 2 if agent.taught == 0 else 1})
    (one, one_metrics), (many, many_metrics) = (_update_on(agent, settings, sample, n, start) for n in (1, num_devices))
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.abs(a[0] - b).max(), one.params, start))
    assert max(map(float, moved)) > 1e-3
    # A mean of rewards that is 0 but for rounding is far off in relation.
    for a, b in zip(*(jax.tree.leaves(conftest.without_rounding(state)) for state in (one, many)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=5e-6)
    for name in one_metrics:
        np.testing.assert_allclose(one_metrics[name], many_metrics[name], rtol=2e-3, atol=1e-5, err_msg=name)


def _collectives(jaxpr, loops=0):
    """Yields how many loops lie around each collective of a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith(("psum", "pmax")):
            yield loops
        inner = loops + (equation.primitive.name in ("scan", "while"))
        for part in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield from _collectives(part, inner)


@pytest.mark.parametrize("case", ["ppo", "ppo-lstm"])
def test_a_gradient_step_has_one_collective_and_the_advantages_of_an_epoch_two(case):
    agent, sample = _sample(case)
    settings = learner.Config(**{**vars(SGD), "epochs": 2, "minibatches": 4, "shuffle": True})
    update, arguments = _updates_of(agent, settings, sample, 2)
    found = list(_collectives(jax.make_jaxpr(update)(*arguments).jaxpr))
    epoch, minibatch = 1, 2
    # Of two updates.
    assert (found.count(epoch), found.count(minibatch)) == (4, 2)


@pytest.mark.parametrize(("num_devices", "epochs", "minibatches"), [(1, 1, 1), (2, 1, 1), (2, 2, 4)])
def test_adapt_gets_the_mean_of_aux_over_devices_and_gradient_steps(num_devices, epochs, minibatches):
    agent, sample = _sample("pqn")

    def loss(params, inputs):
        output = agent.loss(params, inputs)
        return output._replace(aux={"taught": output.valid.sum(), "of one": jnp.ones(3)})

    def adapt(params, sequences, metrics, aux, axis):
        return params._replace(statistics=jax.tree.map(jnp.add, params.statistics, aux))

    def init(key):
        return agent.init(key)._replace(statistics={"taught": jnp.zeros(()), "of one": jnp.zeros(3)})

    watched = agent._replace(init=init, loss=loss, adapt=adapt)
    settings = dataclasses.replace(SGD, epochs=epochs, minibatches=minibatches)
    found = _update_on(watched, settings, sample, num_devices)[0].params.statistics
    # Two updates.
    taught = 2 * np.asarray(agents.taught_rows(sample.sequences.steps.timestep.step_type[:-1])).sum()
    np.testing.assert_allclose(found["taught"][0], taught / (num_devices * minibatches), rtol=1e-6)
    np.testing.assert_allclose(found["of one"][0], 2.0, rtol=1e-6)


def test_adapt_gets_the_new_rows_where_a_sample_says_which_these_are():
    agent, sample = _sample("pqn")
    watched = agent._replace(adapt=lambda params, sequences, *_: params._replace(statistics=sequences))
    rules = learner.make(SGD, watched, types.LOCAL)
    fresh = jax.tree.map(lambda x: x[:, :1], sample.sequences)
    for given, wanted in ((sample, sample.sequences), (sample._replace(fresh=fresh), fresh)):
        state = rules.init(agent.init(jax.random.key(0)))
        found = rules.update(state, given, jax.random.key(1), jnp.float32(0))[0].params.statistics
        jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_every_epoch_and_minibatch_has_an_order_and_a_key_of_its_own():
    agent, sample = _sample("pqn")
    seen = []

    def loss(params, inputs):
        # Known by what is played: targets are computed anew where they are used, and may round otherwise there.
        items = [x.reshape(len(x), -1).astype(jnp.float32).sum(-1) for x in jax.tree.leaves(inputs.batch.inputs)]
        jax.debug.callback(lambda *x: seen.append([np.asarray(y).tolist() for y in x]), sum(items), inputs.key)
        return agent.loss(params, inputs)

    settings = dataclasses.replace(SGD, epochs=3, minibatches=2, shuffle=True, learning_rate=0.0)
    jax.block_until_ready(_update_on(agent._replace(loss=loss), settings, sample, 1))
    jax.effects_barrier()
    orders, keys = zip(*seen, strict=True)
    # Two updates of three epochs, each of which has every item once.
    assert len(orders) == 2 * 3 * 2 == len(set(map(tuple, orders))) == len(set(map(str, keys)))
    counts = collections.Counter(item for order in orders for item in order)
    assert len(counts) == len(orders[0]) * 2 and set(counts.values()) == {2 * 3}


def test_what_prepares_a_batch_has_a_key_that_no_loss_or_epoch_has():
    module, *given = CASES["pqn"]
    agent = module.make(*given)._replace(prepare=lambda params, inputs: inputs.key)
    key = jax.random.key(3)
    inputs = types.LossInputs((), (), key, jnp.float32(0), types.LOCAL)
    found = jax.random.key_data(learner.make(SGD, agent, types.LOCAL).prepare((), inputs))
    for others in (key[None], *(jax.random.split(key, count) for count in (1, 2, 64))):
        assert not (jax.random.key_data(others) == found).all(-1).any()


def test_gather_joins_items_in_the_order_of_devices():
    mesh = meshes.make(jax.devices()[:2], 1)

    def local(rows):
        return meshes.AXIS.gather({"x": rows})["x"][None]

    mapped = meshes.device_map(local, mesh, (meshes.COLUMNS,), meshes.COLUMNS)
    rows = jnp.arange(12.0).reshape(1, 6, 2)
    found = jax.jit(mapped)(rows)
    assert found.shape == (1, 2, 6, 2)
    for device in range(2):
        np.testing.assert_array_equal(found[0, device], rows[0])
    np.testing.assert_array_equal(types.LOCAL.gather(rows), rows)


def _poisoned(unroll: types.Unroll, taught_row: int | None, arrives: bool) -> types.Unroll:
    """Replaces everything that must teach nothing by finite garbage.

    What leaves a LAST row: its action and log-probability, what was seen at a termination, the reward and discount of
    the FIRST row after it. With `taught_row`, whole windows whose taught row is LAST. With `arrives` the agent learns
    from what it arrives at, so that the last observation teaches.
    """
    step_type = unroll.steps.timestep.step_type
    last, first = step_type == types.LAST, step_type == types.FIRST
    first = first & (jnp.arange(len(step_type))[:, None] > 0)

    def garbage(x, where, value):
        where = where.reshape(*where.shape, *(1,) * (x.ndim - 2))
        return jnp.where(where, jnp.asarray(value, x.dtype), x)

    steps, timestep = unroll.steps, unroll.steps.timestep
    if taught_row is not None:
        last = jnp.broadcast_to(last[taught_row], last.shape)
        first = last
    # A truncated episode bootstraps from its last observation, a terminated one from nothing.
    unseen = last & (timestep.discount == 0) & (not arrives) if taught_row is None else last
    timestep = timestep._replace(
        reward=garbage(timestep.reward, first, 1e3),
        discount=garbage(timestep.discount, first, 0.5),
        observation=garbage(timestep.observation, unseen, -77.0),
    )
    extras = steps.extras
    if extras:
        extras = jax.tree.map(lambda x: garbage(x, last, -3.0), extras)
    return unroll._replace(
        steps=steps._replace(timestep=timestep, action=garbage(steps.action, last, 1), extras=extras)
    )


@pytest.mark.parametrize("case", marks.some(CASES.keys(), fast={"ppo-gaussian", "dqn"}))
def test_poisoned_rows_change_no_bit_of_parameters_or_metrics(case):
    agent, sample = _sample(case, seed=3)
    step_type = np.asarray(sample.sequences.steps.timestep.step_type)
    taught_row = agent.context if agent.taught == 1 else None
    arrives = case.startswith(("rnd", "dreamer"))
    poison = sample._replace(sequences=_poisoned(sample.sequences, taught_row, arrives))
    assert (step_type[:-1] == types.LAST).any()
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), sample.sequences.steps, poison.sequences.steps)
    assert sum(jax.tree.leaves(changed)) >= 3
    clean, dirty = (_update_on(agent, SGD, s, 1) for s in (sample, poison))
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_minibatch_without_taught_rows_moves_nothing_and_counts_in_no_mean():
    """Of sequences that stand in for late ones every row is LAST; here one fills a minibatch."""
    agent, sample = _sample("ppo-lstm")
    timestep = sample.sequences.steps.timestep
    blank = timestep._replace(step_type=timestep.step_type.at[:, -1].set(types.LAST))
    sequences = sample.sequences._replace(steps=sample.sequences.steps._replace(timestep=blank))
    rule = learner.Config(learning_rate=1e-3, anneal=False, shuffle=False)
    params, found = [], []
    for count in (B, B - 1):
        part = jax.tree.map(lambda x, count=count: x[:, :count], sequences.steps)
        given = types.Unroll(part, jax.tree.map(lambda x, count=count: x[:count], sequences.carry))
        rules = learner.make(dataclasses.replace(rule, minibatches=count), agent, types.LOCAL)
        start = rules.init(agent.init(jax.random.key(0)))
        whole = types.Sample(given, (), jnp.ones(count))
        state, _, metrics = jax.jit(rules.update)(start, whole, jax.random.key(0), jnp.float32(0))
        params.append(state.params)
        found.append(metrics)
    for x, y in zip(*map(jax.tree.leaves, params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    for name, value in found[0].items():
        np.testing.assert_allclose(value, found[1][name], rtol=1e-5, err_msg=name)


def test_ppo_ratio_is_one_on_the_first_minibatch():
    agent, sample = _sample("ppo")
    params = agent.init(jax.random.key(1))
    batch = calls.prepare(agent, params, sample.sequences)
    output = calls.loss(agent, params, (), batch, jax.random.key(0))
    assert float(jnp.abs(output.metrics["ratio_deviation"]).max()) < 1e-5
    assert int(output.valid.sum()) == int((sample.sequences.steps.timestep.step_type[:-1] != types.LAST).sum())


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_largest_ratio_is_that_of_one_row_of_one_minibatch(num_devices):
    agent, sample = _sample("ppo")
    still = learner.Config(**{**vars(SGD), "learning_rate": 1e-12, "epochs": 2, "minibatches": 4})
    taught = np.argwhere(np.asarray(sample.sequences.steps.timestep.step_type[:-1]) != types.LAST)
    row, column = taught[len(taught) // 2]
    log_prob = sample.sequences.steps.extras.log_prob
    extras = sample.sequences.steps.extras._replace(log_prob=log_prob.at[row, column].add(-np.log(7)))
    changed = sample._replace(sequences=sample.sequences._replace(steps=sample.sequences.steps._replace(extras=extras)))
    before, after = (_update_on(agent, still, s, num_devices)[1]["largest_ratio"] for s in (sample, changed))
    # The policy that acted and the one that is taught were drawn apart, so that no ratio is quite one.
    np.testing.assert_allclose(before, 1, rtol=0.03)
    np.testing.assert_allclose(after, 7, rtol=0.03)


@pytest.mark.parametrize("case", marks.some(["ppo", "ppo-gaussian", "ppo-tanh"], slow={"ppo-gaussian"}))
def test_a_ratio_beyond_f32_leaves_the_gradient_finite(case):
    """Deviations shrink to 1e-3, so that one update can move a probability by more than f32 holds."""
    agent, sample = _sample(case)
    params = agent.init(jax.random.key(1))
    batch = calls.prepare(agent, params, sample.sequences)
    batch = batch._replace(log_prob=jnp.full_like(batch.log_prob, -1e4))

    def loss(network):
        return calls.loss(agent, params._replace(network=network), (), batch, jax.random.key(0)).loss.sum()

    value, gradient = jax.value_and_grad(loss)(params.network)
    assert jnp.isfinite(value)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 0


@pytest.mark.parametrize("progress,rate", [(0.0, 0.1), (0.25, 0.075), (1.0, 0.0)])
def test_the_step_size_follows_progress(progress, rate):
    annealed = learner.Config(learning_rate=0.1, anneal=True)
    constant = learner.Config(learning_rate=0.1, anneal=False)
    assert float(learner.learning_rate(annealed, jnp.float32(progress))) == pytest.approx(rate, abs=1e-8)
    assert float(learner.learning_rate(constant, jnp.float32(progress))) == pytest.approx(0.1)


@pytest.mark.parametrize("anneal", [True, False])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("end", [0.0, 0.2])
@pytest.mark.parametrize("warmup", [0.0, 0.25])
def test_a_schedule_is_its_formula(anneal, schedule, end, warmup):
    settings = {"schedule": schedule, "final_share": end} if anneal else {}
    config = learner.Config(learning_rate=0.1, anneal=anneal, warmup=warmup, **settings)
    for progress in (0.0, 0.1, 0.25, 0.26, 0.5, 0.9, 1.0):
        expected = oracle.rate(0.1, progress, anneal, schedule, end, warmup)
        assert float(learner.learning_rate(config, jnp.float32(progress))) == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize("name,value", [("schedule", "cosine"), ("final_share", 0.1)])
def test_a_form_without_a_fall_is_refused(name, value):
    agent, _ = _sample("dqn")
    with conftest.refused(f"--learner.{name}={value}: ", "--learner.anneal=true"):
        learner.make(learner.Config(anneal=False, **{name: value}), agent, types.LOCAL)


@pytest.mark.parametrize(
    "name,oracle",
    [
        ("adam", lambda: optax.adam(0.1, b1=0.9, b2=0.999, eps=1e-5)),
        ("radam", lambda: optax.radam(0.1, b1=0.9, b2=0.999, eps=1e-5)),
        ("rmsprop", lambda: optax.rmsprop(0.1, decay=0.999, eps=1e-5, eps_in_sqrt=True)),
        ("rmsprop_centred", lambda: optax.rmsprop(0.1, decay=0.999, eps=1e-5, centered=True)),
        ("adagrad", lambda: optax.adagrad(0.1, initial_accumulator_value=0.0, eps=1e-5)),
        ("sgd", lambda: optax.sgd(0.1)),
    ],
)
def test_the_optimisers_are_optax_s(name, oracle):
    agent, _ = _sample("dqn")
    rules = learner.make(
        learner.Config(optimizer=name, learning_rate=0.1, anneal=False, max_grad_norm=0.0), agent, types.LOCAL
    )
    params = agent.init(jax.random.key(0))
    state, reference = rules.init(params), params.network
    other = oracle()
    other_state = other.init(reference)
    rng = np.random.default_rng(0)
    # RAdam's steps are those of adam after the fifth only.
    for _ in range(8):
        grads = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), reference)
        gradient = types.Gradient(jax.tree.map(lambda g: 5 * g, grads), jnp.float32(0), jnp.float32(5), {}, {}, ())
        state, _ = rules.apply(state, gradient, jnp.float32(0))
        updates, other_state = other.update(grads, other_state, reference)
        reference = optax.apply_updates(reference, updates)
    for a, b in zip(jax.tree.leaves(state.params.network), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


RULES = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "below the clip": {"max_grad_norm": 1e3},
    "no clip": {"max_grad_norm": 0.0},
    "clip of each array": {"max_grad_norm": 0.0, "max_grad_ratio": 0.1},
    "both clips": {"max_grad_ratio": 0.1},
    "annealed": {"anneal": True},
    "target": {"target_period": 2, "target_rate": 0.25},
}


@pytest.mark.parametrize("name", RULES)
def test_two_steps_are_those_of_the_rule_written_out(name):
    """SGD from a gradient of 5 rows at half of training; the global norm is measured before it is clipped."""
    agent, _ = _sample("dqn")
    rule = dataclasses.replace(SGD, learning_rate=0.1, **RULES[name])
    rules = learner.make(rule, agent, types.LOCAL)
    state = rules.init(agent.init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    params = [np.asarray(x, np.float64) for x in jax.tree.leaves(state.params.network)]
    target = params
    for update in (1, 2):
        sums = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), state.params.network)
        gradient = types.Gradient(sums, jnp.float32(0), jnp.float32(5), {"x": jnp.float32(10)}, {}, ())
        state, metrics = rules.apply(state, gradient, jnp.float32(0.5))
        state = rules.advance(state)
        mean = [x / (1 if rule.reduction == "sum" else 5) for x in jax.tree.leaves(sums)]
        clipped = oracle.clipped_by_ratio(oracle.clipped(mean, rule.max_grad_norm), params, rule.max_grad_ratio)
        params = oracle.moved(params, clipped, oracle.rate(0.1, 0.5, rule.anneal))
        target = oracle.target(target, params, update, rule.target_period, rule.target_rate)
        norm = np.sqrt(sum(np.square(x).sum() for x in mean))
        assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-5) and float(metrics["x"]) == 2
        for ours, theirs in ((state.params.network, params), (state.target_network, target)):
            for x, y in zip(jax.tree.leaves(ours), theirs, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_the_target_network_moves_its_share_of_the_way():
    agent, sample = _sample("dqn")
    rules = learner.make(dataclasses.replace(SGD, target_period=1, target_rate=0.25), agent, types.LOCAL)
    state = rules.init(agent.init(jax.random.key(0)))
    # Away from the parameters, so that the copy moves by more than rounding.
    first = jax.tree.map(lambda x: x + 1.0, state.target_network)
    state, _, _ = rules.update(state._replace(target_network=first), sample, jax.random.key(0), jnp.float32(0))
    for old, new, now in zip(*map(jax.tree.leaves, (first, state.params.network, state.target_network)), strict=True):
        np.testing.assert_allclose(now, 0.75 * np.asarray(old) + 0.25 * np.asarray(new), rtol=1e-6, atol=1e-7)


def test_the_target_network_is_copied_every_period_and_not_between():
    agent, sample = _sample("dqn")
    rules = learner.make(learner.Config(**{**vars(SGD), "target_period": 2}), agent, types.LOCAL)
    state = rules.init(agent.init(jax.random.key(0)))
    first = state.target_network
    state, _, _ = rules.update(state, sample, jax.random.key(0), jnp.float32(0))
    jax.tree.map(np.testing.assert_array_equal, state.target_network, first)
    state, _, _ = rules.update(state, sample, jax.random.key(0), jnp.float32(0))
    jax.tree.map(np.testing.assert_array_equal, state.target_network, state.params.network)


def test_batches_that_do_not_divide_name_the_nearest_valid_numbers():
    with conftest.refused("--learner.minibatches=5", ": 2, 4, 8"):
        learner.check_batch(learner.Config(minibatches=5), 512, 2)
    learner.check_batch(learner.Config(minibatches=4), 512, 2)
    with conftest.refused("--learner.minibatches=9", ": 2, 4, 8"):
        learner.check_batch(learner.Config(minibatches=9), 8, 1)
    with conftest.refused("--learner.minibatches=4", ": 1, 2"):
        learner.check_batch(learner.Config(minibatches=4), 8, 4)


@pytest.mark.parametrize("norm", [learner._norm, learner._norm_of_one])
def test_the_norm_is_that_of_all_leaves(norm):
    tree = {"a": jnp.array([[3.0, -4.0]]), "b": [jnp.float32(12.0), jnp.zeros((0, 2))]}
    np.testing.assert_allclose(norm(tree), 13.0, rtol=1e-6)


@pytest.mark.parametrize(("limit", "share"), [(10.0, 10 / 13), (14.0, 1.0), (0.0, 1.0)])
def test_a_gradient_beyond_the_norm_is_cut_to_it(limit, share):
    grads = {"a": jnp.array([[3.0, -4.0]]), "b": jnp.float32(12.0)}
    config = learner.Config(optimizer="sgd", max_grad_norm=limit)
    rule = optimizers.make("sgd", 0.0, 0.0, 0.0)
    static = learner._Static(config, None, types.LOCAL, rule)
    zeros = jax.tree.map(jnp.zeros_like, grads)
    moved, _ = learner._moved(static, grads, rule.init(zeros), zeros, jnp.float32(1.0))
    np.testing.assert_allclose(moved["a"], [[-3.0 * share, 4.0 * share]], rtol=1e-6)
    np.testing.assert_allclose(moved["b"], -12.0 * share, rtol=1e-6)


def test_each_part_of_a_network_is_cut_by_its_own_norm():
    grads = {"small": jnp.array([3.0, -4.0]), "large": jnp.array([30.0, 40.0])}
    rule, zeros = optimizers.make("sgd", 0.0, 0.0, 0.0), jax.tree.map(jnp.zeros_like, grads)
    static = learner._Static(learner.Config(max_grad_norm=5.0), None, types.LOCAL, rule)
    opt_state = {name: rule.init(zeros[name]) for name in grads}
    state = learner.LearnerState(types.Params(zeros, ()), (), opt_state, jnp.int32(0))
    rate = jnp.float32(1.0)
    moved = {name: learner._part_moved(static, types.Part(), name, grads, state, rate)[0] for name in grads}
    np.testing.assert_allclose(moved["small"], [-3.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(moved["large"], [-3.0, -4.0], rtol=1e-6)


def test_columns_that_are_one_item_have_one_weight():
    """Two environments of three agents each: two rows of them are four items, whole sequences two."""
    sample = types.Sample(types.Unroll((), ()), indices=(), weights=jnp.array([2.0, 2.0, 2.0, 0.5, 0.5, 0.5]))
    for num_items, wanted in ((4, [2.0, 0.5, 2.0, 0.5]), (2, [2.0, 0.5])):
        found = learner.item_weights(sample, jnp.zeros((num_items, 3)), columns_per_item=3)
        np.testing.assert_array_equal(found, wanted)
