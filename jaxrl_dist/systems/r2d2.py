"""Settings of R2D2."""

from jaxrl_dist.agents import r2d2
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient, impala
from jaxrl_dist.systems.families import Families

_MINATAR_DQN = "Young & Tian 2019, MinAtar examples/dqn.py"
_APE_X = "Horgan et al. 2018, appendix C"
_DQN_PAPER = "Mnih et al. 2015, extended table 1"
_R2D2 = "Kapturowski et al. 2019, table 2"
_SEED_R2D2 = "SEED RL's released code, atari/r2d2_main.py and agents/r2d2/learner.py"

# With a constant step size two of five seeds lost CartPole again in the last tenth of a million steps. With epsilon and
# clip scaled to means of 20 rows (5e-5, 2), as those of 80 rows below, 7 of 10 seeds learn MemoryChain, not all 10.
_R2D2_CLASSIC = cited(
    OURS,
    {
        "env.num_envs": 32,
        "layout.unroll_length": 10,
        "replay.capacity": 96_000,
        "replay.min_size": 3_200,
        "replay.batch_size": 32,
        "replay.samples_per_insert": 8.0,
        "learner.learning_rate": 1e-3,
        "learner.epsilon": 1e-3,
        "learner.max_grad_norm": 40.0,
        "learner.anneal": True,
        "learner.target_period": 100,
        "agent.discount": 0.99,
        "agent.burn_in": 10,
        "agent.taught": 20,
        "network.torso": "mlp",
        "network.hidden_sizes": (64,),
        "network.activation": "relu",
        "network.core_size": 64,
        "network.head_size": 0,
    },
)

_R2D2_MINATAR = {
    **_R2D2_CLASSIC,
    "network.torso": Cited("minatar_cnn", _MINATAR_DQN),
    "network.core_size": Cited(128, OURS),
}

R2D2 = {
    **cited(
        _R2D2,
        {
            "env.num_envs": 256,
            "layout.unroll_length": 40,
            "replay.batch_size": 64,
            "replay.priority_exponent": 0.9,
            "replay.importance_exponent": 0.6,
            "replay.importance_exponent_end": 0.6,
            "learner.optimizer": "adam",
            "learner.learning_rate": 1e-4,
            "learner.anneal": False,
            "learner.target_period": 2_500,
            "network.core": "lstm",
            "network.core_size": 512,
            "network.head_size": 512,
        },
    ),
    "network.orthogonal": Cited(False, f"{OURS} (as the DQN family)"),
    "replay.capacity": Cited(4_096_000, f"{_R2D2} (4M observations), a multiple of 256 × 40"),
    "replay.min_size": Cited(50_000, f"{_APE_X} (R2D2 gives none)"),
    "replay.samples_per_insert": Cited(0.8, "rlpyt, configs of R2D1 (Kapturowski et al. 2019: about 0.8)"),
    # The published losses are summed over the 80 taught rows of a sequence, ours is a mean over them.
    "learner.epsilon": Cited(1.25e-5, f"{_SEED_R2D2}: 1e-3 for sums, here for means of 80 rows"),
    "learner.max_grad_norm": Cited(0.5, f"{_SEED_R2D2}: 40 for sums, here for means of 80 rows"),
}


R2D2_FAMILIES: Families = {
    "classic": _R2D2_CLASSIC,
    "minatar": _R2D2_MINATAR,
    "atari": {
        "network.torso": Cited("nature_cnn", _DQN_PAPER),
        **cited(
            "Kapturowski et al. 2019, section 2.3 (stacks of 4 frames)",
            {"network.core": "frame_stack_lstm", "network.num_frames": 4},
        ),
        "agent.evaluation_epsilon": Cited(0.001, "SEED RL's released code, agents/r2d2/learner.py (eval_epsilon)"),
    },
}

SYSTEMS = (
    System(
        name="r2d2",
        agent=r2d2.make,
        config=r2d2.Config,
        replay=ring.PRIORITISED,
        layouts=(
            sebulba.LAYOUT,
            anakin.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=r2d2.ACTIONS,
        settings=R2D2,
        families=R2D2_FAMILIES,
        by_layout={"async_gradient": async_gradient.R2D2},
        summary="Recurrent Q-learning on prioritised sequences with stored state (Kapturowski et al. 2019).",
    ),
    System(
        name="seed_r2d2",
        agent=r2d2.make,
        config=r2d2.Config,
        replay=ring.PRIORITISED,
        layouts=(sebulba.LAYOUT,),
        actions=r2d2.ACTIONS,
        settings=R2D2,
        families=R2D2_FAMILIES,
        by_layout={"sebulba": impala.SEED_IN_SEBULBA},
        summary="R2D2 with inference on the learner's device (Espeholt et al. 2020, SEED RL).",
    ),
)
