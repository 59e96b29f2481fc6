"""The table of systems: which agent, replay and layouts make each one, and its published settings with their sources.

Plain data: no imports of JAX, so that flags are checked against it within milliseconds.
"""

from collections.abc import Mapping
from typing import NamedTuple

from jaxrl_dist.settings import a2c, async_gradient, dpg, dqn, impala, ppo, pqn, r2d2
from jaxrl_dist.settings.base import ANY, Families, Setting

FAMILIES = ("classic", "minatar", "atari", "continuous", "physics")


class System(NamedTuple):
    """One row of the table.

    Attributes:
        name: as in `--system`.
        agent: module under `agents/`.
        replay: `latest`, `mixed`, `uniform` or `prioritised`.
        layouts: layouts that it can run in, its own first.
        settings: flag name -> value of the system's paper, above the defaults of the Config classes.
        families: task family -> flag name -> value, above `settings`.
        summary: one line for `--help`.
        by_layout: layout -> task family, or `ANY` of them -> flag name -> value that only this layout has or needs,
            above `families`.
    """

    name: str
    agent: str
    replay: str
    layouts: tuple[str, ...]
    settings: Mapping[str, Setting]
    families: Families
    summary: str
    by_layout: Mapping[str, Families] = {}

    def settings_in(self, layout: str, family: str | None) -> Mapping[str, Setting]:
        """Returns what only this layout has or needs, for tasks of a family (None while it is unknown)."""
        own = self.by_layout.get(layout, {})
        return {**own.get(ANY, {}), **own.get(family or ANY, {})}


_ROWS = (
    System(
        name="ppo",
        agent="ppo",
        replay="latest",
        layouts=("anakin", "sebulba", "async_gradient"),
        settings=ppo.PPO,
        families=ppo.PPO_FAMILIES,
        summary="Proximal policy optimisation (Schulman et al. 2017), feed-forward or recurrent.",
        by_layout={"async_gradient": async_gradient.PPO},
    ),
    System(
        name="dppo",
        agent="ppo",
        replay="latest",
        layouts=("anakin", "sebulba"),
        settings=ppo.DPPO,
        families=ppo.DPPO_FAMILIES,
        summary="PPO of many workers with a penalty on the divergence that adapts (Heess et al. 2017).",
        by_layout={"sebulba": ppo.DPPO_IN_SEBULBA},
    ),
    System(
        name="gpu_sim",
        agent="ppo",
        replay="latest",
        layouts=("anakin",),
        settings=ppo.GPU_SIM,
        families=ppo.GPU_SIM_FAMILIES,
        summary="PPO on bodies that the accelerator simulates by the thousand (Liang et al. 2018).",
    ),
    System(
        name="a2c",
        agent="a2c",
        replay="latest",
        layouts=("anakin", "sebulba"),
        settings=a2c.A2C,
        families=a2c.A2C_FAMILIES,
        summary="Advantage actor-critic (Mnih et al. 2016) without delay, feed-forward or recurrent.",
        by_layout={"sebulba": a2c.A2C_IN_SEBULBA},
    ),
    System(
        name="a3c",
        agent="a2c",
        replay="latest",
        layouts=("async_gradient",),
        settings=a2c.A3C,
        families=a2c.A2C_FAMILIES,
        summary="Asynchronous advantage actor-critic (Mnih et al. 2016): every worker plays and takes gradients.",
        by_layout={"async_gradient": async_gradient.A3C},
    ),
    System(
        name="ga3c",
        agent="a2c",
        replay="latest",
        layouts=("sebulba",),
        settings=a2c.GA3C,
        families=a2c.GA3C_FAMILIES,
        summary="Actor-critic with one loop that acts for all environments (Babaeizadeh et al. 2017).",
        by_layout={"sebulba": a2c.GA3C_IN_SEBULBA},
    ),
    System(
        name="impala",
        agent="impala",
        replay="latest",
        layouts=("sebulba", "anakin", "async_gradient"),
        settings=impala.IMPALA,
        families=impala.IMPALA_FAMILIES,
        summary="Actor-critic with V-trace for the lag of its actors (Espeholt et al. 2018).",
        by_layout={"async_gradient": async_gradient.IMPALA},
    ),
    System(
        name="impala_replay",
        agent="impala",
        replay="mixed",
        layouts=("sebulba", "anakin", "async_gradient"),
        settings=impala.IMPALA,
        families=impala.IMPALA_REPLAY_FAMILIES,
        summary="IMPALA whose batches are half new, half of a replay (Espeholt et al. 2018, section 5.2.2).",
        by_layout={"async_gradient": async_gradient.IMPALA_REPLAY},
    ),
    System(
        name="seed_impala",
        agent="impala",
        replay="latest",
        layouts=("sebulba",),
        settings=impala.SEED,
        families=impala.SEED_FAMILIES,
        summary="IMPALA with inference on the learner's device (Espeholt et al. 2020, SEED RL).",
        by_layout={"sebulba": impala.SEED_IN_SEBULBA},
    ),
    System(
        name="pqn",
        agent="pqn",
        replay="latest",
        layouts=("anakin", "sebulba", "async_gradient"),
        settings=pqn.PQN,
        families=pqn.PQN_FAMILIES,
        summary="Q-learning without replay or target network (Gallici et al. 2024), feed-forward or recurrent.",
        by_layout={"sebulba": pqn.PQN_IN_SEBULBA, "async_gradient": async_gradient.PQN},
    ),
    System(
        name="dqn",
        agent="dqn",
        replay="uniform",
        layouts=("anakin", "sebulba", "async_gradient"),
        settings=dqn.DQN,
        families=dqn.DQN_FAMILIES,
        summary="Deep Q-learning (Mnih et al. 2015) on a uniform replay.",
        by_layout={"async_gradient": async_gradient.DQN},
    ),
    System(
        name="gorila",
        agent="dqn",
        replay="uniform",
        layouts=("async_gradient",),
        settings=dqn.GORILA,
        families=dqn.GORILA_FAMILIES,
        summary="DQN of asynchronous workers and a parameter server (Nair et al. 2015), each with a replay of its own.",
        by_layout={"async_gradient": async_gradient.DQN},
    ),
    System(
        name="ddpg",
        agent="dpg",
        replay="uniform",
        layouts=("anakin", "sebulba", "async_gradient"),
        settings=dpg.DDPG,
        families=dpg.FAMILIES,
        summary="Deep deterministic policy gradient (Lillicrap et al. 2016) for real actions.",
        by_layout={"async_gradient": async_gradient.DPG},
    ),
    System(
        name="td3",
        agent="dpg",
        replay="uniform",
        layouts=("anakin", "sebulba"),
        settings=dpg.TD3,
        families=dpg.FAMILIES,
        summary="DDPG with two critics, a delayed policy and smoothed targets (Fujimoto et al. 2018).",
    ),
    System(
        name="sac",
        agent="sac",
        replay="uniform",
        layouts=("anakin", "sebulba", "async_gradient"),
        settings=dpg.SAC,
        families=dpg.FAMILIES,
        summary="Soft actor-critic (Haarnoja et al. 2018) with a temperature that learns.",
        by_layout={"async_gradient": async_gradient.DPG},
    ),
    System(
        name="d4pg",
        agent="dpg",
        replay="prioritised",
        layouts=("sebulba", "anakin", "async_gradient"),
        settings=dpg.D4PG,
        families=dpg.FAMILIES,
        summary="DDPG with a distribution of returns of n steps and many actors (Barth-Maron et al. 2018).",
        by_layout={"async_gradient": async_gradient.DPG},
    ),
    System(
        name="apex_dpg",
        agent="dpg",
        replay="prioritised",
        layouts=("sebulba", "anakin", "async_gradient"),
        settings=dpg.APE_X_DPG,
        families=dpg.APE_X_DPG_FAMILIES,
        summary="DDPG with many actors and prioritised replay (Horgan et al. 2018).",
        by_layout={"async_gradient": async_gradient.APE_X_DPG},
    ),
    System(
        name="rainbow",
        agent="dqn",
        replay="prioritised",
        layouts=("anakin", "sebulba", "async_gradient"),
        settings=dqn.RAINBOW,
        families=dqn.RAINBOW_FAMILIES,
        summary="DQN with double, dueling, prioritised, n-step, distributional and noisy parts (Hessel et al. 2018).",
        by_layout={"async_gradient": async_gradient.DQN},
    ),
    System(
        name="apex_dqn",
        agent="dqn",
        replay="prioritised",
        layouts=("sebulba", "anakin", "async_gradient"),
        settings=dqn.APE_X,
        families=dqn.APE_X_FAMILIES,
        summary="Many actors with a ladder of ε, prioritised replay with their own errors (Horgan et al. 2018).",
        by_layout={"async_gradient": async_gradient.APE_X},
    ),
    System(
        name="r2d2",
        agent="r2d2",
        replay="prioritised",
        layouts=("sebulba", "anakin", "async_gradient"),
        settings=r2d2.R2D2,
        families=r2d2.R2D2_FAMILIES,
        summary="Recurrent Q-learning on prioritised sequences with stored state (Kapturowski et al. 2019).",
        by_layout={"async_gradient": async_gradient.R2D2},
    ),
    System(
        name="seed_r2d2",
        agent="r2d2",
        replay="prioritised",
        layouts=("sebulba",),
        settings=r2d2.R2D2,
        families=r2d2.R2D2_FAMILIES,
        summary="R2D2 with inference on the learner's device (Espeholt et al. 2020, SEED RL).",
        by_layout={"sebulba": impala.SEED_IN_SEBULBA},
    ),
)

SYSTEMS: Mapping[str, System] = {row.name: row for row in _ROWS}
