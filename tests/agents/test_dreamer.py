"""DreamerV3: losses and gradients against loops in float64, returns' spread, resets, what crosses between the parts."""

import contextlib
import dataclasses
import functools
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from oracles import call, differences
from oracles import dreamer as oracle

from jaxrl_dist import errors, networks, types
from jaxrl_dist.agents import dreamer
from jaxrl_dist.networks import world_model
from jaxrl_dist.numeric import distributions

L, N, D, A = 4, 3, 3, 3
CONFIG = dreamer.Config(
    discount=0.9,
    trace_decay=0.7,
    length=L,
    horizon=3,
    entropy_cost=0.2,
    unimix=0.1,
    free_nats=0.05,
    dynamics_scale=0.6,
    representation_scale=0.3,
    replay_value_scale=0.4,
    slow_scale=0.5,
    units=3,
    layers=1,
    recurrent_units=4,
    blocks=2,
    latents=2,
    classes=3,
    num_bins=7,
)
LOW, HIGH = np.array([-1.0, -2.0]), np.array([1.0, 6.0])
SPACES = {"discrete": types.DiscreteSpace(A), "bounded": types.BoxSpace((2,), LOW, HIGH)}


def _spec(kind: str) -> types.EnvironmentSpec:
    return types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((D,), jnp.float32), SPACES[kind], "classic")


def _made(kind: str, **changes: Any) -> Any:
    return dreamer.make(dataclasses.replace(CONFIG, **changes), _spec(kind), networks.Config())


def _settings(kind: str, **changes: Any) -> dict[str, Any]:
    discrete = kind == "discrete"
    return {**vars(CONFIG), **changes, "num_actions": A if discrete else 0, "low": LOW, "high": HIGH}


def _rows(kind: str) -> dict[str, Any]:
    """Column 0 ends by itself at row 1, column 1 is cut there, column 2 opens at row 0 and loses a life at row 2."""
    rng = np.random.default_rng(3)
    step_type = np.full((L, N), types.MID)
    step_type[1, :2], step_type[2, :2], step_type[0, 2] = types.LAST, types.FIRST, types.FIRST
    discount = np.ones((L, N))
    discount[1, 0] = discount[2, 2] = 0.0
    size = (L + 1, N) if kind == "discrete" else (L + 1, N, 2)
    action = rng.integers(0, A, size) if kind == "discrete" else LOW + (HIGH - LOW) * rng.random(size)
    floats = {
        "reward": 3 * rng.normal(size=(L, N)),
        "observation": 2 * rng.normal(size=(L, N, D)),
        "h": rng.normal(size=(N, 4)),
        "z": np.eye(3)[rng.integers(0, 3, (N, 2))].reshape(N, 6),
    }
    floats["reward"][step_type == types.FIRST] = 0.0
    short = {name: x.astype(np.float32).astype(np.float64) for name, x in floats.items()}
    if kind == "bounded":
        action = action.astype(np.float32).astype(np.float64)
    return {**short, "step_type": step_type, "discount": discount, "action": action[1:], "last_action": action[0]}


def _unroll(rows: dict[str, Any]) -> types.Unroll:
    names = ("reward", "discount", "observation")
    timestep = types.TimeStep(
        jnp.asarray(rows["step_type"], jnp.int8), *(jnp.asarray(rows[name]) for name in names), ()
    )
    steps = types.Step(timestep, jnp.asarray(rows["action"]), (), jnp.zeros((L, N), jnp.int32))
    state = world_model.State(jnp.asarray(rows["h"]), jnp.asarray(rows["z"]))
    return types.Unroll(steps, dreamer.Carry(state, jnp.asarray(rows["last_action"])))


def _params(agent: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(agent.init, jax.random.key(0)).network

    def drawn(shape: Any) -> np.ndarray:
        return rng.normal(size=shape.shape, scale=0.7).astype(np.float32).astype(np.float64)

    found = jax.tree.map(drawn, shapes)
    # Means of a few units, of bins that reach 5e8.
    for head in (found["critic"], found["world"]["reward_net"]):
        head["Dense_0"]["bias"] -= 1.2 * np.log1p(np.abs(oracle.bins(CONFIG.num_bins)))
    return found


@contextlib.contextmanager
def _without_chance() -> Any:
    """Takes the likeliest class, and real actions from above the mean, in float64."""
    with pytest.MonkeyPatch.context() as patch, call.wide():
        patch.setattr(distributions.Categorical, "sample", lambda self, key: jnp.argmax(self.logits, -1))
        shifted = lambda self, key: self.mean + oracle.SHIFT * jnp.exp(self.log_std)  # noqa: E731
        patch.setattr(distributions.Gaussian, "sample", shifted)
        yield


@pytest.mark.parametrize(
    ("kind", "changes", "spread"),
    [
        ("discrete", {}, 0.5),
        pytest.param("discrete", {"free_nats": 0.6, "blocks": 1}, 4.0, marks=pytest.mark.slow),
        pytest.param("bounded", {}, 2.5, marks=pytest.mark.slow),
    ],
)
def test_losses_and_gradients_of_all_parts_are_those_of_the_paper(
    kind: str, changes: dict[str, Any], spread: float
) -> None:
    agent, s, rows = _made(kind, **changes), _settings(kind, **changes), _rows(kind)
    now, slow = _params(agent, 1), _params(agent, 2)["critic"]

    def objective(network: Any) -> Any:
        params = types.Params(network, dreamer.Statistics(jnp.asarray(spread)))
        inputs = types.LossInputs(_unroll(rows), slow, jax.random.key(0), jnp.float32(0), types.LOCAL)
        output = agent.loss(params, inputs._replace(batch=agent.prepare(params, inputs)))
        return (jnp.arange(1.0, N + 1) * output.loss).sum(), output

    with _without_chance():
        (_, output), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(now)
    fixed = [oracle.observed(now["world"], rows, b, s) for b in range(N)]
    dreams = [
        [
            oracle.dreamt(now, slow, row, float(first or rows["discount"][t, b]), s)
            for t, row in enumerate(fixed[b])
            for first in [rows["step_type"][t, b] == types.FIRST]
        ]
        for b in range(N)
    ]

    def terms(params: Any, b: int) -> dict[str, float]:
        behaviour = oracle.behaviour_terms(params, dreams[b], rows, b, s, spread)
        return {**oracle.model_terms(params["world"], fixed[b], rows, b, s), **behaviour}

    weights = oracle.weights(s)
    wanted = [terms(now, b) for b in range(N)]
    for name in wanted[0]:
        np.testing.assert_allclose(output.metrics[name], [one[name] for one in wanted], rtol=1e-5, err_msg=name)
    losses = [sum(weight * one[name] for name, weight in weights.items()) for one in wanted]
    np.testing.assert_allclose(output.loss, losses, rtol=1e-5)
    np.testing.assert_array_equal(output.valid, [L] * N)
    targets = [x for column in dreams for dream in column for x in dream.targets]
    np.testing.assert_allclose(output.aux, np.diff(np.percentile(targets, [5, 95]))[0], rtol=1e-6)

    assert max(abs(x) for x in targets) < 50

    def of_part(part: str, own: Any) -> float:
        params, total = {**now, part: own}, 0.0
        for b in range(N):
            if part == "world":
                found = oracle.model_terms(own, fixed[b], rows, b, s)
            else:
                found = oracle.behaviour_terms(params, dreams[b], rows, b, s, spread)
            total += (b + 1) * sum(weights.get(name, 0.0) * x for name, x in found.items())
        return total

    for part in now:
        expected = differences.gradient(functools.partial(of_part, part), now[part])
        differences.assert_same(gradient[part], expected, rtol=1e-4, atol=1e-6, name=part)
    assert min(np.abs(x).max() for x in jax.tree.leaves(gradient)) > 1e-4


@pytest.mark.parametrize("kind", ["discrete", pytest.param("bounded", marks=pytest.mark.slow)])
def test_no_draw_of_a_loss_has_the_key_of_another(kind: str) -> None:
    agent, unroll = _made(kind), jax.tree.map(jnp.asarray, _unroll(_rows(kind)))
    unroll = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, unroll)
    params = agent.init(jax.random.key(0))

    def loss(params: types.Params, key: Any) -> Any:
        inputs = types.LossInputs(unroll, params.network["critic"], key, jnp.float32(0), types.LOCAL)
        return agent.loss(params, inputs._replace(batch=agent.prepare(params, inputs))).loss

    with jax.debug_key_reuse(True):
        found = jax.jit(loss)(params, jax.random.key(1))
    assert found.shape == (N,) and np.isfinite(found).all()
    assert not np.array_equal(found, jax.jit(loss)(params, jax.random.key(2)))


def _acted(agent: Any, params: types.Params, rows: dict[str, Any]) -> list[Any]:
    """Acts on the rows one by one, but takes their actions for those that were chosen; returns the states."""
    unroll = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, _unroll(rows))
    carry, states = unroll.carry, []
    for t in range(L):
        timestep, action = jax.tree.map(lambda x, t=t: x[t], (unroll.steps.timestep, unroll.steps.action))
        carry = calls.act(agent, params, carry, timestep, jax.random.key(t)).carry
        states.append(carry.state)
        carry = carry._replace(action=action)
    return states


@pytest.mark.parametrize("kind", SPACES)
def test_states_of_a_window_are_those_that_acting_had(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the actor's stored state, through the ends of episodes: nothing before a FIRST row reaches it."""
    monkeypatch.setattr(distributions.Categorical, "sample", lambda self, key: jnp.argmax(self.logits, -1))
    agent, rows = _made(kind), _rows(kind)
    params = types.Params(jax.tree.map(jnp.float32, _params(agent, 1)), dreamer.Statistics(jnp.zeros(())))
    found = _acted(agent, params, rows)
    wanted = [oracle.observed(_params(agent, 1)["world"], rows, b, _settings(kind)) for b in range(N)]
    for t in range(L):
        np.testing.assert_allclose(found[t].recurrent, [column[t].h for column in wanted], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[t].latent, [column[t].z for column in wanted], atol=1e-5)
    other = {**rows, "h": rows["h"] + 1, "last_action": rows["last_action"][::-1]}
    changed = _acted(agent, params, other)
    assert not np.allclose(changed[0].recurrent[0], found[0].recurrent[0])
    np.testing.assert_array_equal(changed[0].recurrent[2], found[0].recurrent[2])
    np.testing.assert_array_equal(changed[2].recurrent[:2], found[2].recurrent[:2])


def test_the_reward_and_the_discount_of_a_reset_are_not_learned() -> None:
    agent, unroll = _made("discrete"), _unroll(_rows("discrete"))
    params = types.Params(jax.tree.map(jnp.float32, _params(agent, 1)), dreamer.Statistics(jnp.zeros(())))
    timestep = unroll.steps.timestep
    first = timestep.step_type == types.FIRST
    reward, discount = jnp.where(first, 1e3, timestep.reward), jnp.where(first, 0.5, timestep.discount)
    garbage = timestep._replace(reward=reward, discount=discount)
    found = calls.prepare(agent, params, unroll._replace(steps=unroll.steps._replace(timestep=garbage)))
    assert first.any()
    np.testing.assert_array_equal(found.reward.T, jnp.where(first, 0.0, timestep.reward))
    np.testing.assert_array_equal(found.discount.T, jnp.where(first, 1.0, timestep.discount))


@pytest.mark.parametrize("kind", ["discrete", pytest.param("bounded", marks=pytest.mark.slow)])
def test_no_part_has_a_gradient_of_another_s_loss(kind: str) -> None:
    agent, rows = _made(kind), _rows(kind)
    unroll = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, _unroll(rows))
    params = types.Params(jax.tree.map(jnp.float32, _params(agent, 1)), dreamer.Statistics(jnp.ones(())))
    batch = calls.prepare(agent, params, unroll)

    owners = {"policy_loss": "policy", "replay_value_loss": "critic", "reward_loss": "world"}

    def term(network: Any, name: str) -> Any:
        own = params._replace(network=network)
        return calls.loss(agent, own, network["critic"], batch, jax.random.key(0)).metrics[name].sum()

    @jax.jit
    def gradients(network: Any) -> Any:
        return {name: jax.grad(term)(network, name) for name in owners}

    for name, found in gradients(params.network).items():
        moved = {part for part, own in found.items() if any(np.asarray(x).any() for x in jax.tree.leaves(own))}
        assert moved == {owners[name]}, name


def test_advantages_are_divided_by_the_running_spread_of_returns_once_it_is_above_1() -> None:
    agent = _made("discrete", return_rate=0.25)
    params = types.Params({}, dreamer.Statistics(jnp.float32(2.0)))
    after = agent.adapt(params, (), {}, jnp.float32(6.0), types.LOCAL)
    assert float(after.statistics.spread) == 3.0


def test_the_policy_s_actions_lie_within_bounds_and_evaluation_takes_its_mode_or_a_draw() -> None:
    agent, count = _made("bounded"), 500
    params = agent.init(jax.random.key(0))
    rows = jnp.zeros(count)
    timestep = types.TimeStep(rows.astype(jnp.int8), rows, rows + 1, jnp.zeros((count, D)), ())
    carry = agent.init_carry(count)
    action = np.asarray(calls.act(agent, params, carry, timestep, jax.random.key(1)).action)
    assert (action >= LOW).all() and (action <= HIGH).all()
    # A new policy's mean is the middle, and its deviation .89 of half of the range.
    np.testing.assert_allclose(np.median(action, 0), (LOW + HIGH) / 2, atol=0.5)
    assert (action == HIGH).any() and (action == LOW).any()
    best = np.asarray(calls.evaluate(agent, params, carry, timestep, jax.random.key(1)).action)
    np.testing.assert_allclose(best, np.tile((LOW + HIGH) / 2, (count, 1)), atol=0.2)
    drawing = _made("bounded", evaluation_action="sample")
    drawn = np.asarray(calls.evaluate(drawing, params, carry, timestep, jax.random.key(1)).action)
    np.testing.assert_array_equal(drawn, action)


@pytest.mark.slow
def test_first_rewards_and_values_are_0() -> None:
    agent, rows = _made("discrete"), _rows("discrete")
    unroll = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, _unroll(rows))
    params = agent.init(jax.random.key(0))
    output = calls.loss(
        agent, params, params.network["critic"], calls.prepare(agent, params, unroll), jax.random.key(0)
    )
    assert not np.asarray(output.metrics["value"]).any()
    assert float(output.aux) == 0


@pytest.mark.slow
def test_images_categories_and_bytes_are_seen_and_predicted_as_such() -> None:
    observation = {
        "camera": jax.ShapeDtypeStruct((10, 9, 2), jnp.uint8),
        "goal": jax.ShapeDtypeStruct((2,), jnp.int32),
        "joints": jax.ShapeDtypeStruct((3,), jnp.float32),
        "lit": jax.ShapeDtypeStruct((), jnp.bool_),
    }
    spec = types.EnvironmentSpec("toy:x", observation, types.DiscreteSpace(A), "classic", categories={"goal": (4,)})
    leaves = world_model.leaves_of(spec)
    given = {
        "camera": jnp.full((5, 10, 9, 2), 51, jnp.uint8),
        "goal": jnp.tile(jnp.array([3, 1]), (5, 1)),
        "joints": jnp.full((5, 3), jnp.e - 1),
        "lit": jnp.ones(5, bool),
    }
    seen = world_model.as_seen(leaves, given)
    assert {name: x.shape for name, x in seen.items()} == {
        "camera": (5, 10, 9, 2),
        "goal": (5, 8),
        "joints": (5, 3),
        "lit": (5, 1),
    }
    np.testing.assert_allclose(seen["camera"], 0.2)
    np.testing.assert_array_equal(seen["goal"][0], [0, 0, 0, 1, 0, 1, 0, 0])
    np.testing.assert_allclose(seen["joints"], 1.0, rtol=1e-6)
    agent = dreamer.make(dataclasses.replace(CONFIG, channels=2), spec, networks.Config())
    params = agent.init(jax.random.key(0))
    sizes = world_model.Sizes(3, 1, 4, 2, 2, 3, channels=2, bins=7)
    world = world_model.WorldModel(sizes, leaves, A)
    state = world_model.State(jnp.ones((5, 2, 4)), jnp.ones((5, 2, 6)))
    decoded = world.apply({"params": params.network["world"]}, state, method="decode")
    assert {name: x.shape[2:] for name, x in decoded.items()} == {name: x.shape[1:] for name, x in seen.items()}
    assert world_model.stages((10, 9, 2)) == [(10, 9), (5, 5)]
    features = world.apply({"params": params.network["world"]}, seen, method="encode")
    assert features.shape == (5, 5 * 5 * 4 + 3)


def test_actions_and_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(errors.UnfitError) as caught:
        dreamer.make(CONFIG, _spec("discrete")._replace(action=types.MultiDiscreteSpace((2, 3))), networks.Config())
    assert caught.value.actions == "multi_discrete"
    with conftest.refused("--env=toy:x"):
        dreamer.make(CONFIG, _spec("discrete")._replace(mask="legal"), networks.Config())
    with conftest.refused("--agent.blocks=3", "--agent.recurrent_units=4", "1, 2, 4"):
        _made("discrete", blocks=3)
    with conftest.refused("--network.core=lstm", "--agent.units"):
        dreamer.make(CONFIG, _spec("discrete"), networks.Config(core="lstm"))
    with conftest.refused("--agent.num_bins=8", "9"):
        _made("discrete", num_bins=8)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["anakin", "sebulba"])
def test_a_run_cut_in_two_is_the_run_in_one_piece(layout: str, tmp_path: Any) -> None:
    def make() -> conftest.Small:
        return conftest.Small("dreamer", "toy:walk", 1, {"layout": layout})

    whole, second = make().run(4).run(3), make().run(4).handed_to(make(), tmp_path).run(3)
    assert float(whole.state.learner.params.statistics.spread[0]) > 0
    for x, y in zip(jax.tree.leaves(whole.state.learner), jax.tree.leaves(second.state.learner), strict=True):
        np.testing.assert_array_equal(x, y)
    for run in (whole, second):
        run.layout.close()


@pytest.mark.slow
def test_several_seeds_in_one_program_are_each_seed_alone() -> None:
    together = conftest.Small("dreamer", "toy:walk", 1, {"num_seeds": 2}).run(5)
    alone = conftest.Small("dreamer", "toy:walk", 1, {"seed": 1}).run(5)
    # Another program: the compiler may order sums otherwise.
    for x, y in zip(together.params, alone.params, strict=True):
        np.testing.assert_allclose(x[1], y[0], rtol=1e-3, atol=1e-4)


def test_weights_of_blocks_begin_as_small_as_those_of_one_layer_of_all_inputs() -> None:
    for blocks in (1, 8):
        layer = world_model.BlockDense(64 * blocks, blocks)
        kernel = layer.init(jax.random.key(0), jnp.zeros((1, blocks, 96)))["params"]["kernel"]
        assert kernel.shape == (blocks, 96, 64)
        np.testing.assert_allclose(kernel.std(), (96 * blocks) ** -0.5, rtol=0.05)


def test_parts_have_the_layers_of_the_released_code() -> None:
    """`imglayers` 2, `obslayers` 1, heads of one layer; the encoder's and the decoder's are `layers`."""
    agent = dreamer.make(dataclasses.replace(CONFIG, layers=3), _spec("discrete"), networks.Config())
    world = _params(agent, 1)["world"]
    layers = {name: sum(one.startswith("Layer_") for one in part) for name, part in world.items()}
    wanted = {"prior_net": 2, "posterior_net": 1, "reward_net": 1, "continue_net": 1, "encoder": 3, "decoder": 3}
    assert {name: layers[name] for name in wanted} == wanted


def test_each_row_and_each_imagined_step_draws_by_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # The draws themselves are what is looked at, whatever they are drawn by.
    monkeypatch.setattr(distributions, "straight_through", lambda logits, key: jax.random.normal(key, logits.shape))
    agent = _made("discrete")
    static, network = agent.loss.args[0], agent.init(jax.random.key(0)).network  # type: ignore[attr-defined]
    inputs = types.LossInputs(_unroll(_rows("discrete")), (), jax.random.key(1), jnp.float32(0), types.LOCAL)
    rows = dreamer._swapped(agent.prepare((), inputs))  # type: ignore[arg-type]
    observed = jax.jit(functools.partial(dreamer._observed, static))(network, rows, jax.random.key(2)).state
    start = jax.tree.map(lambda x: x[0], observed)
    imagined = jax.jit(functools.partial(dreamer._imagined, static))(network, start, jnp.ones(N), jax.random.key(3))
    for latent in (observed.latent, imagined.state.latent):
        assert latent.shape[0] == 4 and len(np.unique(np.round(latent, 5))) == latent.size
