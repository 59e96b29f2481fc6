"""Names of devices: every wrong list is one line that names the valid ones, and a table says what runs where."""

import types
from typing import Any

import conftest
import jax
import pytest

from jaxrl_dist import errors
from jaxrl_dist.parallel import mesh, placement
from jaxrl_dist.parallel.sebulba import actors
from jaxrl_dist.training import assemble

SETTING = "layout.actor_devices"


def test_devices_are_named_in_full_or_by_number() -> None:
    devices = jax.devices()[:3]
    assert placement.parse(SETTING, "cpu:2, CPU:0,1", devices) == [devices[2], devices[0], devices[1]]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (",", "=,: .*cpu:0, cpu:1, .*cpu:7$"),
        ("cpu:0,", "=cpu:0,: .*cpu:0, cpu:1, "),
        (" ", "= : .*cpu:0, cpu:1, "),
        ("cpu:1,cpu:1", "=cpu:1,cpu:1 .* cpu:1 .*cpu:0, cpu:1, .*cpu:7"),
        ("cpu:1,1", "=cpu:1,1 .* cpu:1 .*cpu:0, cpu:1, "),
        ("gpu:0", r"=gpu:0: .* gpu:0.*cpu:0, .* cpu:0\?"),
    ],
)
def test_wrong_names_are_refused_in_one_line(text: str, named: str) -> None:
    with pytest.raises(errors.UsageError, match=f"^{SETTING}{named}") as error:
        placement.parse(SETTING, text, jax.devices())
    assert "\n" not in str(error.value)


def test_actors_may_have_devices_that_the_learner_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerators cannot be had here, so these only say what they are."""
    gpus = [types.SimpleNamespace(platform="gpu", id=i) for i in range(4)]
    cpus = jax.local_devices(backend="cpu")
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: cpus if backend == "cpu" else gpus)
    choose = actors.acting_devices
    assert choose("gpu:0", gpus[1:]) == [gpus[0]]
    assert choose("cpu:1,gpu:2", gpus[1:]) == [cpus[1], gpus[2]]
    assert choose("", gpus[1:]) == gpus[1:]
    assert choose("cpu:3", cpus[:1]) == [cpus[3]]
    assert choose("", cpus[:1]) == cpus
    with conftest.refused(" gpu:4;", "gpu:0, gpu:1, gpu:2, gpu:3, cpu:0"):
        choose("gpu:4", gpus[1:])


def test_the_table_names_each_device_once() -> None:
    first, second = jax.devices()[:2]
    assert placement.table(
        [(first, "actor 0 (4 environments)"), (second, "actor 1 (4 environments)"), (first, "learner 0")]
    ) == (
        "cpu:0: actor 0 (4 environments), learner 0",
        "cpu:1: actor 1 (4 environments)",
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"system": "a3c", "layout.num_workers": 2},
            ("cpu:3: worker 0 (2 environments), server", "cpu:4: worker 1 (2 environments)"),
        ),
        (
            {"system": "dqn", "layout.num_workers": 1, "layout.num_actors": 2},
            ("cpu:3: actor 0 (2 environments), learner 0, server", "cpu:4: actor 1 (2 environments)"),
        ),
        (
            {"layout": "sebulba", "layout.num_actors": 2},
            ("cpu:3: actor 0 (2 environments), learner 0", "cpu:4: actor 1 (2 environments)"),
        ),
    ],
)
def test_workers_and_actors_stay_on_the_devices_of_the_run(settings: Any, expected: tuple[str, ...]) -> None:
    few = {"env": "toy:walk", "env.num_envs": 4, "learner.minibatches": 1, "learner.epochs": 1}
    resolved, environment = assemble.resolve({"system": "a2c", "layout": "async_gradient", **few, **settings})
    devices = jax.devices()[3:5]
    chosen = assemble.choose_devices(resolved, devices)
    layout = assemble.assemble(resolved, environment, chosen, available=devices).layout
    assert layout.placement == expected


@pytest.mark.parametrize("layout", ["anakin", "sebulba"])
def test_processes_with_unequal_devices_are_refused(layout: str) -> None:
    settings, _ = assemble.resolve({"system": "ppo", "env": "toy:walk", "layout": layout})
    ours: Any = [
        types.SimpleNamespace(platform="gpu", id=i, process_index=i // 2, local_hardware_id=i) for i in range(3)
    ]
    with conftest.refused(" 2, 1 devices"):
        assemble.choose_devices(settings, ours)
    assert assemble.choose_devices(settings, ours[::2]) == ours[::2]


@pytest.mark.parametrize(
    ("num_devices", "num_seeds", "words"),
    [(1, 4, "1 × cpu"), (4, 1, "4 × cpu, each seed on all of them"), (4, 6, "4 × cpu, each seed on 2 of them")],
)
def test_a_mesh_is_said_in_words(num_devices: int, num_seeds: int, words: str) -> None:
    assert mesh.describe(mesh.make(jax.devices()[:num_devices], num_seeds)) == words
