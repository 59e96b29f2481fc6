"""Settings of the DQN family: DQN, QR-DQN, Rainbow, Ape-X DQN."""

from jaxrl_dist.agents import dqn
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient
from jaxrl_dist.systems.families import Families

_ZOO = "RL Baselines3 Zoo dqn.yml (Raffin 2020), LunarLander-v3"
_PUREJAXRL_DQN = "PureJaxRL dqn.py (Lu et al. 2022)"
_DQN_PAPER = "Mnih et al. 2015, extended table 1"
_DQN_CODE = "Mnih et al. 2015, released code"
_MINATAR_DQN = "Young & Tian 2019, MinAtar examples/dqn.py"
_REVISITING = "Obando-Ceron & Castro 2021, Configs/dqn_breakout.gin"
_RAINBOW = "Hessel et al. 2018, table 1"
_APE_X = "Horgan et al. 2018, appendix C"
_QR_DQN = "Dabney et al. 2018 (QR-DQN), section 5.2"

DQN_CLASSIC = {
    **cited(
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
    "learner.target_period": Cited(50, f"{_PUREJAXRL_DQN}, 500 environment steps of 10 per update"),
    "replay.min_size": Cited(1_000, f"{OURS} (PureJaxRL waits for 10,000 rows, its whole buffer)"),
    "agent.evaluation_epsilon": Cited(0.0, f"{OURS}: the greedy policy is evaluated"),
}

# Those of DQN and Gorila, which lose CartPole a fifth as often by them as by PureJaxRL's own (docs/results.md).
_STEADY_CLASSIC = {
    **DQN_CLASSIC,
    "learner.learning_rate": Cited(1e-4, "Stable-Baselines3 dqn.py (Raffin et al. 2021)"),
    "learner.target_period": Cited(100, f"{OURS}: with 50, PureJaxRL's, values grow ten times too large"),
    "agent.epsilon_end": Cited(0.1, _DQN_PAPER),
}

# Above those of classic control, whose squared errors are too large where returns are in the hundreds: without the two
# clips one seed ends at −119 on LunarLander after 200k steps, with them at 263.
_DQN_LONG = {
    **cited(
        _ZOO,
        {
            "replay.capacity": 50_000,
            "replay.batch_size": 128,
            "replay.samples_per_insert": 128.0,
            "learner.learning_rate": 6.3e-4,
            "learner.target_period": 250,
            "agent.discount": 0.99,
            "agent.epsilon_end": 0.1,
            "agent.epsilon_fraction": 0.12,
            "network.hidden_sizes": (256, 256),
        },
    ),
    **cited("Stable-Baselines3 dqn.py (Raffin et al. 2021)", {"agent.error_clip": 1.0, "learner.max_grad_norm": 10.0}),
}

_DQN_MINATAR = {
    **cited(
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
    **cited(
        _REVISITING,
        {
            "learner.optimizer": "adam",
            "learner.learning_rate": 2.5e-4,
            "learner.epsilon": 3.125e-4,
            "learner.decay": 0.999,
        },
    ),
}

_DQN_ATARI = cited(
    _DQN_PAPER,
    {
        "agent.clip_rewards": 1.0,
        "network.torso": "nature_cnn",
        "network.core": "frame_stack",
        "network.num_frames": 4,
    },
)

_RAINBOW_PARTS = {
    "agent.double": True,
    "agent.dueling": True,
    "agent.n_step": 3,
    "agent.num_atoms": 51,
    "agent.noise": 0.5,
    "agent.epsilon_start": 0.0,
    "agent.epsilon_end": 0.0,
}

_RAINBOW_ATARI = {
    **_DQN_ATARI,
    **cited(_RAINBOW, {"agent.value_low": -10.0, "agent.value_high": 10.0, "network.head_size": 512}),
    "agent.evaluation_epsilon": Cited(0.001, "Dopamine's rainbow.gin (Castro et al. 2018), epsilon_eval"),
}

_RAINBOW_CLASSIC = {
    **DQN_CLASSIC,
    **cited(_RAINBOW, {"agent.epsilon_start": 0.0, "agent.epsilon_end": 0.0}),
    "network.head_size": Cited(84, f"{_PUREJAXRL_DQN}: the last layer, in each head"),
}

_RAINBOW_MINATAR = {
    **_DQN_MINATAR,
    **cited(
        _RAINBOW,
        {"agent.epsilon_start": 0.0, "agent.epsilon_end": 0.0, "agent.value_low": -10.0, "agent.value_high": 10.0},
    ),
    "network.head_size": Cited(128, f"{_MINATAR_DQN}: the last layer, in each head"),
}

_APE_X_CLASSIC = {
    **{name: value for name, value in DQN_CLASSIC.items() if not name.startswith("agent.")},
    **cited(
        OURS,
        {
            "env.num_envs": 32,
            "layout.unroll_length": 4,
            "replay.samples_per_insert": 8.0,
            "learner.target_period": 100,
        },
    ),
    **cited(
        f"{OURS}: 20 of 20 seeds keep CartPole, and 16 with half of it (docs/results.md)", {"replay.capacity": 102_400}
    ),
    "agent.discount": DQN_CLASSIC["agent.discount"],
    "agent.error_clip": DQN_CLASSIC["agent.error_clip"],
}

_APE_X_MINATAR = {
    **{name: value for name, value in _DQN_MINATAR.items() if not name.startswith("agent.")},
    **cited(OURS, {"env.num_envs": 32, "layout.unroll_length": 4, "replay.capacity": 102_400}),
    "agent.discount": _DQN_MINATAR["agent.discount"],
}

DQN = {
    **cited(
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
    "learner.epsilon": Cited(9.765625e-6, f"{_DQN_CODE}: .01 for sums over 32 rows is .01 / 32² for means"),
    "learner.target_period": Cited(2_500, f"{_DQN_CODE}: every 10,000 steps, of which 4 make an update"),
}

QR_DQN = {
    **DQN,
    **cited(
        _QR_DQN,
        {
            "agent.distribution": "quantile",
            "agent.num_atoms": 200,
            "agent.error_clip": 1.0,
            "agent.epsilon_end": 0.01,
            "learner.optimizer": "adam",
            "learner.learning_rate": 5e-5,
            "learner.epsilon": 3.125e-4,
            "learner.decay": 0.999,
        },
    ),
    "agent.evaluation_epsilon": Cited(0.001, f"{_QR_DQN}, as C51's (Bellemare et al. 2017, section 5)"),
}

# DQN's family squares errors. With errors that are clipped at 1, values of up to 100 grow without bound on CartPole.
SMALL_VALUES = cited(f"{OURS}: values of 10, of which errors of 1 are a part", {"agent.reward_scale": 0.1})

# Of K quantiles each update compares K² pairs: with the paper's 200 a CPU needs several times as long.
_FEW = {
    "agent.num_atoms": Cited(32, f"{OURS} (Dabney et al. 2018: 200)"),
    "agent.error_clip": Cited(1.0, _QR_DQN),
}

RAINBOW = {
    **cited(
        _RAINBOW,
        {
            **_RAINBOW_PARTS,
            "replay.min_size": 20_000,
            "replay.priority_exponent": 0.5,
            "replay.importance_exponent": 0.4,
            "replay.importance_exponent_end": 1.0,
            "learner.optimizer": "adam",
            "learner.learning_rate": 6.25e-5,
            "learner.epsilon": 1.5e-4,
        },
    ),
    **cited(
        _DQN_CODE,
        {"env.num_envs": 1, "layout.unroll_length": 4, "learner.anneal": False, "network.orthogonal": False},
    ),
    "agent.evaluation_epsilon": Cited(0.0, f"{OURS}: the greedy policy is evaluated"),
    "learner.max_grad_norm": Cited(10.0, "van Hasselt et al. 2019, appendix (used in Rainbow and its successor)"),
    "learner.target_period": Cited(2_000, f"{_RAINBOW}: every 8,000 steps, of which 4 make an update"),
}

APE_X = {
    **cited(
        _APE_X,
        {
            "agent.double": True,
            "agent.dueling": True,
            "agent.n_step": 3,
            "agent.exploration": "ladder",
            "agent.actor_errors": True,
            "replay.batch_size": 512,
            "replay.min_size": 50_000,
            "replay.priority_exponent": 0.6,
            "replay.importance_exponent": 0.4,
            "replay.importance_exponent_end": 0.4,
            "learner.optimizer": "rmsprop_centred",
            "learner.learning_rate": 6.25e-5,
            "learner.decay": 0.95,
            "learner.epsilon": 1.5e-7,
            "learner.anneal": False,
            "learner.max_grad_norm": 40.0,
            "learner.target_period": 2_500,
        },
    ),
    "agent.evaluation_epsilon": Cited(0.0, f"{OURS}: the greedy policy is evaluated"),
    "network.orthogonal": Cited(False, _DQN_CODE),
    "env.num_envs": Cited(256, "Horgan et al. 2018, section 4.1 (256 and 360 actors)"),
    "layout.unroll_length": Cited(25, f"{OURS} (actors send 50 transitions at a time)"),
    "replay.capacity": Cited(2_048_000, f"{_APE_X} (2M), a multiple of 256 × 25"),
    "replay.samples_per_insert": Cited(0.8, f"{_APE_X}: 19 batches of 512 for 12,500 transitions a second"),
}

GORILA = {
    **DQN,
    "learner.optimizer": Cited("rmsprop_centred", f"{_DQN_CODE} (Nair et al. 2015: adagrad)"),
    "learner.target_period": Cited(2_500, f"{_DQN_CODE} (Nair et al. 2015: 60,000 updates of the server)"),
    "layout.num_workers": Cited(4, f"{OURS} (Nair et al. 2015: 100 on as many machines)"),
    "layout.outlier_deviations": Cited(5.0, f"{OURS} (Nair et al. 2015, section 4: several)"),
    "layout.max_gradient_age": Cited(16, f"{OURS} (Nair et al. 2015, section 4: a threshold)"),
}

_GORILA_CLASSIC = {
    **_STEADY_CLASSIC,
    "learner.anneal": Cited(
        True, f"{OURS}: gradients that are updates old lose at a constant step size what was learned"
    ),
}


DQN_FAMILIES: Families = {
    "classic": _STEADY_CLASSIC,
    "long": _DQN_LONG,
    "minatar": _DQN_MINATAR,
    "atari": _DQN_ATARI,
}
GORILA_FAMILIES: Families = {
    "classic": _GORILA_CLASSIC,
    "long": _DQN_LONG,
    "minatar": _DQN_MINATAR,
    "atari": _DQN_ATARI,
}
QR_DQN_FAMILIES: Families = {
    "classic": {**DQN_CLASSIC, **_FEW, **SMALL_VALUES},
    "minatar": {**_DQN_MINATAR, **_FEW},
    "atari": _DQN_ATARI,
}
RAINBOW_FAMILIES: Families = {"classic": _RAINBOW_CLASSIC, "minatar": _RAINBOW_MINATAR, "atari": _RAINBOW_ATARI}
APE_X_FAMILIES: Families = {
    "classic": _APE_X_CLASSIC,
    "minatar": _APE_X_MINATAR,
    "atari": {
        **_DQN_ATARI,
        **cited(_APE_X, {"network.head_size": 512}),
        "agent.error_clip": Cited(0.0, "Horgan et al. 2018, section 3.1 (half the squared error)"),
        "agent.evaluation_epsilon": Cited(0.001, f"{OURS}, as SEED RL's released code has it for R2D2"),
    },
}

SYSTEMS = (
    System(
        name="dqn",
        agent=dqn.make,
        config=dqn.Config,
        replay=ring.UNIFORM,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=dqn.ACTIONS,
        settings=DQN,
        families=DQN_FAMILIES,
        by_layout={"async_gradient": async_gradient.DQN},
        summary="Deep Q-learning (Mnih et al. 2015) on a uniform replay.",
    ),
    System(
        name="qr_dqn",
        agent=dqn.make,
        config=dqn.Config,
        replay=ring.UNIFORM,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=dqn.ACTIONS,
        settings=QR_DQN,
        families=QR_DQN_FAMILIES,
        by_layout={"async_gradient": async_gradient.VALUES},
        summary="DQN that learns quantiles of the returns (Dabney et al. 2018).",
    ),
    System(
        name="gorila",
        agent=dqn.make,
        config=dqn.Config,
        replay=ring.UNIFORM,
        layouts=(async_gradients.LAYOUT,),
        actions=dqn.ACTIONS,
        settings=GORILA,
        families=GORILA_FAMILIES,
        by_layout={"async_gradient": async_gradient.DQN},
        summary="DQN of asynchronous workers and a parameter server (Nair et al. 2015), each with a replay of its own.",
    ),
    System(
        name="rainbow",
        agent=dqn.make,
        config=dqn.Config,
        replay=ring.PRIORITISED,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=dqn.ACTIONS,
        settings=RAINBOW,
        families=RAINBOW_FAMILIES,
        by_layout={"async_gradient": async_gradient.VALUES},
        summary="DQN with double, dueling, prioritised, n-step, distributional and noisy parts (Hessel et al. 2018).",
    ),
    System(
        name="apex_dqn",
        agent=dqn.make,
        config=dqn.Config,
        replay=ring.PRIORITISED,
        layouts=(
            sebulba.LAYOUT,
            anakin.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=dqn.ACTIONS,
        settings=APE_X,
        families=APE_X_FAMILIES,
        by_layout={"async_gradient": async_gradient.APE_X},
        summary="Many actors with a ladder of ε, prioritised replay with their own errors (Horgan et al. 2018).",
    ),
)
