"""Settings of IPPO and MAPPO: the paper's, and for tasks of a family those of PPO below JaxMARL's."""

from jaxrl_dist.agents import mappo
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import latest
from jaxrl_dist.settings import Cited, cited
from jaxrl_dist.systems import System, async_gradient
from jaxrl_dist.systems.families import Families
from jaxrl_dist.systems.ppo import PPO_CLASSIC, PPO_FAMILIES, PPO_IN_SEBULBA

_SCRIPT = "Yu et al. 2022, on-policy train_mpe_spread.sh"
_DEFAULTS = "Yu et al. 2022, on-policy config.py"
_JAXMARL = "JaxMARL ippo_ff_mpe.yaml (Rutherford et al. 2024)"
_LARGER = "JaxMARL mappo_homogenous_rnn_mpe.yaml (2e-3; the 2.5e-4 of its ippo_ff_mpe.yaml learn later)"
_OVERCOOKED = "JaxMARL ippo_cnn_overcooked.yaml (Rutherford et al. 2024)"
_CRITIC = "agent.central_critic"

MAPPO = {
    **cited(
        _SCRIPT,
        {
            "env.num_envs": 128,
            "layout.unroll_length": 25,
            "learner.learning_rate": 7e-4,
            "learner.epochs": 10,
            "learner.minibatches": 1,
        },
    ),
    "network.activation": Cited("tanh", f"{_SCRIPT} (its flag use_ReLU switches ReLU off)"),
    **cited(
        _DEFAULTS,
        {
            "learner.anneal": False,
            "learner.max_grad_norm": 10.0,
            "agent.clip_epsilon": 0.2,
            "agent.clip_value": 0.2,
            "agent.value_cost": 1.0,
            "agent.entropy_cost": 0.01,
            "network.torso": "mlp",
            "network.hidden_sizes": (64, 64),
            "network.shared": False,
        },
    ),
    _CRITIC: Cited(True, "Yu et al. 2022, section 5.2 (agent-specific global state)"),
}
IPPO = {**MAPPO, _CRITIC: Cited(False, "de Witt et al. 2020, section 3 (independent critics)")}

MAPPO_FAMILIES: Families = {
    **PPO_FAMILIES,
    "classic": {
        **PPO_CLASSIC,
        **cited(_JAXMARL, {"env.num_envs": 16}),
        **cited(_LARGER, {"learner.learning_rate": 2e-3}),
    },
    # Small images, as Overcooked has them.
    "minatar": {
        **PPO_FAMILIES["minatar"],
        **cited(
            _OVERCOOKED,
            {
                "env.num_envs": 32,
                "layout.unroll_length": 128,
                "learner.learning_rate": 6e-4,
                "learner.minibatches": 4,
                "learner.max_grad_norm": 0.1,
                "agent.gae_lambda": 0.98,
                "agent.clip_epsilon": 0.05,
                "agent.clip_value": 0.05,
                "agent.entropy_cost": 0.1,
                "network.torso": "minatar_cnn",
                "network.activation": "relu",
            },
        ),
    },
}

_LAYOUTS = (anakin.LAYOUT, sebulba.LAYOUT, async_gradients.LAYOUT)

SYSTEMS = (
    System(
        name="ippo",
        agent=mappo.make,
        config=mappo.Config,
        replay=latest.LATEST,
        layouts=_LAYOUTS,
        actions=mappo.ACTIONS,
        settings=IPPO,
        families=MAPPO_FAMILIES,
        by_layout={"async_gradient": async_gradient.PPO, "sebulba": PPO_IN_SEBULBA},
        summary="PPO of several agents, each of which learns as if it were alone (de Witt et al. 2020).",
    ),
    System(
        name="mappo",
        agent=mappo.make,
        config=mappo.Config,
        replay=latest.LATEST,
        layouts=_LAYOUTS,
        actions=mappo.ACTIONS,
        settings=MAPPO,
        families=MAPPO_FAMILIES,
        by_layout={"async_gradient": async_gradient.PPO, "sebulba": PPO_IN_SEBULBA},
        summary="PPO of several agents whose critic sees what is known of all (Yu et al. 2022).",
    ),
)
