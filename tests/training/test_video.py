"""Films: what each suite draws, that filming changes nothing, and the files of an episode."""

import pathlib
import threading
import types as python_types
from typing import Any

import conftest
import jax
import marks
import numpy as np
import pytest
from PIL import Image

import jaxrl_dist
from jaxrl_dist import envs, types
from jaxrl_dist.envs import film
from jaxrl_dist.envs.film import bodies
from jaxrl_dist.training import video


def play(name: str, steps: int, seed: int = 3, **params: str) -> tuple[np.ndarray, list[types.TimeStep], float]:
    """Films random actions; returns frames u8 [steps + 1, H, W, 3], the timesteps, and frames per second."""
    environment = envs.make(name, params)
    made = film.start(environment, seed, 30.0)
    rows, frames = [made.environment.reset()], []
    try:
        for action in [*actions(environment.spec, steps), None]:
            frames.append(made.frame(jax.tree.map(lambda x: x[0], rows[-1].observation)))
            if action is not None:
                rows.append(made.environment.step(action))
        if made.page is not None:
            assert "<html>" in made.page(10.0)
    finally:
        made.environment.close()
    return np.stack(frames), rows, made.frames_per_second


def actions(spec: types.EnvironmentSpec, steps: int) -> list[np.ndarray]:
    rng, space = np.random.default_rng(0), spec.action
    if isinstance(space, types.DiscreteSpace):
        return list(rng.integers(0, space.num_values, (steps, 1), np.int32))
    return list(rng.uniform(-1, 1, (steps, 1, *space.shape)).astype(np.float32))


DRAWN = {
    "gymnax:CartPole-v1": ("pygame", (400, 600, 3), 50.0),
    "gymnax:Pendulum-v1": ("pygame", (500, 500, 3), 30.0),
    "gymnax:Breakout-MinAtar": ("gymnax", (10, 10, 3), 10.0),
    "brax:inverted_pendulum": ("brax", (240, 320, 3), 50.0),
    "envpool:Pong-v5": ("envpool", (210, 160, 3), 15.0),
    "envpool:CartPole-v1": ("envpool", (400, 600, 3), 30.0),
    "gymnasium:CartPole-v1": ("pygame", (400, 600, 3), 50.0),
}


@pytest.mark.parametrize("name", marks.some(DRAWN.keys(), slow={"gymnax:Pendulum-v1", "brax:inverted_pendulum"}))
def test_each_suite_draws(name: str) -> None:
    library, shape, frames_per_second = DRAWN[name]
    pytest.importorskip(library)
    params = {"backend": "spring"} if name.startswith("brax") else {}
    frames, _, speed = play(name, 8, **params)
    assert frames.shape == (9, *shape) and frames.dtype == np.uint8 and speed == pytest.approx(frames_per_second)
    assert len({frame.tobytes() for frame in frames}) > 4


def test_a_film_is_of_the_environment_that_is_scored() -> None:
    training = envs.make("toy:episode", {"length": "3"})
    shown = training.spec._replace(observation=jax.ShapeDtypeStruct((8, 8, 3), np.uint8))
    scored = envs.make("toy:episode", {"length": "5"})
    assert isinstance(training, envs.Environment) and isinstance(scored, envs.Environment)
    made = film.start(training._replace(spec=shown, evaluation=scored), 0, 30.0)
    rows = [made.environment.reset(), *(made.environment.step(np.zeros(1, np.int32)) for _ in range(5))]
    assert [int(row.step_type[0]) for row in rows].index(types.LAST) == 5


@pytest.mark.parametrize("name", ["envpool:CartPole-v1", "gymnasium:CartPole-v1"])
def test_equal_seeds_give_equal_films(name: str) -> None:
    pytest.importorskip("pygame")
    (frames, rows, _), (again, same_rows, _), (other, _, _) = play(name, 8), play(name, 8), play(name, 8, seed=4)
    np.testing.assert_array_equal(frames, again)
    jax.tree.map(np.testing.assert_array_equal, rows, same_rows)
    assert (frames != other).any()


@pytest.mark.parametrize("name", ["envpool:CartPole-v1", "gymnasium:CartPole-v1"])
def test_filming_changes_no_step(name: str) -> None:
    pytest.importorskip("pygame")
    _, rows, _ = play(name, 40)
    assert sum(int(row.step_type[0] == types.LAST) for row in rows) >= 1
    task = envs.make(name)
    assert isinstance(task, envs.HostTask)
    environment = task.make(np.asarray([3], np.uint32), 1, 30.0)
    try:
        plain = [environment.reset(), *(environment.step(action) for action in actions(task.spec, 40))]
    finally:
        environment.close()
    jax.tree.map(np.testing.assert_array_equal, rows, plain)


def test_components_that_are_hidden_are_hidden_from_the_agent_only() -> None:
    pytest.importorskip("envpool")
    (shown, rows, _), (whole, all_rows, _) = (
        play("envpool:CartPole-v1", 3, observe="2,0"),
        play("envpool:CartPole-v1", 3),
    )
    np.testing.assert_array_equal(shown, whole)
    np.testing.assert_array_equal(rows[3].observation, all_rows[3].observation[:, [2, 0]])


@pytest.mark.parametrize(
    ("observation", "pixel", "expected"),
    [
        (np.full((4, 5, 3), (1, 2, 3), np.uint8), (0, 0), (1, 2, 3)),
        (np.stack([np.zeros((4, 5)), np.full((4, 5), 9)], -1).astype(np.uint8), (0, 0), (9, 9, 9)),
        (np.arange(6.0).reshape(2, 3), (1, 2), (255, 255, 255)),
        (np.arange(6.0).reshape(2, 3), (0, 0), (0, 0, 0)),
        (np.full((2, 3), 0.5, np.float32), (0, 0), (0, 0, 0)),
        (np.zeros((2, 3, 4), bool), (1, 1), (0, 0, 0)),
    ],
)
def test_observations_that_are_pictures(observation: np.ndarray, pixel: Any, expected: Any) -> None:
    frame = film.picture(observation)
    assert frame.shape == (*observation.shape[:2], 3) and frame.dtype == np.uint8
    assert tuple(frame[pixel].tolist()) == expected


def test_channels_have_colours_of_their_own_and_the_later_are_above() -> None:
    planes = np.zeros((2, 4, 3), bool)
    planes[0, 0, 0] = planes[0, 1, 1] = planes[0, 2, 2] = True
    planes[1, 0] = [True, True, False]
    frame = film.picture(planes)
    assert len({tuple(colour) for colour in frame[0].tolist()}) == 4
    assert frame[1, 0].tolist() == frame[0, 1].tolist()


def test_pictures_of_a_tree_are_side_by_side_and_categories_have_colours() -> None:
    leaf = jax.ShapeDtypeStruct
    observation = {
        "board": leaf((2, 3, 3), np.uint8),
        "legal": leaf((2, 4), bool),
        "speed": leaf((5,), np.float32),
        "tiles": leaf((3, 2, 2), np.int32),
    }
    space = types.DiscreteSpace(8)
    spec = types.EnvironmentSpec("mine:board", observation, space, "classic", mask="legal", categories={"tiles": (4,)})
    tiles = np.array([[[0, 0], [1, 0]], [[0, 1], [3, 0]], [[1, 0], [0, 0]]])
    board = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    frame = film.observed(spec, {"board": board, "legal": np.ones((2, 4), bool), "speed": np.ones(5), "tiles": tiles})
    assert frame.shape == (3, 6, 3) and frame.dtype == np.uint8
    np.testing.assert_array_equal(frame[:2, :3], board)
    assert not frame[2, :3].any() and not frame[:, 3].any()
    drawn = [[tuple(colour) for colour in row] for row in frame[:, 4:].tolist()]
    assert drawn[0][0] == drawn[2][1] == (0, 0, 0) and drawn[0][1] == drawn[2][0]
    assert len({colour for row in drawn for colour in row}) == 4
    environment = envs.make("toy:walk")
    film.check(environment._replace(spec=spec))
    with conftest.refused("mine:board"):
        film.check(environment._replace(spec=spec._replace(observation={"legal": observation["legal"]})))


def test_bodies_are_where_they_are_and_in_front_of_what_they_hide() -> None:
    """A red sphere in the middle of the picture, and a blue capsule of the world behind, before or far from it."""
    rgba = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 1, 1]], float)
    system = python_types.SimpleNamespace(
        geom_type=[0, 2, 3],
        geom_size=np.array([[9, 9, 1], [0.5, 0, 0], [0.2, 0.2, 0]]),
        geom_pos=np.array([[0, 0, 0], [0, 0, 0], [0, 0, 0.6]], float),
        geom_quat=np.array([[1.0, 0, 0, 0]] * 3),
        geom_bodyid=[0, 1, 0],
        mj_model=python_types.SimpleNamespace(geom_rgba=rgba),
    )

    def blue(towards_viewer: float, right: float) -> tuple[int, list[int]]:
        camera = bodies.camera(bodies.ELEVATION)
        position = [0, 0, 0.6] + towards_viewer * camera.forward + right * camera.right
        links = python_types.SimpleNamespace(pos=position[None], rot=np.array([[1.0, 0, 0, 0]]))
        body = python_types.SimpleNamespace(pipeline_state=python_types.SimpleNamespace(x=links))
        picture = bodies.make("ball", python_types.SimpleNamespace(sys=system, dt=0.05))
        frame = picture.draw(python_types.SimpleNamespace(environment=(body, 0)))
        assert frame.shape == (240, 320, 3) and picture.frames_per_second == 20
        return int((frame == (0, 0, 255)).all(-1).sum()), frame[120, 160].tolist()

    red = [255, 0, 0]
    assert blue(1.0, 0.0) == (0, red), "the sphere hides it"
    assert blue(0.0, 9.0) == (0, red), "it is out of sight"
    (behind, middle), (beside, still_red) = blue(-1.0, 0.0), blue(0.0, 0.75)
    assert behind > 1000 and middle == [0, 0, 255]
    assert beside > 1000 and still_red == red


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((10, 10), (160, 160)),
        ((4, 200), (400, 8)),
        ((400, 20), (20, 400)),
        ((900, 300), (100, 300)),
        ((1, 401), (201, 1)),
    ],
)
def test_pictures_have_a_size_to_look_at(shape: tuple[int, int], size: tuple[int, int]) -> None:
    assert video._picture(np.zeros((*shape, 3), np.uint8)).size == size


def test_a_camera_shows_what_is_right_and_above_there() -> None:
    axes, drawer = bodies.camera(20.0), bodies._Bodies.__new__(bodies._Bodies)
    # Towards who looks.
    np.testing.assert_allclose(np.cross(axes.right, axes.up), axes.forward, atol=1e-12)
    assert axes.up[2] > 0 and axes.right[2] == 0
    drawer._camera, drawer._scale = axes, 2.0
    middle, right, above = drawer._project(np.zeros(3), np.stack([np.zeros(3), axes.right, axes.up]))
    np.testing.assert_allclose(np.subtract(right, middle), (2.0, 0.0), atol=1e-12)
    np.testing.assert_allclose(np.subtract(above, middle), (0.0, -2.0), atol=1e-12)


@pytest.mark.parametrize("name", ["gymnax:MemoryChain-bsuite", "envpool:HalfCheetah-v4"])
def test_what_has_no_picture_is_refused_and_what_has_is_named(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    with conftest.refused(name, "brax", "envpool", "gymnasium", "gymnax"):
        film.check(envs.make(name))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> jaxrl_dist.Run:
    return conftest.train_in(tmp_path_factory.mktemp("run"), env="gymnax:Catch-bsuite", **{"evaluation.episodes": 2})


@pytest.mark.parametrize(("given", "name"), [({"run": None}, "run=None"), ({"checkpoint": 1}, "checkpoint=1")])
def test_a_wrong_type_is_refused_before_anything_is_read(
    given: dict[str, Any], name: str, tmp_path: pathlib.Path
) -> None:
    with conftest.refused(name):
        video.record_video(**{"run": tmp_path, **given})


def test_a_run_is_filmed_into_its_folder(run: jaxrl_dist.Run) -> None:
    records = video.record_video(run.folder, episodes=3)
    first = records[0]
    assert first["length"] == 9 and first["ended"] and first["return"] in (-1.0, 1.0)
    gif, still = pathlib.Path(first["gif"]), pathlib.Path(first["still"])
    assert gif.parent == still.parent == run.folder / "videos" and "page" not in first
    with Image.open(gif) as pictures, Image.open(still) as picture:
        # Ten states of 10 × 5 cells, each 32 pixels wide.
        assert pictures.n_frames == 10 and pictures.size == picture.size == (160, 320)
        assert pictures.info["duration"] == 100 and pictures.info["loop"] == 0
        pictures.seek(5)
        np.testing.assert_array_equal(pictures.convert("RGB"), picture.convert("RGB"))
    files = [pathlib.Path(record["gif"]).read_bytes() for record in records]
    assert len(set(files)) > 1
    assert video.record_video(run.folder, episodes=3) == records
    assert [pathlib.Path(record["gif"]).read_bytes() for record in records] == files
    assert sorted(path.suffix for path in gif.parent.iterdir()) == [".gif"] * 3 + [".png"] * 3


def test_each_episode_is_of_seeds_of_its_own_and_is_drawn_in_one_thread(
    run: jaxrl_dist.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, keys, threads = film.start, [], []

    def spied(environment: Any, seed: int, timeout_s: float) -> envs.Film:
        made, own = start(environment, seed, timeout_s), [threading.get_ident()]
        threads.append(own)

        def frame(observation: Any) -> Any:
            own.append(threading.get_ident())
            return made.frame(observation)

        return made._replace(frame=frame)

    acting = video.evaluation.acting

    def act(agent: Any) -> Any:
        chosen = acting(agent)

        def spied_act(*arguments: Any, key: Any, **more: Any) -> Any:
            keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
            return chosen(*arguments, key=key, **more)

        return spied_act

    monkeypatch.setattr(film, "start", spied)
    monkeypatch.setattr(video.evaluation, "acting", act)
    video.record_video(run.folder, episodes=2, max_steps=2)
    assert len(threads) == 2 and all(len(own) == 4 and len(set(own)) == 1 for own in threads)
    assert len(set(keys)) == 2


def test_a_film_is_cut_after_the_steps_that_were_asked_for(run: jaxrl_dist.Run) -> None:
    (record,) = video.record_video(run.folder, max_steps=4, seed=1)
    assert (record["length"], record["ended"], record["return"]) == (4, False, 0.0)
    with Image.open(record["gif"]) as pictures:
        assert pictures.n_frames == 5


@pytest.mark.slow
def test_the_film_of_a_sweep_says_which_combination_it_shows(tmp_path: pathlib.Path) -> None:
    swept = conftest.train_in(tmp_path, env="gymnax:Catch-bsuite", sweep="agent.discount=0.9,0.8")
    (record,) = video.record_video(swept.folder, max_steps=1)
    assert record["settings"] == {"agent.discount": 0.9}


@pytest.mark.parametrize("core", marks.some(["lstm", "frame_stack"], slow={"frame_stack"}))
def test_a_film_of_several_agents_ends_with_the_last_and_has_their_mean(
    core: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each agent has a memory of its own; those of the toy end one after the other, with whole numbers as returns."""
    small = {"evaluation.episodes": 2, "network.core": core, "learner.minibatches": 1, "network.core_size": 8}
    trained = conftest.train_in(tmp_path, "ippo", "toy:team", **small)
    monkeypatch.setattr(film, "check", lambda environment: None)
    start = film.start

    def drawn(*arguments: Any) -> Any:
        return start(*arguments)._replace(frame=lambda observation: np.zeros((4, 4, 3), np.uint8))

    monkeypatch.setattr(film, "start", drawn)
    (found,) = video.record_video(trained.folder)
    assert found["ended"] and found["length"] == envs.make("toy:team").spec.time_limit > 0
    assert 3 * found["return"] == pytest.approx(round(3 * found["return"]), abs=1e-4)


@pytest.mark.slow
def test_an_agent_that_searches_in_its_environment_is_filmed(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mctx")
    small = {"agent.simulations": 2, "steps": 512, "evaluation.episodes": 2, "network.hidden_sizes": (8,)}
    run = conftest.train_in(tmp_path, system="alphazero", env="gymnax:Catch-bsuite", **small)
    (found,) = video.record_video(run.folder, max_steps=4)
    assert found["length"] == 4 and pathlib.Path(found["gif"]).stat().st_size
