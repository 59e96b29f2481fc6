"""The system IQN, with its published settings."""

from jaxrl_dist.agents import iqn
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, cited
from jaxrl_dist.systems import System, async_gradient, dqn
from jaxrl_dist.systems.families import Families

_IQN = "Dabney et al. 2018 (IQN), section 4.1 (as QR-DQN)"
_DOPAMINE = "Dopamine's jax/networks.py, ImplicitQuantileNetwork (Castro et al. 2018)"

IQN = {
    **{name: value for name, value in dqn.DQN.items() if not name.startswith("agent.")},
    **cited(
        _IQN,
        {
            "learner.optimizer": "adam",
            "learner.learning_rate": 5e-5,
            "learner.epsilon": 3.125e-4,
            "learner.decay": 0.999,
        },
    ),
}

# A row passes the head once for each of its levels.
_FEW = cited(
    f"{OURS} (Dabney et al. 2018, figure 2: 8 levels are nearly as good as 64)",
    {"agent.num_levels": 8, "agent.num_target_levels": 8, "agent.num_policy_levels": 8},
)
_CLASSIC = {
    **dqn.DQN_CLASSIC,
    **_FEW,
    **dqn.SMALL_VALUES,
    **cited(_IQN, {"agent.error_clip": 1.0}),
    **cited(f"{OURS}: few cosines for a small network", {"agent.num_cosines": 16}),
    **cited(f"{OURS}: the last layer, in the head", {"network.head_size": 84}),
    **cited(f"{OURS}: an update of 32 rows per 10 steps", {"replay.batch_size": 32, "replay.samples_per_insert": 3.2}),
}

IQN_FAMILIES: Families = {
    "classic": _CLASSIC,
    "minatar": {
        **dqn.DQN_FAMILIES["minatar"],
        **_FEW,
        **cited(f"{OURS}: the last layer, in the head", {"network.head_size": 128}),
    },
    "atari": {**dqn.DQN_FAMILIES["atari"], **cited(_DOPAMINE, {"network.head_size": 512})},
}

SYSTEMS = (
    System(
        name="iqn",
        agent=iqn.make,
        config=iqn.Config,
        replay=ring.UNIFORM,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=iqn.ACTIONS,
        settings=IQN,
        families=IQN_FAMILIES,
        by_layout={"async_gradient": async_gradient.VALUES},
        summary="DQN whose network computes quantiles of returns at any levels (Dabney et al. 2018).",
    ),
)
