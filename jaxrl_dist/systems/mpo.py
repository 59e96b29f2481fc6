"""The system MPO, with its published settings."""

from jaxrl_dist.agents import mpo
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import Cited, cited
from jaxrl_dist.systems import System, async_gradient, dpg

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
        families=dpg.REAL_FAMILIES,
        by_layout={"async_gradient": async_gradient.MPO},
        summary="A policy that follows its own actions by their exponentiated values (Abdolmaleki et al. 2018).",
    ),
)
