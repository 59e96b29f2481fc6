"""The system SAC, with its published settings."""

from jaxrl_dist import ring
from jaxrl_dist.agents import sac
from jaxrl_dist.parallel import anakin, async_gradient, sebulba
from jaxrl_dist.settings import cited
from jaxrl_dist.systems import System
from jaxrl_dist.systems import async_gradient as by_worker
from jaxrl_dist.systems import dpg as dpg_values

SAC = {
    **dpg_values.COMMON,
    **cited(
        "Haarnoja et al. 2018 (SAC), table 1",
        {
            "replay.batch_size": 256,
            "replay.samples_per_insert": 256.0,
            "learner.learning_rate": 3e-4,
            "learner.target_period": 1,
            "learner.target_rate": 0.005,
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
            async_gradient.LAYOUT,
        ),
        actions=sac.ACTIONS,
        settings=SAC,
        families=dpg_values.REAL_FAMILIES,
        by_layout={"async_gradient": by_worker.DPG},
        summary="Soft actor-critic (Haarnoja et al. 2018) with a temperature that learns.",
    ),
)
