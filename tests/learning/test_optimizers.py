"""Optimisers of optax by name: the numbers of optax, arguments that are literals, refusals before anything compiles."""

from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import jaxrl_dist
from jaxrl_dist import errors, types
from jaxrl_dist.learning import learner, optimizers
from jaxrl_dist.settings import fields

SHAPES = {"weights": (4, 3), "bias": (3,)}
NETWORK = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
FIELD = {field.name: field for field in fields.of(learner.Config)}["optimizer"]


def drawn(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def made(text: str) -> optimizers.Rule:
    return optimizers.make(text, 0.9, 0.999, 1e-8)


def test_lion_is_the_paper_s() -> None:
    """Chen et al. 2023, algorithm 2: the sign of an average, and a decay of weights, both times the step size."""
    rule = made("optax:lion(b1=.5,b2=0.75,weight_decay=1e-2)")
    params: Any = drawn(0)
    state, expected = rule.init(params), {name: np.asarray(x, np.float64) for name, x in params.items()}
    mean = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step, rate in enumerate((0.1, 0.05, 0.2)):
        grads = drawn(step + 1)
        params, state = rule.step(grads, state, params, jnp.float32(rate))
        for name, g in grads.items():
            direction = np.sign(0.5 * mean[name] + 0.5 * g) + 1e-2 * expected[name]
            expected[name] = expected[name] - rate * direction
            mean[name] = 0.75 * mean[name] + 0.25 * g
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), params, expected)


def test_laprop_is_the_paper_s() -> None:
    """Ziyin et al. 2020, algorithm 1: gradients over the root of their mean square, then averaged; without bias."""
    rule = optimizers.make("laprop", 0.8, 0.95, 1e-3)
    params: Any = drawn(0)
    state, expected = rule.init(params), {name: np.asarray(x, np.float64) for name, x in params.items()}
    square, mean = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))
    for step, rate in enumerate((0.1, 0.05, 0.2), start=1):
        grads = drawn(step)
        params, state = rule.step(grads, state, params, jnp.float32(rate))
        for name, g in grads.items():
            square[name] = 0.95 * square[name] + 0.05 * g.astype(np.float64) ** 2
            mean[name] = 0.8 * mean[name] + 0.2 * g / (np.sqrt(square[name] / (1 - 0.95**step)) + 1e-3)
            expected[name] = expected[name] - rate * mean[name] / (1 - 0.8**step)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), params, expected)


def test_laprop_moves_nothing_where_the_gradient_is_0_however_small_its_epsilon() -> None:
    rule, zeros = optimizers.make("laprop", 0.9, 0.999, 1e-20), jnp.zeros(2)
    grads = jnp.array([0.0, 1e-12])
    after, _ = rule.step(grads, rule.init(zeros), zeros, jnp.float32(0.5))
    np.testing.assert_allclose(after, [0.0, -0.5], rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "make", "arguments"),
    [
        ("optax:adamw(b2=0.99, weight_decay=0.1)", optax.adamw, {"b2": 0.99, "weight_decay": 0.1}),
        ("optax:rmsprop(momentum=0.9)", optax.rmsprop, {"momentum": 0.9}),
        ("optax:contrib.muon(beta=0.9)", contrib.muon, {"beta": 0.9}),
        ("optax:lbfgs(linesearch=None)", optax.lbfgs, {"linesearch": None}),
    ],
)
def test_steps_under_a_schedule_are_those_of_optax(text: str, make: Any, arguments: Any) -> None:
    """Optax's own schedules count steps."""
    rates = (0.1, 0.02, 0.05)
    rule, oracle = made(text), make(lambda count: jnp.array(rates)[count], **arguments)
    params: Any = drawn(0)
    reference = params
    state, other = rule.init(params), oracle.init(params)
    for step, rate in enumerate(rates):
        params, state = rule.step(drawn(step + 1), state, params, jnp.float32(rate))
        updates, other = oracle.update(drawn(step + 1), other, reference)
        reference = optax.apply_updates(reference, updates)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), params, reference)


def test_a_centred_rule_is_finite_where_gradients_hardly_change() -> None:
    rule = optimizers.make_direction("rmsprop_centred", 0.9, 0.95, 1.5e-7)
    noise = 1 + 1e-4 * jax.random.normal(jax.random.key(0), (2000,))

    def one(state: Any, scale: Any) -> Any:
        direction, state = rule.update(30 * scale * jnp.ones(()), state)
        return state, direction

    directions = jax.lax.scan(one, rule.init(jnp.zeros(())), noise)[1]
    assert np.isfinite(directions).all() and float(directions.max()) == pytest.approx(30 / np.sqrt(1.5e-7), rel=1e-3)


def test_a_step_size_of_0_moves_no_parameter_whatever_decays_weights() -> None:
    rule, params = made("optax:adafactor(weight_decay_rate=0.5)"), drawn(0)
    after, _ = rule.step(drawn(1), rule.init(params), params, jnp.float32(0.0))
    jax.tree.map(np.testing.assert_array_equal, after, params)
    after, _ = rule.step(drawn(1), rule.init(params), params, jnp.float32(1e-6))
    assert np.abs(after["bias"]).max() < 0.6 * np.abs(params["bias"]).max()


WRONG = {
    "optax:lino": (" lion?", "adamw"),
    "optax:muon": (" contrib.muon?",),
    "optax:chain": (" chain takes no step size",),
    "optax:polyak_sgd": (" polyak_sgd takes no step size",),
    "optax:scale_by_lion": (" scale_by_lion takes no step size",),
    "optax:lion(b3=0.9)": (" lion has no b3", "b1, b2"),
    "optax:lion(wieght_decay=0.9)": (" weight_decay?",),
    "optax:lion(learning_rate=0.1)": ("--learner.learning_rate",),
    "optax:lion(0.9)": ("optax:NAME(ARGUMENT=LITERAL,...)",),
    "optax:lion(**{'b1': 0.9})": ("ARGUMENT=LITERAL",),
    "optax:lion(b1=__import__('os').getpid())": ("ARGUMENT=LITERAL",),
    "optax:lion(b1=b2)": ("ARGUMENT=LITERAL",),
    "optax:contrib.dpsgd": ("l2_norm_clip",),
}
UNFIT = {
    "optax:lion(b1='high')": ("TypeError",),
    "optax:lbfgs": ("gradients and a step size alone", "value"),
    "optax:rprop": ("step size",),
    "optax:noisy_sgd(key=1)": ("random", "seed"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_name_or_argument_is_refused_in_one_line(text: str) -> None:
    assert fields.parse(FIELD, text) == text
    with conftest.refused(f"--learner.optimizer={text}: ", *WRONG[text]):
        made(text)


@pytest.mark.parametrize("text", UNFIT)
def test_an_optimiser_that_cannot_take_such_steps_is_refused_as_the_run_is_built(text: str) -> None:
    with conftest.refused(f"--learner.optimizer={text}: ", *UNFIT[text]):
        jaxrl_dist.make("ppo", "toy:walk", settings={"learner.optimizer": text})


def test_a_state_that_changes_its_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def growing(learning_rate: float) -> optax.GradientTransformation:
        return optax.GradientTransformation(
            lambda params: jnp.zeros(1), lambda grads, state, params: (grads, jnp.append(state, learning_rate))
        )

    monkeypatch.setattr(optimizers, "_names", lambda: {"growing": growing})
    with conftest.refused("--learner.optimizer=optax:growing: ", "form"):
        optimizers.check("optax:growing", NETWORK)


@pytest.mark.parametrize("text", ["optax:", "optax:lion(", "optax:lion(b1=0.9)x", "optax:1", "lion", "optax lion"])
def test_a_text_of_another_form_is_no_value(text: str) -> None:
    with pytest.raises(ValueError, match="optax:NAME"):
        fields.parse(FIELD, text)


@pytest.mark.parametrize("text", ["optax:lion())(b1=0.9)", "optax:lion(b1=(0.9)", "optax:lion(" + "(" * 9999 + ")"])
def test_text_that_is_no_call_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(errors.UsageError):
        made(text)


def test_each_part_of_a_network_has_its_own_state_and_step_size() -> None:
    parts = jaxrl_dist.make(
        "td3", "gymnax:Pendulum-v1", settings={"learner.optimizer": "optax:sgd", "learner.max_grad_norm": 0.0}
    )
    rate, policy_rate = parts.settings["learner.learning_rate"], 0.5
    config = parts.settings.group("learner", learner.Config)
    agent = parts.agent._replace(parts={"policy": types.Part(policy_rate, 1), "critic": types.Part()})
    rules = learner.make(config, agent, types.LOCAL)
    state = rules.init(agent.init(jax.random.key(0)))
    ones = jax.tree.map(jnp.ones_like, state.params.network)
    gradient = types.Gradient(ones, jnp.float32(0), jnp.float32(1), {}, {}, jnp.zeros(0))
    after, _ = rules.apply(state, gradient, jnp.float32(0.0))
    for name, expected in (("policy", policy_rate), ("critic", rate)):
        for old, new in zip(
            *map(jax.tree.leaves, (state.params.network[name], after.params.network[name])), strict=True
        ):
            np.testing.assert_allclose(old - new, expected, rtol=1e-3)
    assert set(after.opt_state) == {"policy", "critic"}


@pytest.mark.parametrize("system", ["sac", "crossq"])
def test_a_decay_of_weights_leaves_a_fixed_temperature_as_it_is(system: str) -> None:
    settings = {
        "learner.optimizer": "optax:adamw(weight_decay=0.1)",
        "agent.temperature": 0.1,
        "agent.learn_temperature": False,
    }
    parts = jaxrl_dist.make(system, "gymnax:Pendulum-v1", settings=settings)
    rules = learner.make(parts.settings.group("learner", learner.Config), parts.agent, types.LOCAL)
    state = rules.init(parts.agent.init(jax.random.key(0)))
    zeros = jax.tree.map(jnp.zeros_like, state.params.network)
    gradient = types.Gradient(zeros, jnp.float32(0), jnp.float32(1), {}, {}, jnp.zeros(0))
    before, after = state.params.network, rules.apply(state, gradient, jnp.float32(0.0))[0].params.network
    np.testing.assert_array_equal(after["temperature"]["log"], before["temperature"]["log"])
    moved = [not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (before, after)), strict=True)]
    assert any(moved)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "text"),
    [("anakin", "optax:lion(b2=0.9)"), ("async_gradient", "optax:contrib.muon"), ("sebulba", "optax:adan")],
)
def test_a_run_cut_in_two_is_the_run_in_one_piece(layout: str, text: str, tmp_path: Any) -> None:
    settings = {"layout": layout, "learner.optimizer": text}
    settings |= {"learner.epochs": 1, "learner.minibatches": 1} if layout == "async_gradient" else {}

    def make() -> conftest.Small:
        return conftest.Small("ppo", "toy:walk", 1, settings)

    whole, second = make().run(3).run(3), make().run(3).handed_to(make(), tmp_path).run(3)
    for x, y in zip(jax.tree.leaves(whole.state.learner), jax.tree.leaves(second.state.learner), strict=True):
        np.testing.assert_array_equal(x, y)
    for run in (whole, second):
        run.layout.close()
