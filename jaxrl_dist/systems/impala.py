"""Settings of IMPALA and of SEED RL's form of it.

The paper's loss is summed, so gradients grow with the number of rows and the size of rewards, and the ε of RMSProp must
grow with them. On small tasks a mean takes its place, and Adam without momentum, as in SEED RL. With sums, .5 for ε and
a step of 2e-3, CartPole and Catch were learned, but FrozenLake, whose reward is 0 in most episodes, was not, nor with
means and RMSProp, which forgets a rare gradient sooner. Every game of MinAtar's Breakout is the same: with sums the
policy settled on the first five or six bricks; with means, more rows and more entropy it goes on learning.
"""

from jaxrl_dist.agents import impala
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import latest, mixed
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient, ppo
from jaxrl_dist.systems.families import ANY, Families

_IMPALA = "Espeholt et al. 2018 (IMPALA), appendix (Atari)"
_IMPALA_CODE = "IMPALA's released code, experiment.py (2018)"
_SEED = "SEED RL's released code, dmlab/vtrace_main.py and agents/vtrace/learner.py (2020)"
_PUREJAXRL_MINATAR = "PureJaxRL examples/brax_minatar.ipynb (Lu et al. 2022)"

_CLASSIC = cited(
    f"{OURS}: with the paper's values 2 of 20 seeds end with CartPole solved",
    {
        "env.num_envs": 16,
        "layout.unroll_length": 10,
        "learner.optimizer": "adam",
        "learner.learning_rate": 3e-3,
        "learner.momentum": 0.0,
        "learner.decay": 0.999,
        "learner.epsilon": 1e-5,
        "learner.max_grad_norm": 0.5,
        "learner.reduction": "mean",
        "agent.entropy_cost": 0.02,
        "agent.value_cost": 1.0,
        "network.torso": "mlp",
        "network.hidden_sizes": (64, 64),
        "network.activation": "tanh",
        "network.shared": False,
    },
)

# Above those of classic control. On LunarLander layer norms alone gave −42 to 238 in three seeds, neither 34 in one.
_LONG = cited(
    f"{OURS}: five seeds reach 131 to 256 on LunarLander", {"agent.discount": 0.995, "network.layer_norm": True}
)

_MINATAR = {
    **cited(
        OURS,
        {
            "env.num_envs": 128,
            "layout.unroll_length": 20,
            "learner.optimizer": "adam",
            "learner.learning_rate": 4e-3,
            "learner.momentum": 0.9,
            "learner.decay": 0.999,
            "learner.epsilon": 1e-5,
            "learner.max_grad_norm": 0.5,
            "learner.reduction": "mean",
            "agent.trace_decay": 0.95,
            "agent.entropy_cost": 0.05,
        },
    ),
    **cited(
        _PUREJAXRL_MINATAR,
        {
            "network.torso": "mlp",
            "network.hidden_sizes": (64, 64),
            "network.activation": "relu",
            "network.shared": False,
        },
    ),
}

_ATARI = {
    **cited(_IMPALA, {"agent.clip_rewards": 1.0}),
    **cited(
        "Espeholt et al. 2018 (IMPALA), figure 3 and section 5.3 (deep, feed-forward)",
        {
            "network.torso": "impala_resnet",
            "network.core": "frame_stack",
            "network.num_frames": 4,
            "network.shared": True,
        },
    ),
}

_CONTINUOUS = cited(
    OURS,
    {
        "env.num_envs": 16,
        "layout.unroll_length": 32,
        "learner.learning_rate": 7e-4,
        "learner.epsilon": 0.5,
        "agent.entropy_cost": 0.0,
        "agent.normalise_observations": True,
        "agent.clip_observations": 10.0,
        "agent.scale_rewards": True,
        "agent.clip_rewards": 10.0,
        "network.torso": "mlp",
        "network.hidden_sizes": (64, 64),
        "network.activation": "tanh",
        "network.shared": False,
    },
)

IMPALA = {
    **cited(
        _IMPALA,
        {
            "env.num_envs": 32,
            "layout.unroll_length": 20,
            "learner.optimizer": "rmsprop",
            "learner.learning_rate": 6e-4,
            "learner.anneal": True,
            "learner.decay": 0.99,
            "learner.epsilon": 0.01,
            "learner.max_grad_norm": 40.0,
        },
    ),
    **cited(f"{_IMPALA_CODE}: losses are summed", {"learner.reduction": "sum"}),
}

# Batches drawn from a replay are gone over once.
IMPALA_REPLAY_FAMILIES: Families = {
    "classic": _CLASSIC,
    "long": _LONG,
    "grid": ppo.GRID,
    "minatar": _MINATAR,
    "atari": _ATARI,
    "continuous": _CONTINUOUS,
    "physics": {**_CONTINUOUS, **cited(OURS, {"env.num_envs": 256, "layout.unroll_length": 16})},
}

IMPALA_FAMILIES: Families = {
    **IMPALA_REPLAY_FAMILIES,
    "minatar": {**_MINATAR, "learner.minibatches": Cited(4, OURS)},
}

SEED = {
    **IMPALA,
    **cited(
        _SEED,
        {
            "layout.unroll_length": 100,
            "learner.optimizer": "adam",
            "learner.learning_rate": 4.8e-4,
            "learner.momentum": 0.0,
            "learner.decay": 0.999,
            "learner.epsilon": 3.125e-7,
            "learner.max_grad_norm": 0.0,
            "learner.reduction": "mean",
            "agent.entropy_cost": 2.5e-4,
        },
    ),
}

_AS_IMPALA = cited(
    OURS,
    {
        "learner.optimizer": "rmsprop",
        "learner.decay": 0.99,
        "learner.max_grad_norm": 40.0,
        "learner.reduction": "sum",
    },
)
SEED_FAMILIES: Families = {
    **{name: {**_AS_IMPALA, **family} for name, family in IMPALA_FAMILIES.items()},
    "long": _LONG,
    "grid": ppo.GRID,
    "atari": _ATARI,
}

SEED_IN_SEBULBA: Families = {
    ANY: {
        "layout.inference": Cited("central", "Espeholt et al. 2020 (SEED RL), section 3"),
        "layout.policy_lag": Cited("free", "Espeholt et al. 2020 (SEED RL), section 3"),
    }
}

SYSTEMS = (
    System(
        name="impala",
        agent=impala.make,
        config=impala.Config,
        replay=latest.LATEST,
        layouts=(
            sebulba.LAYOUT,
            anakin.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=impala.ACTIONS,
        settings=IMPALA,
        families=IMPALA_FAMILIES,
        by_layout={"async_gradient": async_gradient.IMPALA},
        summary="Actor-critic with V-trace for the lag of its actors (Espeholt et al. 2018).",
        sequences=True,
    ),
    System(
        name="impala_replay",
        agent=impala.make,
        config=impala.Config,
        replay=mixed.MIXED,
        layouts=(
            sebulba.LAYOUT,
            anakin.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=impala.ACTIONS,
        settings=IMPALA,
        families=IMPALA_REPLAY_FAMILIES,
        by_layout={"async_gradient": async_gradient.IMPALA_REPLAY},
        summary="IMPALA whose batches are half new, half of a replay (Espeholt et al. 2018, section 5.2.2).",
        sequences=True,
    ),
    System(
        name="seed_impala",
        agent=impala.make,
        config=impala.Config,
        replay=latest.LATEST,
        layouts=(sebulba.LAYOUT,),
        actions=impala.ACTIONS,
        settings=SEED,
        families=SEED_FAMILIES,
        by_layout={"sebulba": SEED_IN_SEBULBA},
        summary="IMPALA with inference on the learner's device (Espeholt et al. 2020, SEED RL).",
        sequences=True,
    ),
)
