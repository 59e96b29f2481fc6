"""Settings of evolution strategies, from the paper's released code where tasks are those of the paper."""

from jaxrl_dist.agents import es
from jaxrl_dist.parallel import anakin
from jaxrl_dist.replay import latest
from jaxrl_dist.settings import OURS, cited
from jaxrl_dist.systems import System
from jaxrl_dist.systems.families import Families

_CODE = "Salimans et al. 2017, openai/evolution-strategies-starter"

ES = {
    **cited(
        f"{_CODE}, es_distributed/optimizers.py (Adam)",
        {"learner.optimizer": "adam", "learner.anneal": False, "learner.max_grad_norm": 0.0, "learner.epsilon": 1e-8},
    ),
    **cited(
        f"{_CODE}, configurations/humanoid.json",
        {"learner.learning_rate": 1e-2, "network.torso": "mlp", "network.activation": "tanh"},
    ),
    **cited(OURS, {"env.num_envs": 256, "layout.unroll_length": 1000}),
}

# Small networks and few members: more noise, and larger steps. Unrolls hold an episode.
_SMALL = cited(OURS, {"network.hidden_sizes": (32, 32), "learner.learning_rate": 0.02, "agent.sigma": 0.1})
_IMAGES = cited(OURS, {"network.hidden_sizes": (64, 64)})

ES_FAMILIES: Families = {
    "classic": {**_SMALL, **cited(OURS, {"env.num_envs": 128, "layout.unroll_length": 500})},
    "minatar": {**_SMALL, **_IMAGES},
    "continuous": {
        **_SMALL,
        **cited(OURS, {"env.num_envs": 256, "layout.unroll_length": 200}),
        **cited(
            f"{OURS}, nine pairs of step size and noise on Pendulum",
            {"learner.learning_rate": 0.03, "agent.weight_decay": 0.0},
        ),
    },
    "physics": cited(
        f"{_CODE}, es_distributed/policies.py",
        {"agent.normalise_observations": True, "agent.clip_observations": 5.0},
    ),
}

SYSTEMS = (
    System(
        name="es",
        agent=es.make,
        config=es.Config,
        replay=latest.LATEST,
        layouts=(anakin.LAYOUT,),
        actions=es.ACTIONS,
        settings=ES,
        families=ES_FAMILIES,
        summary="Evolution strategies, environments as members (Salimans et al. 2017).",
        sequences=True,
    ),
)
