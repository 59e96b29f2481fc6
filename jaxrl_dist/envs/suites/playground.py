"""The suite playground (MuJoCo Playground 0.2.0): the tasks of the DeepMind control suite in MJX, all on the device.

Its wrappers for training are not used: they return every episode to one cached first state and lose the last
observation. Its robots are not offered: to make one, it clones a repository of models.
"""

import importlib

from jaxrl_dist import envs
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.envs.suites import brax

_NAME = "playground"
ENVIRONMENTS = (
    "AcrobotSwingup",
    "AcrobotSwingupSparse",
    "BallInCup",
    "CartpoleBalance",
    "CartpoleBalanceSparse",
    "CartpoleSwingup",
    "CartpoleSwingupSparse",
    "CheetahRun",
    "FingerSpin",
    "FingerTurnEasy",
    "FingerTurnHard",
    "FishSwim",
    "HopperHop",
    "HopperStand",
    "HumanoidStand",
    "HumanoidWalk",
    "HumanoidRun",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
    "ReacherHard",
    "SwimmerSwimmer6",
    "WalkerRun",
    "WalkerStand",
    "WalkerWalk",
)

_IMPLEMENTATIONS = ("jax", "warp")
# Without effect here: only Playground's wrappers repeat actions, and its cameras need a separate renderer.
_NOT_OFFERED = ("action_repeat", "vision")


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `playground:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: numbers, switches and texts of the task's own configuration, such as `episode_length` (the time limit in
            steps) or `ctrl_dt`. `impl` is "jax", which runs everywhere; Playground's own default is "warp", for CUDA.

    Raises:
        errors.UsageError: unknown parameter, or a value that does not fit.
        ModuleNotFoundError: MuJoCo Playground is not installed.
    """
    library = importlib.import_module("mujoco_playground").registry
    settings = {**library.get_default_config(name), "impl": _IMPLEMENTATIONS[0]}
    defaults = {k: v for k, v in settings.items() if isinstance(v, bool | int | float | str) and k not in _NOT_OFFERED}
    values = {"impl": defaults["impl"], **parameters.parse_params(params, defaults, f"{_NAME}:{name}")}
    impl, episode_length = values["impl"], values.get("episode_length", settings["episode_length"])
    parameters.check_choice("impl", impl, _IMPLEMENTATIONS)
    parameters.check_least(values, {"episode_length": 1})
    environment = library.load(name, config_overrides=values)
    return wrappers.auto_reset(brax.adapt(environment, f"{_NAME}:{name}", episode_length))


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
