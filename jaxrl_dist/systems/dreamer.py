"""The system DreamerV3, with its published settings."""

from jaxrl_dist.agents import dreamer
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System
from jaxrl_dist.systems.families import Families

_TABLE = "Hafner et al. 2025, hyperparameters"
_CODE = "Hafner et al. 2025, released code, configs.yaml"

DREAMER = {
    **cited(
        _TABLE,
        {
            "replay.batch_size": 16,
            "learner.optimizer": "laprop",
            "learner.learning_rate": 4e-5,
            "learner.epsilon": 1e-20,
            "learner.momentum": 0.9,
            "learner.max_grad_ratio": 0.3,
            "learner.target_rate": 0.02,
            "learner.target_period": 1,
            "replay.samples_per_insert": 32.0,
        },
    ),
    **cited(_CODE, {"learner.decay": 0.999, "learner.max_grad_norm": 0.0, "learner.anneal": False, "env.num_envs": 16}),
    "replay.capacity": Cited(4_999_168, f"{_TABLE} (5M), a multiple of 16 × 64"),
    "replay.min_size": Cited(1_024, f"{_CODE} (one batch of 16 × 64 rows)"),
    "layout.unroll_length": Cited(
        16, f"{OURS}: a window begins where an unroll does, and teaches the critic no value of its last row"
    ),
}

# Of the size of the networks of other agents: an update of 16 windows takes a twentieth of a second on a core.
_SMALL = {
    **cited(
        f"{OURS}: small networks for small tasks",
        {
            "agent.units": 64,
            "agent.layers": 2,
            "agent.recurrent_units": 64,
            "agent.blocks": 1,
            "agent.latents": 8,
            "agent.classes": 8,
            "agent.channels": 4,
            "agent.num_bins": 63,
        },
    ),
    **cited(
        f"{OURS}: short windows, so that there are more updates",
        {
            "agent.length": 16,
            "env.num_envs": 8,
            "layout.unroll_length": 8,
            "replay.capacity": 65_536,
            "replay.min_size": 512,
        },
    ),
    # With the model's step size and an entropy_cost of 3e-4 the policy had chosen before the model knew the task.
    **cited(
        f"{OURS}: larger steps for small networks, the policy's behind the model's",
        {
            "learner.learning_rate": 1e-3,
            "agent.policy_learning_rate": 2e-4,
            "agent.critic_learning_rate": 5e-4,
            "agent.entropy_cost": 3e-3,
        },
    ),
}

DREAMER_FAMILIES: Families = {"classic": _SMALL, "minatar": _SMALL, "continuous": _SMALL, "physics": _SMALL}

SYSTEMS = (
    System(
        name="dreamer",
        agent=dreamer.make,
        config=dreamer.Config,
        replay=ring.UNIFORM,
        layouts=(anakin.LAYOUT, sebulba.LAYOUT),
        actions=dreamer.ACTIONS,
        settings=DREAMER,
        families=DREAMER_FAMILIES,
        summary="A world model, and an actor and a critic that learn in it: DreamerV3 (Hafner et al. 2025).",
    ),
)
