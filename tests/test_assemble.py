"""The choice of devices: accelerators all, virtual CPU devices as many as the work keeps busy."""

import jax
import pytest

from jaxrl_dist import assemble, config, resolution

LARGE = {"env.num_envs": 2048, "layout.unroll_length": 32, "learner.minibatches": 32}
ANT = {"env.num_envs": 256, "layout.unroll_length": 40, "learner.minibatches": 32}


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("classic", {}, 1),
        ("classic", LARGE, 2),
        ("classic", {**LARGE, "learner.minibatches": 64}, 1),
        ("classic", {**LARGE, "env.num_envs": 2049}, 1),
        ("classic", {"num_seeds": 10}, 2),
        ("classic", {"num_seeds": 3}, 1),
        ("classic", {"layout.num_devices": 2}, 2),
        ("physics", ANT, 2),
        ("classic", ANT, 1),
        ("physics", {**ANT, "learner.minibatches": 128}, 1),
        ("physics", {**ANT, "layout.num_devices": 1}, 1),
    ],
)
def test_seeds_and_long_minibatches_are_spread_over_two_cores(family, settings, expected):
    resolved = resolution.resolve({"system": "ppo", **settings}, family)
    assert len(assemble.choose_devices(resolved, jax.devices()[:2])) == expected


def test_replays_keep_to_one_core():
    resolved = resolution.resolve({"system": "dqn", "replay.batch_size": 65536}, "physics")
    assert len(assemble.choose_devices(resolved, jax.devices()[:2])) == 1


def test_more_devices_than_there_are_is_refused():
    resolved = resolution.resolve({"system": "ppo", "layout.num_devices": 3}, "classic")
    with pytest.raises(config.UsageError, match="there are 2; valid: 0 to 2"):
        assemble.choose_devices(resolved, jax.devices()[:2])
