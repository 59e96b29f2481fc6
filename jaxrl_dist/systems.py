"""The table of systems: which agent, replay and layouts make each one, and its published settings with their sources.

Plain data: no imports of the project or of JAX, so that flags are checked against it within milliseconds.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

FAMILIES = ("classic", "minatar", "atari", "continuous", "physics")


class Setting(NamedTuple):
    """A value for a flag, and where it was published (`this project` where it was not)."""

    value: Any
    source: str


class System(NamedTuple):
    """One row of the table.

    Attributes:
        name: as in `--system`.
        agent: module under `agents/`.
        replay: `latest` or `uniform`.
        layouts: layouts that it can run in, its own first.
        settings: flag name -> value of the system's paper, above the defaults of the Config classes.
        families: task family -> flag name -> value, above `settings`.
        summary: one line for `--help`.
    """

    name: str
    agent: str
    replay: str
    layouts: tuple[str, ...]
    settings: Mapping[str, Setting]
    families: Mapping[str, Mapping[str, Setting]]
    summary: str


def _cited(source: str, values: Mapping[str, Any]) -> dict[str, Setting]:
    """Gives values their common source."""
    return {name: Setting(value, source) for name, value in values.items()}


_PPO_PAPER = "Schulman et al. 2017, table 5"
_DETAILS = "Huang et al. 2022, The 37 implementation details of PPO"
_PUREJAXRL_PPO = "PureJaxRL ppo.py (Lu et al. 2022)"
_PUREJAXRL_MINATAR = "PureJaxRL examples/brax_minatar.ipynb (Lu et al. 2022)"
_PUREJAXRL_DQN = "PureJaxRL dqn.py (Lu et al. 2022)"
_CLEANRL_CONTINUOUS = "CleanRL ppo_continuous_action.py (Huang et al. 2022)"
_BRAX_ANT = "Brax notebooks/training.ipynb, ant (Freeman et al. 2021)"
_BRAX_PPO = "Brax training/agents/ppo (Freeman et al. 2021)"
_DQN_PAPER = "Mnih et al. 2015, extended table 1"
_DQN_CODE = "Mnih et al. 2015, released code"
_MINATAR_DQN = "Young & Tian 2019, MinAtar examples/dqn.py"
_REVISITING = "Obando-Ceron & Castro 2021, Configs/dqn_breakout.gin"
_OURS = "this project"

_PPO_CLASSIC = _cited(
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

_PPO_MINATAR = {
    **_PPO_CLASSIC,
    **_cited(
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

_PPO_CONTINUOUS = _cited(
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
    **_cited(
        _BRAX_ANT,
        {
            "env.num_envs": 4096,
            "layout.unroll_length": 5,
            "learner.learning_rate": 3e-4,
            "learner.minibatches": 32,
            "learner.epochs": 4,
            "agent.discount": 0.97,
            "agent.entropy_cost": 0.01,
            "agent.normalise_observations": True,
        },
    ),
    **_cited(
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
    "agent.scale_rewards": Setting(True, f"{_OURS} (Brax multiplies rewards by a constant per environment)"),
    "network.torso": Setting("mlp", _BRAX_PPO),
    "network.hidden_sizes": Setting((256, 256), f"{_OURS} (Brax: policy 4 layers of 32, value 5 of 256)"),
}

_PPO_ATARI = _cited(
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

_DQN_CLASSIC = {
    **_cited(
        _PUREJAXRL_DQN,
        {
            "env.num_envs": 10,
            "layout.unroll_length": 1,
            "replay.capacity": 10_000,
            "replay.batch_size": 128,
            "replay.samples_per_insert": 12.8,
            "learner.optimizer": "adam",
            "learner.learning_rate": 2.5e-4,
            "learner.epsilon": 1e-8,
            "learner.decay": 0.999,
            "agent.discount": 0.99,
            "agent.epsilon_start": 1.0,
            "agent.epsilon_end": 0.05,
            "agent.epsilon_fraction": 0.5,
            "agent.error_clip": 0.0,
            "network.torso": "mlp",
            "network.hidden_sizes": (120, 84),
            "network.activation": "relu",
            "network.orthogonal": False,
        },
    ),
    "learner.target_period": Setting(50, f"{_PUREJAXRL_DQN}, 500 environment steps of 10 per update"),
    "replay.min_size": Setting(1_000, f"{_OURS} (PureJaxRL waits for 10,000 rows, its whole buffer)"),
    "agent.evaluation_epsilon": Setting(0.0, f"{_OURS}: the greedy policy is evaluated"),
}

_DQN_MINATAR = {
    **_cited(
        _MINATAR_DQN,
        {
            "env.num_envs": 1,
            "layout.unroll_length": 1,
            "replay.capacity": 100_000,
            "replay.batch_size": 32,
            "replay.min_size": 5_000,
            "replay.samples_per_insert": 32.0,
            "learner.target_period": 1_000,
            "agent.discount": 0.99,
            "agent.epsilon_start": 1.0,
            "agent.epsilon_end": 0.1,
            "agent.epsilon_fraction": 0.02,
            "network.torso": "minatar_cnn",
            "network.orthogonal": False,
        },
    ),
    **_cited(
        _REVISITING,
        {
            "learner.optimizer": "adam",
            "learner.learning_rate": 2.5e-4,
            "learner.epsilon": 3.125e-4,
            "learner.decay": 0.999,
        },
    ),
}

_DQN_ATARI = _cited(
    _DQN_PAPER,
    {
        "agent.clip_rewards": 1.0,
        "network.torso": "nature_cnn",
        "network.core": "frame_stack",
        "network.num_frames": 4,
    },
)

_ROWS = (
    System(
        name="ppo",
        agent="ppo",
        replay="latest",
        layouts=("anakin", "sebulba"),
        settings={
            **_cited(_PPO_PAPER, {"env.num_envs": 8, "layout.unroll_length": 128}),
            **_cited(f"{_DETAILS}, Atari", {"learner.minibatches": 4, "learner.epochs": 4}),
        },
        families={
            "classic": _PPO_CLASSIC,
            "minatar": _PPO_MINATAR,
            "atari": _PPO_ATARI,
            "continuous": _PPO_CONTINUOUS,
            "physics": _PPO_PHYSICS,
        },
        summary="Proximal policy optimisation (Schulman et al. 2017), feed-forward or recurrent.",
    ),
    System(
        name="dqn",
        agent="dqn",
        replay="uniform",
        layouts=("anakin", "sebulba"),
        settings={
            **_cited(
                _DQN_CODE,
                {
                    "env.num_envs": 1,
                    "layout.unroll_length": 4,
                    "learner.optimizer": "rmsprop_centred",
                    "learner.learning_rate": 2.5e-4,
                    "learner.decay": 0.95,
                    "learner.anneal": False,
                    "learner.max_grad_norm": 0.0,
                    "network.orthogonal": False,
                },
            ),
            "learner.epsilon": Setting(9.765625e-6, f"{_DQN_CODE}: .01 for sums over 32 rows is .01 / 32² for means"),
            "learner.target_period": Setting(2_500, f"{_DQN_CODE}: every 10,000 steps, of which 4 make an update"),
        },
        families={"classic": _DQN_CLASSIC, "minatar": _DQN_MINATAR, "atari": _DQN_ATARI},
        summary="Deep Q-learning (Mnih et al. 2015) on a uniform replay.",
    ),
)

SYSTEMS: Mapping[str, System] = {row.name: row for row in _ROWS}
