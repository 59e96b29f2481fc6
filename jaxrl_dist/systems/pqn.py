"""Settings of the parallelised Q-network, from the paper's released code, PureJaxQL."""

from jaxrl_dist.agents import pqn
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import latest
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient
from jaxrl_dist.systems.families import ANY, Families

_PAPER = "Gallici et al. 2024 (PQN)"
_ATARI = f"{_PAPER}, PureJaxQL pqn_atari.yaml"
_CARTPOLE = f"{_PAPER}, PureJaxQL pqn_cartpole.yaml"
_MINATAR = f"{_PAPER}, PureJaxQL pqn_minatar.yaml"
_RADAM = f"{_PAPER}, PureJaxQL pqn_gymnax.py: optax.radam (Liu et al. 2020)"
_HE_NORMAL = f"{OURS}: of the scale of {_PAPER}'s he_normal"

_PQN_CLASSIC = {
    **cited(
        _CARTPOLE,
        {
            "env.num_envs": 32,
            "layout.unroll_length": 64,
            "learner.anneal": True,
            "learner.minibatches": 16,
            "learner.epochs": 4,
            "learner.max_grad_norm": 10.0,
            "agent.discount": 0.99,
            "agent.trace_decay": 0.95,
            "agent.epsilon_start": 1.0,
            "agent.epsilon_end": 0.2,
            "agent.epsilon_fraction": 0.2,
            "network.hidden_sizes": (256, 256),
        },
    ),
    # A tenth of a reward that is rare disappears behind the network's first values.
    **cited(
        f"{OURS}, chosen on CartPole and Catch",
        {"learner.learning_rate": 2.5e-4, "agent.reward_scale": 1.0},
    ),
    **cited(
        f"{_PAPER}, PureJaxQL pqn_gymnax.py",
        {"network.torso": "mlp", "network.activation": "relu", "network.orthogonal": False},
    ),
}

_PQN_MINATAR = {
    **cited(
        _MINATAR,
        {
            "env.num_envs": 128,
            "layout.unroll_length": 32,
            "learner.learning_rate": 5e-4,
            "learner.anneal": True,
            "learner.minibatches": 32,
            "learner.epochs": 2,
            "learner.max_grad_norm": 10.0,
            "agent.discount": 0.99,
            "agent.trace_decay": 0.65,
            "agent.epsilon_start": 1.0,
            "agent.epsilon_end": 0.05,
            "agent.epsilon_fraction": 0.1,
        },
    ),
    "network.torso": Cited("minatar_cnn", f"{_PAPER}, PureJaxQL pqn_minatar.py"),
    "network.orthogonal": Cited(True, _HE_NORMAL),
}

_PQN_ATARI = {
    **cited(
        f"{_PAPER}, PureJaxQL pqn_atari.py",
        {
            "agent.clip_rewards": 1.0,
            "network.torso": "nature_cnn",
            "network.core": "frame_stack",
            "network.num_frames": 4,
        },
    ),
    "network.orthogonal": Cited(True, _HE_NORMAL),
}

PQN = {
    **cited(
        _ATARI,
        {
            "env.num_envs": 128,
            "layout.unroll_length": 32,
            "learner.learning_rate": 2.5e-4,
            "learner.anneal": False,
            "learner.minibatches": 32,
            "learner.epochs": 2,
            "learner.max_grad_norm": 10.0,
            "network.layer_norm": True,
        },
    ),
    **cited(
        _RADAM,
        {"learner.optimizer": "radam", "learner.momentum": 0.9, "learner.decay": 0.999, "learner.epsilon": 1e-8},
    ),
}

PQN_IN_SEBULBA: Families = {
    ANY: {"layout.policy_lag": Cited("0", f"{_PAPER}, algorithm 1 (rows of the newest policy)")}
}

PQN_FAMILIES: Families = {"classic": _PQN_CLASSIC, "minatar": _PQN_MINATAR, "atari": _PQN_ATARI}

SYSTEMS = (
    System(
        name="pqn",
        agent=pqn.make,
        config=pqn.Config,
        replay=latest.LATEST,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=pqn.ACTIONS,
        settings=PQN,
        families=PQN_FAMILIES,
        by_layout={"sebulba": PQN_IN_SEBULBA, "async_gradient": async_gradient.PQN},
        summary="Q-learning without replay or target network (Gallici et al. 2024), feed-forward or recurrent.",
    ),
)
