"""Observations and rewards of consecutive unrolls against VecNormalize's rule, one number after the other."""

import numpy as np
import pytest
from oracles import call, normalisation


@pytest.mark.parametrize("devices", [1, 2])
def test_rewards_and_observations_are_normalised_by_what_came_before(devices: int) -> None:
    """In f32. Four unrolls; returns go on from one to the next, and begin anew after both kinds of ends."""
    made = call.make(
        "ppo",
        discount=0.9,
        gae_lambda=0.0,
        scale_rewards=True,
        clip_rewards=1.5,
        reward_scale=0.5,
        normalise_observations=True,
        clip_observations=1.2,
        normalise_advantage="none",
    )
    rows = call.rows(made, seed=3, length=4 * 5 + 1, columns=4)
    rows["observation"] = rows["observation"] * [1.0, 3.0, 0.2] + [0.0, -2.0, 5.0]
    found, scale = call.play(made, rows, length=5, devices=devices)
    rewards, last = normalisation.rewards(rows["reward"], rows["step_type"], 5, 0.9, 1.5)
    observations = normalisation.observations(rows["observation"], rows["step_type"], 5, 1.2)
    taught = rows["step_type"] != 2
    for i in range(4):
        now = taught[5 * i : 5 * i + 5]
        np.testing.assert_allclose(found[i].reward[now], 0.5 * rewards[i][now], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[i].observation[now], observations[i][now], rtol=1e-4, atol=1e-5)
    assert scale == pytest.approx(last, rel=1e-5) and not 0.8 < scale < 1.25
