"""The system AlphaZero, with its published settings."""

from jaxrl_dist.agents import alphazero
from jaxrl_dist.parallel import anakin
from jaxrl_dist.replay import ring
from jaxrl_dist.settings import OURS, cited
from jaxrl_dist.systems import System, muzero
from jaxrl_dist.systems.families import Families

_ALPHAZERO = "Silver et al. 2018"

ALPHAZERO = {
    **cited(f"{_ALPHAZERO}, Methods, Training", {"replay.batch_size": 4096}),
    **muzero.OPTIMIZER,
}

# A time limit cuts returns off, so the value behind it counts: without a discount nothing bounds values.
_RETURNS = cited(f"{OURS}: returns that do not end", {"agent.discount": 0.997})

ALPHAZERO_FAMILIES: Families = {
    "classic": {
        **muzero.SMALL,
        **_RETURNS,
        **cited(OURS, {"agent.simulations": 32}),
        # Targets of ten steps leave CartPole at 426 (docs/results.md).
        **cited(f"{OURS} ({_ALPHAZERO}: to the end of the game)", {"agent.n_step": 100}),
    },
    "minatar": {
        **muzero.IMAGES,
        **_RETURNS,
        **cited(OURS, {"agent.simulations": 32}),
    },
    "board": {**muzero.BOARD, **cited(f"{_ALPHAZERO}, Methods (the outcome of a game)", {"agent.discount": 1.0})},
}

SYSTEMS = (
    System(
        name="alphazero",
        agent=alphazero.make,
        config=alphazero.Config,
        replay=ring.UNIFORM,
        layouts=(anakin.LAYOUT,),
        actions=alphazero.ACTIONS,
        settings=ALPHAZERO,
        families=ALPHAZERO_FAMILIES,
        summary="Tree search in the environment itself, and self-play in games of two (Silver et al. 2018).",
        model=True,
        self_play=True,
    ),
)
