"""Films episodes of a run's policy: a GIF and a still of each and, for suites that have one, a page with a 3-D view.

Pillow writes them; it is imported when it is first needed.
"""

import functools
import importlib
import math
import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs import film as films
from jaxrl_dist.envs.host import as_host, hangs
from jaxrl_dist.envs.host import episodes as host_episodes
from jaxrl_dist.parallel import precision
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import sweep
from jaxrl_dist.training import arguments, evaluation, session
from jaxrl_dist.training import policy as policies

FOLDER = "videos"
# Viewers slow down GIFs that show a picture for less than two hundredths of a second.
_FASTEST = 50.0
# Larger frames are shrunk, smaller ones enlarged, by whole factors.
_LARGEST_SIDE, _SMALLEST_SIDE = 400, 160
_COLOURS = 64
# Timeout of an environment's step for layouts that have no such setting.
_TIMEOUT_S = 60.0


class Episode(NamedTuple):
    """One filmed episode.

    Attributes:
        frames: Pillow's pictures of few colours, with the first and the last state.
        frames_per_second: speed at which they are shown.
        returned: undiscounted sum of rewards.
        length: number of steps.
        is_whole: whether it ended within the steps to film.
        page: HTML, or None.
    """

    frames: list[Any]
    frames_per_second: float
    returned: float
    length: int
    is_whole: bool
    page: str | None


def record_video(
    run: str | os.PathLike[str],
    episodes: int = 1,
    max_steps: int = 1000,
    seed: int = 0,
    checkpoint: str = "latest",
    settings: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Films episodes of the policy of a run's first seed, into its folder `videos`; equal arguments give equal films.

    Of a sweep it is the first seed of the first combination.

    Args:
        run: run folder.
        episodes: number of episodes; each is played in a new environment.
        max_steps: number of steps of each to film.
        seed: seed of environments and actions.
        checkpoint: as in `policy.load`.
        settings: likewise.
        trust: likewise.

    Returns:
        For each episode its files (`gif`, `still`, and `page` where there is one), `return`, `length`, and whether it
        `ended`, and of a sweep the `settings` of the combination; `json` can write it.

    Raises:
        errors.UsageError: there is no such policy, or its environment cannot be drawn.
        errors.EnvironmentFault: the environment hung, raised, or returned an invalid value.

    Example:
        >>> import jaxrl_dist
        >>> run = jaxrl_dist.train("ppo", "gymnax:Catch-bsuite", steps=1_024, out="runs/to_film")
        >>> (film,) = jaxrl_dist.record_video(run.folder, max_steps=3)
        >>> film["length"], film["ended"], film["gif"].endswith(".gif")
        (3, False, True)
    """
    arguments.check_episodes(seed, episodes=episodes, max_steps=max_steps)
    policy = policies.load(run, checkpoint, settings=settings, trust=trust)
    films.check(policy.environment)
    act = functools.partial(evaluation.acting(policy.agent), policy.params)
    folder = folders.expanded(run) / FOLDER
    folder.mkdir(exist_ok=True)
    swept = {name: policy.settings[name] for name in sweep.combinations(policy.settings)[0]}
    of_run = {"settings": swept} if swept else {}
    found = []
    for i, env_seed in enumerate(host_episodes.seeds(seed, "video", 0, 0, episodes).tolist()):
        key = jax.random.fold_in(jax.random.key(seed), i)
        with session.matmul_precision(policy.settings):
            episode = _play(policy, functools.partial(act, key=key), env_seed, max_steps)
        found.append(of_run | _write(folder / f"{checkpoint}-seed{seed}-episode{i}", episode))
    return found


def _play(policy: policies.Policy, act: Callable[..., Any], env_seed: int, max_steps: int) -> Episode:
    timeout_s = policy.settings.settings.get("layout.timeout_s", _TIMEOUT_S)
    started, as_precise = list[envs.Film](), precision.of_this_thread()

    def start() -> envs.HostEnvironment:
        # In the thread that draws every frame: OpenGL draws only in the thread in which it began.
        started.append(films.start(policy.environment, env_seed, timeout_s))
        return started[0].environment

    def work(make: Callable[[], envs.HostEnvironment]) -> Episode:
        num_agents = policy.environment.spec.num_agents
        environment, carry, frames = make(), policy.agent.init_carry(num_agents), []
        (film,) = started
        # A simulator that is faster than viewers show pictures leaves some out.
        stride = math.ceil(film.frames_per_second / _FASTEST)
        timestep = environment.reset()
        for t in range(max_steps + 1):
            is_last = bool((timestep.step_type == types.LAST).all())
            if t % stride == 0 or is_last or t == max_steps:
                frames.append(_picture(film.frame(jax.tree.map(lambda x: x[0], timestep.observation))))
            if is_last or t == max_steps:
                break
            state = environment.states() if isinstance(environment, as_host.AsHost) else ()
            action, carry = act(carry, timestep._replace(info=()), t=np.int32(t), state=state)
            timestep = environment.step(np.asarray(action))
        info = timestep.info
        ends = envs.outcomes(num_agents, timestep.step_type, info.episode_return, info.episode_length)
        speed = film.frames_per_second / stride
        page = None if film.page is None else film.page(speed)
        return Episode(frames, speed, float(ends.episode_return[0]), int(ends.episode_length[0]), is_last, page)

    def precisely(make: Callable[[], envs.HostEnvironment]) -> Episode:
        with as_precise():
            return work(make)

    try:
        return hangs.watched(policy.environment.spec.name, start, precisely)
    finally:
        for film in started:
            film.environment.close()


def _picture(frame: np.ndarray) -> Any:
    """Makes a picture of a frame u8 [H, W, 3], in a size to look at, with few colours, as a GIF needs."""
    image_module: Any = importlib.import_module("PIL.Image")
    picture = image_module.fromarray(frame)
    shrink = math.ceil(max(picture.size) / _LARGEST_SIDE)
    enlarge = min(_SMALLEST_SIDE // min(picture.size), _LARGEST_SIDE // max(picture.size))
    if shrink > 1:
        picture = picture.reduce(shrink)
    elif enlarge > 1:
        size = (picture.width * enlarge, picture.height * enlarge)
        picture = picture.resize(size, image_module.Resampling.NEAREST)
    return picture.quantize(_COLOURS, dither=image_module.Dither.NONE)


def _write(stem: pathlib.Path, episode: Episode) -> dict[str, Any]:
    """Writes the files of an episode and returns its record."""
    first, *others = episode.frames
    duration_ms = round(1000 / episode.frames_per_second)
    options = {"save_all": True, "append_images": others, "duration": duration_ms, "loop": 0, "optimize": False}
    files = {"gif": stem.with_suffix(".gif"), "still": stem.with_suffix(".png")}
    folders.replace(files["gif"], lambda path: first.save(path, "GIF", **options))
    folders.replace(files["still"], lambda path: episode.frames[len(episode.frames) // 2].save(path, "PNG"))
    if episode.page is not None:
        files["page"] = stem.with_suffix(".html")
        folders.write_text(files["page"], episode.page)
    return {
        **{kind: str(path) for kind, path in files.items()},
        "return": episode.returned,
        "length": episode.length,
        "ended": episode.is_whole,
    }
