"""The system of discrete SAC, with its published settings."""

from jaxrl_dist.agents import discrete_sac
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient, dqn, ppo
from jaxrl_dist.systems.families import Families

_PAPER = "Christodoulou 2019, appendix B"
_CLEANRL = "CleanRL's sac_atari.py (Huang et al. 2022)"

DISCRETE_SAC = {
    **cited(
        _PAPER,
        {
            "env.num_envs": 1,
            "layout.unroll_length": 4,
            "replay.capacity": 1_000_000,
            "replay.min_size": 20_000,
            "replay.batch_size": 64,
            "replay.samples_per_insert": 16.0,
            "learner.optimizer": "adam",
            "learner.learning_rate": 3e-4,
            "learner.target_period": 2_000,
            "learner.anneal": False,
            "learner.max_grad_norm": 0.0,
            "network.orthogonal": False,
        },
    ),
    "learner.epsilon": Cited(1e-4, _CLEANRL),
}

# All but the agent's values are DQN's.
_CLASSIC = {
    **{name: value for name, value in dqn.DQN_CLASSIC.items() if not name.startswith("agent.")},
    **cited(
        "Haarnoja et al. 2018 (SAC), table 1",
        {"learner.learning_rate": 3e-4, "learner.target_period": 1, "learner.target_rate": 0.005},
    ),
    **cited(
        f"{OURS}: on a small task random actions cost more than they find",
        {"agent.random_share": 0.02, "agent.target_entropy": 0.5},
    ),
    "agent.discount": dqn.DQN_CLASSIC["agent.discount"],
}

_MINATAR = {
    **{name: value for name, value in dqn.DQN_FAMILIES["minatar"].items() if not name.startswith("agent.")},
    "agent.random_share": Cited(0.02, f"{OURS}, as the schedule of ε of MinAtar's DQN"),
}

DISCRETE_SAC_FAMILIES: Families = {
    "classic": _CLASSIC,
    "grid": ppo.SAMPLED,
    "minatar": _MINATAR,
    "atari": {
        **cited(_PAPER, {"agent.clip_rewards": 1.0, "network.torso": "nature_cnn"}),
        **cited(_PAPER, {"network.core": "frame_stack", "network.num_frames": 4}),
    },
}

SYSTEMS = (
    System(
        name="discrete_sac",
        agent=discrete_sac.make,
        config=discrete_sac.Config,
        replay=ring.UNIFORM,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=discrete_sac.ACTIONS,
        settings=DISCRETE_SAC,
        families=DISCRETE_SAC_FAMILIES,
        by_layout={"async_gradient": async_gradient.VALUES},
        summary="SAC over discrete actions, by exact expectations (Christodoulou 2019).",
    ),
)
