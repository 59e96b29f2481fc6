"""Settings of proximal policy optimisation."""

from jaxrl_dist.agents import ppo
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import latest
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient
from jaxrl_dist.systems.families import ANY, Families

_PPO_PAPER = "Schulman et al. 2017, table 5"
_DETAILS = "Huang et al. 2022, The 37 implementation details of PPO"
_PUREJAXRL_PPO = "PureJaxRL ppo.py (Lu et al. 2022)"
_PUREJAXRL_MINATAR = "PureJaxRL examples/brax_minatar.ipynb (Lu et al. 2022)"
_CLEANRL_CONTINUOUS = "CleanRL ppo_continuous_action.py (Huang et al. 2022)"
_ZOO = "RL Baselines3 Zoo, hyperparams/ppo.yml, LunarLander-v3 (Raffin 2020), with SB3's step size"
_BRAX_ANT = "Brax notebooks/training.ipynb, ant (Freeman et al. 2021)"
_BRAX_PPO = "Brax training/agents/ppo (Freeman et al. 2021)"

PPO_CLASSIC = cited(
    _PUREJAXRL_PPO,
    {
        "env.num_envs": 4,
        "layout.unroll_length": 128,
        "learner.learning_rate": 2.5e-4,
        "learner.anneal": True,
        "learner.minibatches": 4,
        "learner.epochs": 4,
        "learner.max_grad_norm": 0.5,
        "agent.discount": 0.99,
        "agent.gae_lambda": 0.95,
        "agent.clip_epsilon": 0.2,
        "agent.clip_value": 0.2,
        "agent.entropy_cost": 0.01,
        "agent.value_cost": 0.5,
        "network.torso": "mlp",
        "network.hidden_sizes": (64, 64),
        "network.activation": "tanh",
        "network.shared": False,
    },
)

# Large rewards are scaled down, small ones stay as they are. The clip lets values move by .2 an update: where they are
# in the hundreds, one seed of ten learns nothing of Acrobot. Small rewards scaled up lose half of DeepSea's seeds
# (docs/results.md).
SCALED_DOWN = {
    "agent.scale_rewards": Cited(True, "Engstrom et al. 2020, section 3 (for MuJoCo)"),
    "agent.smallest_deviation": Cited(1.0, "Hafner et al. 2023 (DreamerV3), whose returns are divided by max(1, S)"),
}

# Above those of classic control.
_PPO_LONG = cited(
    _ZOO,
    {
        "env.num_envs": 16,
        "layout.unroll_length": 1024,
        "learner.learning_rate": 3e-4,
        "learner.anneal": False,
        "learner.minibatches": 256,
        "learner.epochs": 4,
        "agent.discount": 0.999,
        "agent.gae_lambda": 0.98,
        "agent.clip_value": 0.0,
        "agent.scale_rewards": False,
        "agent.entropy_cost": 0.01,
        # Theirs weighs the whole squared error by .5.
        "agent.value_cost": 1.0,
    },
)

# A part of a room is seen, so that the same view asks for different actions, and the likeliest one may go in circles.
SAMPLED = cited("rl-starter-files for MiniGrid, scripts/evaluate.py", {"agent.evaluation_action": "sample"})
# Above those of classic control. Of a map's many flags most are always the same, and the few that change count little
# beside them, unless each is normalised: NAVIX's empty room is found in a third of the steps.
GRID = {
    **cited(
        "Engstrom et al. 2020, section 3 (for MuJoCo)",
        {"agent.normalise_observations": True, "agent.clip_observations": 10.0},
    ),
    **SAMPLED,
}

_PPO_MINATAR = {
    **PPO_CLASSIC,
    **cited(
        _PUREJAXRL_MINATAR,
        {
            "env.num_envs": 64,
            "layout.unroll_length": 128,
            "learner.learning_rate": 5e-3,
            "learner.anneal": True,
            "learner.minibatches": 8,
            "learner.epochs": 4,
            "agent.clip_epsilon": 0.2,
            "agent.clip_value": 0.2,
            "network.torso": "mlp",
            "network.hidden_sizes": (64, 64),
            "network.activation": "relu",
            "network.shared": False,
        },
    ),
}

_PPO_CONTINUOUS = cited(
    _CLEANRL_CONTINUOUS,
    {
        "env.num_envs": 1,
        "layout.unroll_length": 2048,
        "learner.learning_rate": 3e-4,
        "learner.anneal": True,
        "learner.minibatches": 32,
        "learner.epochs": 10,
        "learner.max_grad_norm": 0.5,
        "agent.discount": 0.99,
        "agent.gae_lambda": 0.95,
        "agent.clip_epsilon": 0.2,
        "agent.clip_value": 0.2,
        "agent.entropy_cost": 0.0,
        "agent.value_cost": 0.5,
        "agent.normalise_observations": True,
        "agent.clip_observations": 10.0,
        "agent.scale_rewards": True,
        "agent.clip_rewards": 10.0,
        "agent.distribution": "gaussian",
        "network.torso": "mlp",
        "network.hidden_sizes": (64, 64),
        "network.activation": "tanh",
        "network.shared": False,
    },
)

_PPO_PHYSICS = {
    **cited(
        _BRAX_ANT,
        {
            "env.num_envs": 4096,
            "learner.learning_rate": 3e-4,
            "learner.minibatches": 32,
            "learner.epochs": 4,
            "agent.discount": 0.97,
            "agent.entropy_cost": 0.01,
            "agent.normalise_observations": True,
        },
    ),
    **cited(
        _BRAX_PPO,
        {
            "learner.anneal": False,
            "learner.epsilon": 1e-8,
            "learner.max_grad_norm": 0.0,
            "agent.gae_lambda": 0.95,
            "agent.clip_epsilon": 0.3,
            "agent.clip_value": 0.0,
            "agent.value_cost": 0.5,
            "agent.normalise_advantage": "minibatch",
            "agent.distribution": "tanh_gaussian",
            "network.activation": "swish",
            "network.orthogonal": False,
            "network.shared": False,
        },
    ),
    "layout.unroll_length": Cited(
        80, f"{_BRAX_ANT}: updates of 32 × 2048 unrolls of 5 steps, which are 80 steps of each; advantages reach all 80"
    ),
    "agent.scale_rewards": Cited(True, f"{OURS} (Brax multiplies rewards by a constant per environment)"),
    "network.torso": Cited("mlp", _BRAX_PPO),
    "network.hidden_sizes": Cited((256, 256), f"{OURS} (Brax: policy 4 layers of 32, value 5 of 256)"),
}

_PPO_ATARI = cited(
    _DETAILS,
    {
        "agent.clip_epsilon": 0.1,
        "agent.clip_value": 0.1,
        "agent.clip_rewards": 1.0,
        "network.torso": "nature_cnn",
        "network.core": "frame_stack",
        "network.num_frames": 4,
        "network.shared": True,
    },
)

PPO = {
    **cited(_PPO_PAPER, {"env.num_envs": 8, "layout.unroll_length": 128}),
    **cited(f"{_DETAILS}, Atari", {"learner.minibatches": 4, "learner.epochs": 4}),
}


PPO_FAMILIES: Families = {
    "classic": {**PPO_CLASSIC, **SCALED_DOWN},
    "long": _PPO_LONG,
    "grid": GRID,
    "minatar": _PPO_MINATAR,
    "atari": _PPO_ATARI,
    "continuous": _PPO_CONTINUOUS,
    "physics": _PPO_PHYSICS,
}

# Hundreds of steps on an unroll take the policy far from one that acts a version behind (docs/results.md).
PPO_IN_SEBULBA: Families = {
    ANY: {"layout.policy_lag": Cited("0", "Schulman et al. 2017, algorithm 1 (every row is the policy's own)")},
    "atari": {"layout.policy_lag": Cited("1", "Huang et al. 2023 (Cleanba), section 3")},
}

_DPPO = "Heess et al. 2017 (DPPO), algorithms 1 and 2"

_DPPO_OWN = {
    **cited(
        "Heess et al. 2017 (DPPO), normalisation by statistics that all workers share",
        {
            "agent.scale_rewards": True,
            "agent.smallest_deviation": 0.0,
            "agent.normalise_observations": True,
            "agent.normalise_advantage": "batch",
        },
    ),
    "agent.clip_epsilon": Cited(0.0, f"{_DPPO} (a penalty instead)"),
    "agent.clip_value": Cited(0.0, _DPPO),
}
# The paper has no images.
_DPPO_IMAGES = {**_DPPO_OWN, "agent.normalise_observations": Cited(False, OURS)}

DPPO = {
    **PPO,
    **_DPPO_OWN,
    "agent.kl_penalty": Cited(1.0, f"{OURS} (Schulman et al. 2017, section 4: soon of no importance)"),
}

DPPO_FAMILIES: Families = {
    name: {**family, **(_DPPO_IMAGES if name in ("minatar", "atari") else _DPPO_OWN)}
    for name, family in PPO_FAMILIES.items()
}

DPPO_IN_SEBULBA: Families = {ANY: {"layout.policy_lag": Cited("0", f"{_DPPO} (workers wait for the new parameters)")}}

GPU_SIM = {
    **PPO,
    "env.num_envs": Cited(1024, "Liang et al. 2018, GPU-accelerated robotic simulation (1024 humanoids)"),
}

GPU_SIM_FAMILIES: Families = {
    **PPO_FAMILIES,
    "physics": {**_PPO_PHYSICS, "env.num_envs": GPU_SIM["env.num_envs"]},
}

SYSTEMS = (
    System(
        name="ppo",
        agent=ppo.make,
        config=ppo.Config,
        replay=latest.LATEST,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=ppo.ACTIONS,
        settings=PPO,
        families=PPO_FAMILIES,
        by_layout={"async_gradient": async_gradient.PPO, "sebulba": PPO_IN_SEBULBA},
        summary="Proximal policy optimisation (Schulman et al. 2017), feed-forward or recurrent.",
    ),
    System(
        name="dppo",
        agent=ppo.make,
        config=ppo.Config,
        replay=latest.LATEST,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
        ),
        actions=ppo.ACTIONS,
        settings=DPPO,
        families=DPPO_FAMILIES,
        by_layout={"sebulba": DPPO_IN_SEBULBA},
        summary="PPO of many workers with a penalty on the divergence that adapts (Heess et al. 2017).",
    ),
    System(
        name="gpu_sim",
        agent=ppo.make,
        config=ppo.Config,
        replay=latest.LATEST,
        layouts=(anakin.LAYOUT,),
        actions=ppo.ACTIONS,
        settings=GPU_SIM,
        families=GPU_SIM_FAMILIES,
        summary="PPO on bodies that the accelerator simulates by the thousand (Liang et al. 2018).",
    ),
)
