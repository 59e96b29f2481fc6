"""The system SAC, with its published settings."""

from jaxrl_dist.agents import sac
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.parallel import async_gradient as async_gradients
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import cited
from jaxrl_dist.systems import System, async_gradient, dpg

SAC = {
    **dpg.COMMON,
    **cited(
        "Haarnoja et al. 2018 (SAC), table 1",
        {
            "replay.batch_size": 256,
            "replay.samples_per_insert": 256.0,
            "learner.learning_rate": 3e-4,
            "learner.target_period": 1,
            "learner.target_rate": 0.005,
            "replay.capacity": 1_000_000,
            "network.hidden_sizes": (256, 256),
        },
    ),
}

SYSTEMS = (
    System(
        name="sac",
        agent=sac.make,
        config=sac.Config,
        replay=ring.UNIFORM,
        layouts=(
            anakin.LAYOUT,
            sebulba.LAYOUT,
            async_gradients.LAYOUT,
        ),
        actions=sac.ACTIONS,
        settings=SAC,
        families=dpg.REAL_FAMILIES,
        by_layout={"async_gradient": async_gradient.DPG},
        summary="Soft actor-critic (Haarnoja et al. 2018) with a temperature that learns.",
    ),
)
