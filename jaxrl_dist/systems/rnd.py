"""Settings of random network distillation: those of PPO for a family of tasks, below what the paper changes."""

from jaxrl_dist.agents import rnd
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.replay import latest
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System
from jaxrl_dist.systems.families import Families
from jaxrl_dist.systems.ppo import PPO, PPO_FAMILIES, PPO_IN_SEBULBA

_PAPER = "Burda et al. 2018, appendix, hyperparameters of PPO and RND"
_CODE = "openai/random-network-distillation, ppo_agent.py and run_atari.py"

_OWN = {
    **cited(_PAPER, {"agent.discount": 0.999, "agent.gae_lambda": 0.95, "agent.entropy_cost": 0.001}),
    **cited(_CODE, {"agent.clip_value": 0.0, "agent.value_cost": 1.0, "learner.anneal": False}),
}
# A network of two small layers has no 512 features. An entropy cost of .001 loses CartPole again; PPO's keeps it.
_SMALL = {
    **{flag: value for flag, value in _OWN.items() if flag != "agent.entropy_cost"},
    "agent.feature_size": Cited(64, f"{OURS} (as wide as the torso)"),
}
_ATARI = {
    **_OWN,
    **cited(_PAPER, {"env.num_envs": 128, "learner.learning_rate": 1e-4}),
    **cited(_CODE, {"learner.max_grad_norm": 0.0}),
    "learner.epsilon": Cited(1e-8, f"{_CODE} (TensorFlow's own)"),
}

RND = {**PPO, **_OWN}
RND_FAMILIES: Families = {
    name: {**family, **(_ATARI if name == "atari" else _SMALL)} for name, family in PPO_FAMILIES.items()
}

SYSTEMS = (
    System(
        name="rnd",
        agent=rnd.make,
        config=rnd.Config,
        replay=latest.LATEST,
        layouts=(anakin.LAYOUT, sebulba.LAYOUT),
        actions=rnd.ACTIONS,
        settings=RND,
        families=RND_FAMILIES,
        by_layout={"sebulba": PPO_IN_SEBULBA},
        summary="PPO with a bonus for what a network cannot yet predict (Burda et al. 2018).",
    ),
)
