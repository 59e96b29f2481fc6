"""Settings of agents that replay real actions: DDPG, TD3, D4PG, Ape-X's form of it, and SAC."""

from jaxrl_dist.settings.base import OURS, Families, Setting, cited

_DDPG = "Lillicrap et al. 2016 (DDPG), section 7"
_TD3 = "Fujimoto et al. 2018 (TD3), section 6.1"
# Published after the paper, which has a step size of 1e-3, batches of 100, and layers of 400 and 300.
_TD3_CODE = "sfujim/TD3, TD3.py and main.py (the authors' code)"
_D4PG = "Barth-Maron et al. 2018 (D4PG), section 4"
_APE_X = "Horgan et al. 2018 (Ape-X), appendix D"

_COMMON = {
    **cited(
        OURS,
        {
            "env.num_envs": 8,
            "layout.unroll_length": 4,
            "replay.min_size": 1_000,
            "learner.optimizer": "adam",
            "learner.anneal": False,
            "learner.max_grad_norm": 0.0,
            "learner.epsilon": 1e-8,
            "network.torso": "mlp",
            "network.activation": "relu",
            "network.orthogonal": False,
        },
    ),
    "replay.capacity": Setting(1_000_000, _DDPG),
    "network.hidden_sizes": Setting((256, 256), f"{_TD3_CODE}; the papers have 400 and 300"),
}

DDPG = {
    **_COMMON,
    **cited(
        _DDPG,
        {
            "learner.learning_rate": 1e-3,
            "learner.policy_learning_rate": 1e-4,
            "learner.target_period": 1,
        },
    ),
    **cited(
        f"{_TD3}, its DDPG",
        {
            "learner.target_rate": 0.005,
            "agent.exploration_noise": 0.1,
        },
    ),
    "replay.batch_size": Setting(256, _TD3_CODE),
    "replay.samples_per_insert": Setting(256.0, f"{_TD3_CODE}: an update of 256 rows per step"),
}

TD3 = {
    **DDPG,
    **cited(
        _TD3,
        {
            "learner.policy_period": 2,
            "learner.target_period": 2,
            "agent.num_critics": 2,
            "agent.target_noise": 0.2,
        },
    ),
    **cited(_TD3_CODE, {"learner.learning_rate": 3e-4, "learner.policy_learning_rate": 3e-4}),
    "agent.random_share": Setting(0.01, f"{_TD3} (10,000 steps of 1M)"),
}

D4PG = {
    **_COMMON,
    **cited(
        _D4PG,
        {
            "replay.batch_size": 256,
            "learner.learning_rate": 1e-4,
            "learner.policy_learning_rate": 1e-4,
            "learner.target_period": 100,
            "agent.n_step": 5,
            "agent.num_atoms": 51,
            "agent.exploration_noise": 0.3,
        },
    ),
    **cited(OURS, {"replay.samples_per_insert": 256.0, "replay.priority_exponent": 0.6}),
}

APE_X_DPG = {
    **_COMMON,
    **cited(
        _APE_X,
        {
            "env.num_envs": 32,
            "replay.batch_size": 256,
            "replay.priority_exponent": 0.6,
            "learner.learning_rate": 1e-4,
            "learner.policy_learning_rate": 1e-4,
            "learner.target_period": 100,
            "agent.n_step": 5,
            "agent.exploration_noise": 0.3,
            "agent.actor_errors": True,
        },
    ),
    **cited(
        "as Ape-X DQN, Horgan et al. 2018, section 4.1",
        {"replay.importance_exponent": 0.4, "replay.importance_exponent_end": 0.4},
    ),
    **cited(OURS, {"replay.samples_per_insert": 64.0}),
    "replay.capacity": Setting(999_936, f"{_APE_X} (1M), in whole unrolls of 32 environments"),
}

SAC = {
    **_COMMON,
    **cited(
        "Haarnoja et al. 2018 (SAC), table 1",
        {
            "replay.batch_size": 256,
            "replay.samples_per_insert": 256.0,
            "learner.learning_rate": 3e-4,
            "learner.target_period": 1,
            "learner.target_rate": 0.005,
        },
    ),
}

# What has real actions is of these families; the papers' settings serve both.
FAMILIES: Families = {"continuous": {}, "physics": {}}

# A small task gives too few rows for the few updates per row of a large machine.
APE_X_DPG_FAMILIES: Families = {
    "continuous": cited(OURS, {"env.num_envs": 8, "replay.samples_per_insert": 256.0, "learner.learning_rate": 1e-3}),
    "physics": {},
}
