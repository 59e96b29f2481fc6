"""The system MPO, with its published settings."""

from jaxrl_dist.agents import mpo
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, async_gradient, dpg

_ACME = "Acme jax/mpo (Hoffman et al. 2020)"

MPO = {
    **dpg.COMMON,
    **cited(
        _ACME,
        {
            "replay.batch_size": 256,
            "replay.samples_per_insert": 32.0,
            "learner.target_period": 100,
            "learner.max_grad_norm": 40.0,
        },
    ),
    "network.hidden_sizes": Cited((256, 256), OURS),
    "learner.learning_rate": Cited(3e-4, "Acme examples/baselines/rl_continuous/run_mpo.py (jax/mpo: 1e-4)"),
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
