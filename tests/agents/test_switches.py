"""Every setting of an agent, a learner and a replay changes what is learned (T10)."""

import dataclasses
import functools

import conftest
import numpy as np
import pytest

from jaxrl_dist import networks, replay
from jaxrl_dist.agents import (
    a2c,
    alphazero,
    crossq,
    discrete_sac,
    dpg,
    dqn,
    dreamer,
    es,
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
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import anakin

CARTPOLE = "gymnax:CartPole-v1"
PENDULUM = "gymnax:Pendulum-v1"
ACTOR_CRITIC = {
    "agent.value_cost": 0.1,
    "agent.entropy_cost": 0.1,
    "agent.normalise_observations": True,
    "agent.clip_observations": 0.01,
    "agent.scale_rewards": False,
    "agent.smallest_deviation": 50.0,
    "agent.clip_rewards": 0.5,
    "agent.reward_scale": 0.2,
}
SAC = {
    "discount": 0.9,
    "n_step": 3,
    "temperature": 0.1,
    "learn_temperature": False,
    "target_entropy": -5.0,
    "random_share": 0.5,
    "clip_rewards": 0.5,
    "reward_scale": 0.2,
    "policy_learning_rate": 0.1,
    "policy_period": 2,
}
ALTERED = {
    "ppo": {
        "agent.discount": 0.9,
        "agent.gae_lambda": 0.5,
        "agent.clip_epsilon": 1e-4,
        "agent.clip_value": 1e-4,
        "agent.value_cost": 0.1,
        "agent.entropy_cost": 0.1,
        "agent.adapt_learning_rate": True,
        "agent.normalise_advantage": "none",
        "agent.normalise_observations": True,
        "agent.clip_observations": 0.01,
        "agent.scale_rewards": False,
        "agent.smallest_deviation": 50.0,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
        "learner.optimizer": "sgd",
        "learner.learning_rate": 1e-3,
        "learner.anneal": False,
        "learner.schedule": "cosine",
        "learner.final_share": 0.5,
        "learner.warmup": 0.5,
        "learner.epsilon": 1e-2,
        "learner.decay": 0.9,
        "learner.momentum": 0.5,
        "learner.max_grad_norm": 0.01,
        "learner.max_grad_ratio": 1e-3,
        "learner.reduction": "sum",
        "learner.epochs": 1,
        "learner.minibatches": 4,
        "learner.shuffle": False,
        "network.hidden_sizes": (8,),
        "network.activation": "relu",
        "network.orthogonal": False,
        "network.layer_norm": True,
        "network.shared": True,
        "network.core": "frame_stack",
        "network.compute": "bfloat16",
        "network.head_size": 8,
        "env.num_envs": 16,
        "layout.unroll_length": 8,
        "seed": 1,
    },
    "dppo": {"agent.kl_penalty": 9.0, "agent.kl_target": 1e-6},
    "mappo": {"agent.central_critic": False, "agent.share_parameters": False},
    "rnd": {
        "agent.normalise_advantage": "none",
        "agent.intrinsic_weight": 0.2,
        "agent.extrinsic_weight": 0.2,
        "agent.intrinsic_discount": 0.5,
        "agent.predictor_share": 0.9,
        "agent.feature_size": 4,
    },
    "es": {
        "agent.sigma": 0.5,
        "agent.weight_decay": 0.1,
        "agent.normalise_observations": True,
        "agent.clip_observations": 0.01,
    },
    "a2c": {
        "agent.discount": 0.9,
        "agent.gae_lambda": 0.5,
        **ACTOR_CRITIC,
        "agent.correction_epsilon": 0.3,
        "learner.optimizer": "sgd",
        "learner.decay": 0.9,
    },
    "impala": {
        "agent.discount": 0.9,
        "agent.trace_decay": 0.5,
        "agent.correction": "epsilon",
        "agent.clip_rho": 0.5,
        "agent.clip_c": 0.5,
        "agent.clip_policy_rho": 0.5,
        **ACTOR_CRITIC,
    },
    "pqn": {
        "agent.discount": 0.9,
        "agent.trace_decay": 0.1,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
        "agent.epsilon_start": 0.5,
        "agent.epsilon_end": 0.9,
        "agent.epsilon_fraction": 1.0,
        "learner.optimizer": "adam",
        "learner.momentum": 0.5,
        "learner.decay": 0.9,
        "learner.epsilon": 1e-2,
        "network.layer_norm": False,
    },
    "impala_replay": {"replay.capacity": 256, "replay.fraction": 0.2},
    "dqn": {
        "agent.discount": 0.9,
        "agent.n_step": 2,
        "agent.double": True,
        "agent.error_clip": 0.01,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
        "agent.epsilon_start": 0.5,
        "agent.epsilon_end": 0.9,
        "agent.epsilon_fraction": 0.1,
        "agent.epsilon_wait": 0.3,
        "agent.dueling": True,
        "agent.num_atoms": 11,
        "agent.noise": 0.5,
        "agent.temperature": 0.5,
        "agent.exploration": "ladder",
        "network.head_size": 8,
        "learner.target_period": 3,
        "replay.capacity": 128,
        "replay.min_size": 128,
        "replay.batch_size": 16,
        "replay.samples_per_insert": 4.0,
    },
    "rainbow": {
        "agent.value_low": -5.0,
        "agent.value_high": 50.0,
        "agent.distribution": "quantile",
        "replay.priority_exponent": 0.9,
        "replay.importance_exponent": 0.9,
        "replay.importance_exponent_end": 0.0,
        "replay.smallest_error": 1.0,
    },
    "qr_dqn": {
        "agent.error_clip": 0.1,
        "agent.munchausen": 0.1,
        "agent.log_policy_low": -0.01,
    },
    "iqn": {
        "agent.discount": 0.9,
        "agent.n_step": 2,
        "agent.num_levels": 3,
        "agent.num_target_levels": 3,
        "agent.num_policy_levels": 7,
        "agent.num_cosines": 3,
        "agent.error_clip": 0.01,
        "agent.temperature": 0.5,
        "agent.munchausen": 0.1,
        "agent.log_policy_low": -0.01,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
        "agent.epsilon_start": 0.5,
        "agent.epsilon_end": 0.9,
        "agent.epsilon_fraction": 0.1,
        "agent.epsilon_wait": 0.3,
    },
    "muzero": {
        "agent.discount": 0.9,
        "agent.n_step": 3,
        "agent.search": "gumbel",
        "agent.simulations": 5,
        "agent.dirichlet_alpha": 9.0,
        "agent.dirichlet_fraction": 0.9,
        "agent.temperature": 0.1,
        "agent.value_cost": 0.1,
        "agent.num_atoms": 21,
        "agent.value_bound": 5.0,
        "agent.unroll_steps": 3,
        "agent.latent_size": 4,
        "agent.model_size": 4,
        "agent.target_values": False,
        "agent.reanalyse": 1.0,
    },
    "alphazero": {
        "agent.discount": 0.9,
        "agent.n_step": 3,
        "agent.search": "muzero",
        "agent.simulations": 5,
        "agent.considered_actions": 1,
        "agent.value_scale": 9.0,
        "agent.rescale_values": False,
        "agent.value_cost": 0.1,
        "agent.num_atoms": 21,
        "agent.value_bound": 5.0,
    },
    "apex_dqn": {"agent.ladder_base": 0.9, "agent.ladder_exponent": 1.0, "agent.actor_errors": False},
    "apex_dpg": {"agent.actor_errors": False},
    "d4pg": {
        "agent.discount": 0.9,
        "agent.n_step": 1,
        "agent.num_atoms": 5,
        "agent.value_low": -500.0,
        "agent.value_high": 5.0,
        "agent.num_critics": 2,
        "agent.exploration_noise": 0.9,
        "agent.target_noise": 0.2,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
        "agent.random_share": 0.5,
        "learner.target_rate": 0.5,
        "agent.policy_learning_rate": 0.1,
        "agent.policy_period": 2,
    },
    "td3": {"agent.target_noise_clip": 0.01},
    "sac": {f"agent.{name}": value for name, value in SAC.items()},
    "crossq": {
        "agent.norm_rate": 0.5,
        "agent.renorm_wait": 0.0,
        **{f"agent.{name}": value for name, value in SAC.items()},
    },
    "mpo": {
        "agent.discount": 0.9,
        "agent.n_step": 4,
        "agent.num_samples": 3,
        "agent.temperature": 0.1,
        "agent.temperature_bound": 1.0,
        "agent.multiplier": 0.1,
        "agent.deviation_multiplier": 0.1,
        "agent.mean_bound": 1.0,
        "agent.deviation_bound": 1.0,
        "agent.policy_learning_rate": 0.1,
        "agent.policy_period": 2,
        "agent.dual_learning_rate": 0.5,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
    },
    "vmpo": {
        "agent.discount": 0.9,
        "agent.gae_lambda": 0.5,
        "agent.value_cost": 0.1,
        "agent.temperature": 0.1,
        "agent.temperature_bound": 1.0,
        "agent.multiplier": 0.1,
        "agent.policy_bound": 1.0,
        "agent.dual_learning_rate": 0.5,
        "agent.normalise_observations": True,
        "agent.clip_observations": 0.01,
        "agent.scale_rewards": False,
        "agent.smallest_deviation": 50.0,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
    },
    "dreamer": {
        "agent.discount": 0.9,
        "agent.trace_decay": 0.5,
        "agent.length": 4,
        "agent.horizon": 2,
        "agent.entropy_cost": 0.1,
        "agent.unimix": 0.2,
        "agent.free_nats": 0.0,
        "agent.dynamics_scale": 0.5,
        "agent.representation_scale": 0.5,
        "agent.replay_value_scale": 1.0,
        "agent.slow_scale": 0.1,
        "agent.return_rate": 1.0,
        "agent.policy_learning_rate": 0.1,
        "agent.critic_learning_rate": 0.1,
        "agent.units": 4,
        "agent.layers": 2,
        "agent.recurrent_units": 4,
        "agent.blocks": 1,
        "agent.latents": 2,
        "agent.classes": 2,
        "agent.num_bins": 7,
    },
    "discrete_sac": {
        "agent.discount": 0.9,
        "agent.n_step": 3,
        "agent.temperature": 0.1,
        "agent.learn_temperature": False,
        "agent.target_entropy": 0.1,
        "agent.random_share": 0.0,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
        "agent.policy_learning_rate": 0.1,
        "agent.policy_period": 2,
    },
    "r2d2": {
        "agent.discount": 0.9,
        "agent.n_step": 1,
        "agent.burn_in": 0,
        "agent.taught": 4,
        "agent.stored_state": False,
        "agent.double": False,
        "agent.dueling": False,
        "agent.rescale_values": False,
        "agent.clip_rewards": 0.5,
        "agent.reward_scale": 0.2,
        "agent.max_error_share": 0.1,
        "agent.actor_errors": False,
        "agent.ladder_base": 0.9,
        "agent.ladder_exponent": 1.0,
    },
}
# Read in evaluation only, needed for a choice that is not the default, or without effect on one device's arithmetic.
POOL = ("agent.pool_size", "agent.pool_share", "agent.pool_period")
ELSEWHERE = {
    "ppo": {
        "agent.evaluation_action",
        "agent.kl_penalty",
        "agent.kl_target",
        "agent.distribution",
        "network.torso",
        "network.core_size",
        "network.num_frames",
        "layout.num_devices",
    }
    | {"network.forget_bias", "network.embedding_size", "network.policy_inputs", "network.value_inputs"}
    | {f"network.core_{name}" for name in ("layers", "heads", "rows")}
    | {f"learner.{name}" for name in ("target_period", "target_rate")},
    "rnd": {f"agent.{field.name}" for field in dataclasses.fields(ppo.Config)} - {"agent.normalise_advantage"},
    "mappo": {f"agent.{field.name}" for field in dataclasses.fields(ppo.Config)},
    "es": {"agent.distribution"},
    "a2c": {"agent.distribution", "agent.evaluation_action"},
    "impala": {"agent.distribution", "agent.evaluation_action", "agent.correction_epsilon"},
    "pqn": {"agent.evaluation_epsilon"},
    "dqn": {"agent.evaluation_epsilon", *(f"agent.{name}" for name in ("value_low", "value_high", "actor_errors"))}
    | {"agent.ladder_base", "agent.ladder_exponent", "agent.distribution"}
    | {"agent.munchausen", "agent.log_policy_low"},
    "r2d2": {"agent.evaluation_epsilon"},
    "d4pg": {"agent.target_noise_clip", "agent.actor_errors"},
    **{system: {"agent.evaluation_action"} for system in ("sac", "discrete_sac", "crossq", "mpo")},
    "vmpo": {"agent.distribution", "agent.evaluation_action", "agent.mean_bound", "agent.deviation_bound"},
    "iqn": {"agent.evaluation_epsilon", "agent.double"},
    # Of images (tests/agents/test_dreamer.py).
    "dreamer": {"agent.channels", "agent.evaluation_action"},
    # Of games for two (tests/agents/test_opponent_pool.py).
    "muzero": {"agent.considered_actions", "agent.value_scale", "agent.rescale_values", *POOL},
    "alphazero": {"agent.dirichlet_alpha", "agent.dirichlet_fraction", "agent.temperature", *POOL},
}
BASE = {
    "ppo": {"network.shared": False},
    "dppo": {},
    "rnd": {},
    "mappo": {"env": "toy:team"},
    "es": {},
    "a2c": {"agent.scale_rewards": True},
    "impala": {"layout": "anakin", "agent.scale_rewards": True},
    "pqn": {"learner.learning_rate": 0.03},
    "impala_replay": {"layout": "anakin"},
    "dqn": {"agent.epsilon_fraction": 0.7, "learner.learning_rate": 0.03, "learner.target_period": 5},
    "d4pg": {"learner.learning_rate": 0.03, "learner.target_period": 5, "env": PENDULUM},
    "apex_dpg": {"learner.learning_rate": 0.03, "env": PENDULUM},
    "td3": {"learner.learning_rate": 0.03, "env": PENDULUM},
    "sac": {"learner.learning_rate": 0.03, "env": PENDULUM},
    "discrete_sac": {"learner.learning_rate": 0.03, "agent.random_share": 0.5},
    "crossq": {"learner.learning_rate": 0.03, "env": PENDULUM, "agent.policy_period": 1},
    "mpo": {"learner.learning_rate": 0.03, "env": PENDULUM},
    "vmpo": {"agent.scale_rewards": True},
    "rainbow": {"agent.num_atoms": 11, "learner.learning_rate": 0.03, "learner.target_period": 5},
    "qr_dqn": {
        "learner.learning_rate": 0.03,
        "learner.target_period": 5,
        "agent.temperature": 0.5,
        "agent.munchausen": 0.9,
    },
    "iqn": {
        "learner.learning_rate": 0.03,
        "learner.target_period": 5,
        "agent.epsilon_fraction": 0.7,
        "agent.temperature": 0.1,
        "agent.munchausen": 0.9,
    },
    "muzero": {"learner.learning_rate": 0.03},
    "alphazero": {"learner.learning_rate": 0.03, "agent.search": "gumbel"},
    "apex_dqn": {"learner.learning_rate": 0.03, "learner.target_period": 5},
    # Rewards far apart, so that advantages are divided by more than 1.
    "dreamer": {"learner.learning_rate": 0.03, "env": PENDULUM},
    "r2d2": {"learner.learning_rate": 0.1, "learner.target_period": 50, "seed": 3},
}


@functools.cache
def _reference(small, system):
    return small(system, BASE[system].get("env", CARTPOLE), 1, BASE[system]).run(8).params


def _switches():
    for system, names in ALTERED.items():
        for name in names:
            yield pytest.param(system, name, id=f"{system}-{name}")


@pytest.mark.slow
@pytest.mark.parametrize(("system", "name"), _switches())
def test_every_switch_bites(small, system, name):
    settings = {**BASE[system], name: ALTERED[system][name]}
    altered = small(system, settings.get("env", CARTPOLE), 1, settings).run(8).params
    reference = _reference(small, system)
    same_shapes = [leaf.shape for leaf in altered] == [leaf.shape for leaf in reference]
    assert not (same_shapes and all(map(np.array_equal, altered, reference))), f"{name} changes nothing"


def test_no_switch_is_missing_from_the_test_above():
    owners = {
        "ppo": {"agent": ppo, "learner": learner, "network": networks, "layout": anakin},
        "rnd": {"agent": rnd},
        "mappo": {"agent": mappo},
        "es": {"agent": es},
        "a2c": {"agent": a2c},
        "impala": {"agent": impala},
        "pqn": {"agent": pqn},
        "d4pg": {"agent": dpg},
        "sac": {"agent": sac},
        "discrete_sac": {"agent": discrete_sac},
        "crossq": {"agent": crossq},
        "mpo": {"agent": mpo},
        "vmpo": {"agent": vmpo},
        "iqn": {"agent": iqn},
        "muzero": {"agent": muzero},
        "alphazero": {"agent": alphazero},
        "dqn": {"agent": dqn},
        "dreamer": {"agent": dreamer},
        "r2d2": {"agent": r2d2},
    }
    for system, modules in owners.items():
        declared = {f"{owner}.{f.name}" for owner, module in modules.items() for f in dataclasses.fields(module.Config)}
        assert declared == {n for n in declared if n in ALTERED[system]} | (ELSEWHERE[system] & declared)
        assert ELSEWHERE[system] <= declared
    fields = {f"replay.{f.name}" for f in dataclasses.fields(replay.PrioritisedConfig)}
    # Where observations are kept changes no number (test_host_tier.py).
    fields -= {"replay.storage", "replay.prefetch"}
    assert fields <= {*ALTERED["dqn"], *ALTERED["rainbow"]}
    mixed = {f"replay.{f.name}" for f in dataclasses.fields(replay.MixedConfig)}
    assert mixed == {*ALTERED["impala_replay"]}
    assert ELSEWHERE["dqn"] - {"agent.evaluation_epsilon"} <= {
        name for system in ("rainbow", "apex_dqn", "qr_dqn") for name in ALTERED[system]
    }


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo", "dqn"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("network.embedding_size", 3), ("network.policy_inputs", ("goal",)), ("network.value_inputs", ("goal",))],
)
def test_switches_of_trees_bite(small, system, name, value):
    reference = small(system, "toy:choice", 1, {}).run(2).params
    if (system, name) == ("dqn", "network.policy_inputs"):
        with conftest.refused(f"--{name}=goal"):
            small(system, "toy:choice", 1, {name: value})
        return
    altered = small(system, "toy:choice", 1, {name: value}).run(2).params
    assert [leaf.shape for leaf in reference] != [leaf.shape for leaf in altered]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("network.core_layers", 1), ("network.core_heads", 2), ("network.core_rows", 3)]
)
def test_switches_of_a_transformer_bite(small, name, value):
    base = {"network.core": "gtrxl", "network.core_size": 8}
    reference, altered = (
        small("ppo", CARTPOLE, 1, settings).run(2).params for settings in (base, {**base, name: value})
    )
    same_shapes = [leaf.shape for leaf in altered] == [leaf.shape for leaf in reference]
    assert not (same_shapes and all(map(np.array_equal, altered, reference)))


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo", "a2c", "es"])
@pytest.mark.parametrize("name,value", [("agent.distribution", "tanh_gaussian")])
def test_switches_of_continuous_control_bite(small, name, value, system):
    # Its actions lie in [-1, 1], as a squashed policy needs.
    env = "gymnax:MountainCarContinuous-v0"
    reference = small(system, env, 1, {}).run(2).params
    altered = small(system, env, 1, {name: value}).run(2).params
    assert [leaf.shape for leaf in reference] != [leaf.shape for leaf in altered]
