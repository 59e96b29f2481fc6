"""The system CrossQ, with its published settings."""

from jaxrl_dist.agents import crossq
from jaxrl_dist.parallel import anakin, sebulba
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems import System, dpg

_CODE = "Bhatt et al. 2024, released code train.py"

CROSSQ = {
    **dpg.COMMON,
    **cited(
        _CODE,
        {
            "replay.batch_size": 256,
            "replay.samples_per_insert": 256.0,
            "learner.learning_rate": 1e-3,
            "learner.momentum": 0.5,
        },
    ),
    "network.hidden_sizes": Cited((256, 256), f"{OURS}, as SAC's (Bhatt et al. 2024: critics of 2048)"),
}

SYSTEMS = (
    System(
        name="crossq",
        agent=crossq.make,
        config=crossq.Config,
        replay=ring.UNIFORM,
        # A parameter server keeps no running moments.
        layouts=(anakin.LAYOUT, sebulba.LAYOUT),
        actions=crossq.ACTIONS,
        settings=CROSSQ,
        families=dpg.REAL_FAMILIES,
        summary="SAC without target networks, by critics with batch normalisation (Bhatt et al. 2024).",
    ),
)
