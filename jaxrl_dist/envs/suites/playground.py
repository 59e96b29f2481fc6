"""The suite playground (MuJoCo Playground 0.2.0): the DeepMind control suite and robots in MJX, all on the device.

Its wrappers for training are not used: they return every episode to one cached first state and lose the last
observation. The models of its robots are in MuJoCo Menagerie, which Playground would download when it makes one; here
they must be there.
"""

import contextlib
import importlib
import io
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from jaxrl_dist import envs, errors
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.envs.suites import brax
from jaxrl_dist.types import Array, ArrayTree

_NAME = "playground"
_CONTROL = (
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
ROBOTS = (
    *("ApolloJoystickFlatTerrain", "BarkourJoystick", "BerkeleyHumanoidJoystickFlatTerrain"),
    *("BerkeleyHumanoidJoystickRoughTerrain", "G1JoystickFlatTerrain", "G1JoystickRoughTerrain"),
    *("Go1JoystickFlatTerrain", "Go1JoystickRoughTerrain", "Go1Getup", "Go1Handstand", "Go1Footstand"),
    *("H1InplaceGaitTracking", "H1JoystickGaitTracking", "Op3Joystick", "SpotFlatTerrainJoystick", "SpotGetup"),
    *("SpotJoystickGaitTracking", "T1JoystickFlatTerrain", "T1JoystickRoughTerrain"),
    *("AlohaHandOver", "AlohaSinglePegInsertion", "PandaPickCube", "PandaPickCubeOrientation"),
    *("PandaPickCubeCartesian", "PandaOpenCabinet", "PandaRobotiqPushCube", "LeapCubeReorient"),
    *("LeapCubeRotateZAxis", "AeroCubeRotateZAxis"),
)
ENVIRONMENTS = (*_CONTROL, *ROBOTS)

_RANDOMISE, _MODELS = "randomise", "models"
_MENAGERIE = "https://github.com/google-deepmind/mujoco_menagerie"
_IMPLEMENTATIONS = ("jax", "warp")
# Without effect here: only Playground's wrappers repeat actions, and its cameras need a separate renderer.
_NOT_OFFERED = ("action_repeat", "vision")


class Drawn(NamedTuple):
    """State of an episode with a model of its own.

    Attributes:
        model: leaves of the model that were drawn for it.
        played: state of the environment.
    """

    model: list[Array]
    played: ArrayTree


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `playground:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: numbers, switches and texts of the task's own configuration, such as `episode_length` (the time limit in
            steps) or `ctrl_dt`. `impl` is "jax", which runs everywhere; Playground's own default is "warp", for CUDA.
            `randomise` draws a robot's masses, frictions and the like anew for each episode, as Playground's own
            randomiser says. `models` is the folder of MuJoCo Menagerie for robots, by default Playground's own place.

    Raises:
        errors.UsageError: unknown parameter, a value that does not fit, or a robot's model is not there.
        ModuleNotFoundError: MuJoCo Playground is not installed.
    """
    library = importlib.import_module("mujoco_playground").registry
    settings = {**library.get_default_config(name), "impl": _IMPLEMENTATIONS[0]}
    defaults = {k: v for k, v in settings.items() if isinstance(v, bool | int | float | str) and k not in _NOT_OFFERED}
    defaults |= {_RANDOMISE: False} | ({_MODELS: ""} if name in ROBOTS else {})
    values = {"impl": defaults["impl"], **parameters.parse_params(params, defaults, f"{_NAME}:{name}")}
    models, randomise = values.pop(_MODELS, ""), values.pop(_RANDOMISE, False)
    impl, episode_length = values["impl"], values.get("episode_length", settings["episode_length"])
    parameters.check_choice("impl", impl, _IMPLEMENTATIONS)
    parameters.check_least(values, {"episode_length": 1})
    draw = _randomiser(library, name) if randomise else None
    with _models_of(name, models):
        environment = library.load(name, config_overrides=values)
    bare = brax.adapt(environment, f"{_NAME}:{name}", episode_length)
    return wrappers.auto_reset(bare if draw is None else randomised(bare, environment, draw))


@contextlib.contextmanager
def _models_of(name: str, folder: str) -> Iterator[None]:
    """Lets Playground find a robot's model in a folder of MuJoCo Menagerie; "" is its own place.

    Raises:
        errors.UsageError: the model is not there; without this check, Playground would download all of them.
    """
    if name not in ROBOTS:
        yield
        return
    module: Any = importlib.import_module("mujoco_playground._src.mjx_env")
    before = module.MENAGERIE_PATH
    path = type(before)(folder) if folder else before
    what, models = errors.given("env", f"{_NAME}:{name}"), errors.given(f"env.params.{_MODELS}")
    if not pathlib.Path(path).is_dir():
        told = (
            f": its model is in MuJoCo Menagerie, which is not at {path}: git clone {_MENAGERIE} {path}, or name its "
        )
        raise errors.UsageError(what, told + "folder by ", models)
    module.MENAGERIE_PATH = path
    try:
        yield
    except (OSError, ValueError) as error:
        # MuJoCo's own message has several lines.
        first = str(error).partition("\n")[0]
        raise errors.UsageError(
            what, f": its model is not in {path}: {first}; name another folder by ", models
        ) from error
    finally:
        module.MENAGERIE_PATH = before


def _randomiser(library: Any, name: str) -> Callable[..., Any]:
    # Playground prints a line where it has none.
    with contextlib.redirect_stdout(io.StringIO()):
        found: Callable[..., Any] | None = library.get_domain_randomizer(name)
        valid = [one for one in ROBOTS if library.get_domain_randomizer(one)]
    if found is None:
        told = f"Playground has no randomiser for {name}; valid: {', '.join(valid)}{errors.nearest(name, valid)}"
        raise parameters.refused(_RANDOMISE, "true", told)
    return found


def randomised(bare: envs.BareEnvironment, environment: Any, draw: Callable[..., Any]) -> envs.BareEnvironment:
    """Gives each episode of an environment of Playground's a model of its own, which the state carries.

    Playground's own wrapper draws one for each environment and keeps it for the whole run.

    Args:
        bare: what `brax.adapt` makes of the environment.
        environment: Playground's; its model is exchanged while a function of `bare` is traced.
        draw: Playground's randomiser: (model, keys [N]) -> (models, in a tree like it 0 for leaves that it draws, which
            are [N, ...], and None for others).
    """
    base, lock = environment.mjx_model, threading.RLock()
    leaves: list[Any] = jax.tree.leaves(base)
    structure: Any = jax.tree.structure(base)
    axes = jax.eval_shape(lambda: draw(base, jax.random.split(jax.random.key(0), 1))[1])
    places = [i for i, axis in enumerate(structure.flatten_up_to(axes)) if axis is not None]

    def drawn(key: Array) -> list[Array]:
        of_one = jax.tree.leaves(draw(base, key[None])[0])
        return [of_one[place][0] for place in places]

    @contextlib.contextmanager
    def holding(model: list[Array]) -> Iterator[None]:
        whole = dict(enumerate(leaves)) | dict(zip(places, model, strict=True))
        with lock:
            environment._mjx_model = structure.unflatten(whole.values())
            try:
                yield
            finally:
                environment._mjx_model = base

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        model_key, play_key = jax.random.split(key)
        model = drawn(model_key)
        with holding(model):
            state, observation = bare.reset(play_key)
        return Drawn(model, state), observation

    def step(key: Array, state: Drawn, action: Array) -> envs.Transition:
        with holding(state.model):
            after = bare.step(key, state.played, action)
        return after._replace(state=Drawn(state.model, after.state))

    return envs.BareEnvironment(reset, step, bare.spec)


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
