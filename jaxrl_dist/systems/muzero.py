"""The system MuZero, with its published settings."""

from jaxrl_dist.agents import muzero
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, cited
from jaxrl_dist.systems import System
from jaxrl_dist.systems.families import Families

_MUZERO = "Schrittwieser et al. 2020"

# Of both agents with a search.
OPTIMIZER = cited(
    OURS,
    {
        "learner.optimizer": "adam",
        "learner.anneal": True,
        "learner.learning_rate": 1e-4,
        "learner.epsilon": 1e-8,
        "learner.decay": 0.999,
        "learner.max_grad_norm": 5.0,
        "network.orthogonal": False,
        "env.num_envs": 32,
        "layout.unroll_length": 16,
        "replay.capacity": 1_048_576,
    },
)
SMALL = {
    **cited(
        f"{OURS}: a small network, values of small tasks",
        {
            "network.torso": "mlp",
            "network.hidden_sizes": (128,),
            "network.activation": "relu",
            "agent.num_atoms": 41,
            "agent.value_bound": 20.0,
        },
    ),
    **cited(
        OURS,
        {
            "learner.learning_rate": 1e-3,
            "env.num_envs": 16,
            "replay.capacity": 65_536,
            "replay.min_size": 2_048,
            "replay.batch_size": 128,
            "replay.samples_per_insert": 16.0,
        },
    ),
}

IMAGES = {
    **SMALL,
    **cited("Young & Tian 2019, MinAtar examples/dqn.py", {"network.torso": "minatar_cnn", "replay.min_size": 5_000}),
    **cited(OURS, {"env.num_envs": 32, "replay.capacity": 131_072}),
}

# Above `IMAGES`, as boards are.
BOARD = {
    **cited(f"{OURS}: outcomes of ±1 are ±.42 in h", {"agent.value_bound": 0.5, "agent.num_atoms": 21}),
    **cited("Silver et al. 2018, Methods (outcomes of games are −1, 0 and 1)", {"agent.rescale_values": False}),
    **cited("Danihelka et al. 2022, section 5 (Go and chess)", {"agent.value_scale": 1.0}),
}

MUZERO = {
    **cited(f"{_MUZERO}, pseudocode (make_atari_config)", {"replay.batch_size": 1024}),
    **cited(
        f"{_MUZERO}, appendix G",
        {
            "replay.priority_exponent": 1.0,
            "replay.importance_exponent": 1.0,
            "replay.importance_exponent_end": 1.0,
        },
    ),
    **cited(f"{_MUZERO}, appendix H (2 with reanalysis)", {"replay.samples_per_insert": 0.1}),
    **cited("Ye et al. 2021 (EfficientZero), appendix A.1", {"learner.target_period": 200}),
    **OPTIMIZER,
}

_MODEL = {
    **cited(
        f"{OURS}: a small model, few simulations",
        {"agent.latent_size": 64, "agent.model_size": 128, "agent.simulations": 16},
    ),
    **cited(
        f"{OURS} (as Schaul et al. 2016): with 1 and 1 one item may outweigh its batch; not measured",
        {"replay.priority_exponent": 0.6, "replay.importance_exponent": 0.4},
    ),
    **cited(
        f"{OURS}: values of acting may be too low while returns grow, and priorities may draw just these; not measured",
        {"agent.target_values": True, "learner.target_period": 50},
    ),
    **cited(f"{OURS} (as {_MUZERO}, appendix H, with reanalysis)", {"agent.value_cost": 0.25}),
}

MUZERO_FAMILIES: Families = {
    "classic": {**SMALL, **_MODEL},
    "minatar": {**IMAGES, **_MODEL},
    "atari": cited(
        f"{OURS}: updates enough for a million steps, and a stack of frames ({_MUZERO}, appendix E: 32)",
        {"network.core": "frame_stack", "replay.batch_size": 256, "replay.samples_per_insert": 4.0},
    ),
    "board": {**BOARD, **cited("Silver et al. 2018, equation 1 (the outcome of a game)", {"agent.discount": 1.0})},
}

SYSTEMS = (
    System(
        name="muzero",
        agent=muzero.make,
        config=muzero.Config,
        replay=ring.PRIORITISED,
        layouts=(anakin.LAYOUT, sebulba.LAYOUT),
        actions=muzero.ACTIONS,
        settings=MUZERO,
        families=MUZERO_FAMILIES,
        summary="Tree search in a learned model (Schrittwieser et al. 2020), also Gumbel MuZero.",
        self_play=True,
    ),
)
