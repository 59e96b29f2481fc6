"""The system MPO, with its published settings, and with its own in the family `continuous`."""

from jaxrl_dist.agents import mpo
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient, dpg
from jaxrl_dist.systems.families import Families

# Its baseline for a critic of plain values, as ours is; those of MPOConfig are for a mixture of Gaussians.
_ACME = "Acme run_mpo.py, jax/mpo (Hoffman et al. 2020)"

MPO = {
    **dpg.COMMON,
    **cited(
        _ACME,
        {
            "replay.batch_size": 256,
            "replay.samples_per_insert": 64.0,
            "learner.target_period": 100,
            "learner.max_grad_norm": 40.0,
            "learner.learning_rate": 3e-4,
            "agent.n_step": 4,
            "agent.mean_bound": 0.01,
            "network.hidden_sizes": (256, 256, 256),
        },
    ),
    "network.layer_norm": Cited(True, f"{_ACME}: of the first layer; here of each"),
}

# Acme moves policy and critic in small steps over millions of rows. With more updates of fewer rows, larger steps of
# the policy, and values of the size of a network's outputs, thousands are enough (docs/results.md).
MPO_FAMILIES: Families = {
    "continuous": cited(
        f"{OURS}, chosen on Pendulum; physics has Acme's",
        {
            "replay.batch_size": 64,
            "learner.learning_rate": 1e-3,
            "learner.target_period": 50,
            "agent.reward_scale": 0.1,
            "agent.n_step": 3,
            "agent.temperature": 1.0,
            "agent.multiplier": 1.0,
            "agent.mean_bound": 0.1,
            "agent.deviation_bound": 3e-3,
            "network.hidden_sizes": (128, 128),
        },
    ),
    "physics": {},
}

SYSTEMS = (
    System(
        name="mpo",
        agent=mpo.make,
        config=mpo.Config,
        replay=ring.UNIFORM,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=mpo.ACTIONS,
        settings=MPO,
        families=MPO_FAMILIES,
        by_layout={"async_gradient": async_gradient.MPO},
        summary="A policy that follows its own actions by their exponentiated values (Abdolmaleki et al. 2018).",
    ),
)
