"""The system V-MPO, with its published settings."""

from jaxrl_dist.agents import vmpo
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import latest
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient, ppo
from jaxrl_dist.systems.families import ANY, Families

_PAPER = "Song et al. 2020, appendix D"
_UNCHECKED = f"{_PAPER}; from the paper's text, not checked against a copy"

VMPO = {
    **cited(
        _UNCHECKED,
        {
            "layout.unroll_length": 40,
            "learner.learning_rate": 1e-4,
            "learner.anneal": False,
            "learner.max_grad_norm": 0.0,
            # Steps between two copies of the policy (T_target).
            "learner.epochs": 10,
        },
    ),
    **cited(f"{OURS}, as PPO's", {"learner.optimizer": "adam", "learner.epsilon": 1e-5}),
    "env.num_envs": Cited(32, f"{OURS} (Song et al. 2020: batches of 128 unrolls)"),
}


def _family(name: str) -> dict[str, Cited]:
    """Returns the values of PPO's family but for those of its loss."""
    return {flag: value for flag, value in ppo.PPO_FAMILIES[name].items() if not flag.startswith("agent.")}


_SMALL = cited(
    f"{OURS}: as many gradient steps as PPO's, along advantages of PPO's",
    {"agent.gae_lambda": 0.95, "agent.temperature_bound": 0.1, "agent.policy_bound": 0.01},
)

_REAL = {
    **cited(_UNCHECKED, {"agent.temperature_bound": 0.01, "agent.multiplier": 1.0}),
    **cited(
        f"{OURS}, as PPO's family has them",
        {"agent.gae_lambda": 0.95, "agent.normalise_observations": True, "agent.scale_rewards": True},
    ),
}

VMPO_FAMILIES: Families = {
    "classic": {
        **_family("classic"),
        **_SMALL,
        **cited(f"{OURS}: 20 of 20 seeds keep CartPole, 18 without (docs/results.md)", {"network.layer_norm": True}),
    },
    "grid": ppo.SAMPLED,
    "minatar": {**_family("minatar"), **_SMALL},
    "atari": {
        **cited(_PAPER, {"agent.clip_rewards": 1.0, "network.torso": "nature_cnn", "network.core": "frame_stack"}),
    },
    "continuous": {**_family("continuous"), **_REAL},
    "physics": {**_family("physics"), **_REAL},
}

SYSTEMS = (
    System(
        name="vmpo",
        agent=vmpo.make,
        config=vmpo.Config,
        replay=latest.LATEST,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=vmpo.ACTIONS,
        settings=VMPO,
        families=VMPO_FAMILIES,
        by_layout={
            "sebulba": {ANY: cited(f"{OURS}: its weights are of the newest policy", {"layout.policy_lag": "0"})},
            "async_gradient": async_gradient.VMPO,
        },
        summary="A policy that follows the better half of its actions within bounds (Song et al. 2020).",
    ),
)
