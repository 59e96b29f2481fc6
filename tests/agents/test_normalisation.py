"""Observations and rewards of consecutive unrolls against VecNormalize's rule, one number after the other."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import call, normalisation

from jaxrl_dist import networks, types
from jaxrl_dist.agents import ppo, rnd
from jaxrl_dist.agents.shared import bounded_actions
from jaxrl_dist.agents.shared import normalisation as ours
from jaxrl_dist.networks import encoders, world_model


@pytest.mark.parametrize(("devices", "smallest"), [(1, 0.0), (2, 0.0), (1, 2.5)])
def test_rewards_and_observations_are_normalised_by_what_came_before(devices: int, smallest: float) -> None:
    """In f32. Four unrolls; returns go on from one to the next, and begin anew after both kinds of ends."""
    made = call.make(
        "ppo",
        discount=0.9,
        gae_lambda=0.0,
        scale_rewards=True,
        smallest_deviation=smallest,
        clip_rewards=1.5,
        reward_scale=0.5,
        normalise_observations=True,
        clip_observations=1.2,
        normalise_advantage="none",
    )
    rows = call.rows(made, seed=3, length=4 * 5 + 1, columns=4)
    rows["observation"] = rows["observation"] * [1.0, 3.0, 0.2] + [0.0, -2.0, 5.0]
    found, scale = call.play(made, rows, length=5, devices=devices)
    rewards, deviations = normalisation.rewards(rows["reward"], rows["step_type"], 5, 0.9, 1.5, smallest)
    assert deviations[2] < 2.5 < deviations[3]
    observations = normalisation.observations(rows["observation"], rows["step_type"], 5, 1.2)
    taught = rows["step_type"] != 2
    for i in range(4):
        now = taught[5 * i : 5 * i + 5]
        np.testing.assert_allclose(found[i].reward[now], 0.5 * rewards[i][now], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[i].observation[now], observations[i][now], rtol=1e-4, atol=1e-5)
    assert scale == pytest.approx(deviations[-1], rel=1e-5) and not 0.8 < scale < 1.25


def test_pixels_that_are_clipped_are_seen_as_networks_see_them() -> None:
    config = ppo.Config(clip_observations=0.5)
    spec = types.EnvironmentSpec("x:y", jax.ShapeDtypeStruct((3,), jnp.uint8), types.DiscreteSpace(2), "classic")
    seen = ours.observation(config, spec, ours.Statistics((), ()), jnp.uint8([[0, 51, 255]]))
    np.testing.assert_allclose(seen, [[0.0, 0.2, 0.5]], rtol=1e-6)


def test_a_critic_of_actions_sees_pixels_as_the_policy_does_and_no_category_as_a_number() -> None:
    action = jnp.float32([[0.5]])
    np.testing.assert_array_equal(bounded_actions.joined_with(jnp.float16([[3, 4]]), action), [[3, 4, 0.5]])
    limits, network = types.BoxSpace((1,), np.float32([-1]), np.float32([1])), networks.Config(torso="mlp")
    for dtype in (jnp.int32, jnp.uint8, jnp.int16, jnp.bool_):
        for categories in ({}, {"": (2, 2)}):
            seen = jax.ShapeDtypeStruct((2,), dtype)
            spec = types.EnvironmentSpec("x:y", seen, limits, "continuous", categories=categories)
            for net in bounded_actions.policy_and_critic(spec, network, 1, 1):
                paths = [
                    jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(net.init(jax.random.key(0)))
                ]
                assert sum("table" in path for path in paths) == 2 * bool(categories), paths


def _with_hidden() -> types.EnvironmentSpec:
    number = jax.ShapeDtypeStruct((2,), jnp.float32)
    action = types.BoxSpace((1,), np.float32([-1]), np.float32([1]))
    return types.EnvironmentSpec("x:y", {"load": number, "state": number}, action, "continuous", privileged="load")


def test_what_is_privileged_is_shown_to_no_critic_of_actions_unasked() -> None:
    spec, seen = bounded_actions.joined_spec(_with_hidden(), networks.Config(torso="mlp"), 1)
    assert spec.privileged == "observation/load" and seen == ()
    assert encoders.seen(spec, seen) == ["action", "observation/state"]


def test_a_world_model_sees_nothing_that_is_privileged() -> None:
    assert [name for name, _ in world_model.leaves_of(_with_hidden())] == ["state"]


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int16])
@pytest.mark.parametrize("system", ["ppo", "rnd"])
def test_lone_categories_are_not_normalised(system: str, dtype: Any) -> None:
    """Scaled, they would be no categories any more, and a network would see nothing of them."""
    config = ppo.Config(normalise_observations=True) if system == "ppo" else rnd.Config(normalise_observations=True)
    codes = jax.ShapeDtypeStruct((2,), dtype)
    spec = types.EnvironmentSpec("x:y", codes, types.DiscreteSpace(2), "classic", categories={"": (5, 3)})
    make: Any = ppo.make if system == "ppo" else rnd.make
    agent = make(config, spec, networks.Config(torso="mlp", hidden_sizes=(8,)))
    params = agent.init(jax.random.key(0))
    rows = jnp.asarray([[0, 0], [4, 0], [0, 2], [4, 2]], dtype)
    timestep = types.TimeStep(jnp.ones(4, jnp.int8), jnp.zeros(4), jnp.ones(4), rows, ())
    found = ours.observation(config, spec, ours.initial(config, spec), rows)
    np.testing.assert_array_equal(found, rows)
    # One action, drawn for each row by one key, is as likely as the row's own policy says.
    inputs = types.ActInputs(timestep, agent.init_carry(4), jax.random.key(1))
    output = agent.act(params, inputs)
    chances = np.where(output.action == 0, np.exp(output.extras.log_prob), 1 - np.exp(output.extras.log_prob))
    assert len(set(np.round(chances, 6).tolist())) == 4


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int16, jnp.float32])
def test_a_lone_array_of_quantities_is_normalised_whatever_its_dtype(dtype: Any) -> None:
    config = ppo.Config(normalise_observations=True, clip_observations=1.5)
    spec = types.EnvironmentSpec("x:y", jax.ShapeDtypeStruct((1,), dtype), types.DiscreteSpace(2), "classic")
    step_type = jnp.full((5, 1), types.MID, jnp.int8)
    rows = jnp.asarray([[[100]], [[300]], [[100]], [[300]], [[0]]], dtype)
    timestep = types.TimeStep(step_type, jnp.zeros((5, 1)), jnp.ones((5, 1)), rows, ())
    running = ours.update(config, spec, ours.initial(config, spec), timestep, (), types.LOCAL)
    np.testing.assert_allclose(ours.observation(config, spec, running, rows)[:, 0, 0], [-1, 1, -1, 1, -1.5], rtol=1e-5)
    assert ours.as_real(spec).observation.dtype == jnp.float32
