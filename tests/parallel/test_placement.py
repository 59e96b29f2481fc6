"""Names of devices: every wrong list is one line that names the valid ones, and a table says what runs where."""

import types

import conftest
import jax
import pytest

from jaxrl_dist import errors
from jaxrl_dist.parallel import mesh, placement
from jaxrl_dist.parallel.sebulba import actors

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
    assert placement.table([(first, 4), (second, 4)], [first]) == (
        "cpu:0: actor 0 (4 environments), learner 0",
        "cpu:1: actor 1 (4 environments)",
    )


@pytest.mark.parametrize(
    ("num_devices", "num_seeds", "words"),
    [(1, 4, "1 × cpu"), (4, 1, "4 × cpu, each seed on all of them"), (4, 6, "4 × cpu, each seed on 2 of them")],
)
def test_a_mesh_is_said_in_words(num_devices: int, num_seeds: int, words: str) -> None:
    assert mesh.describe(mesh.make(jax.devices()[:num_devices], num_seeds)) == words
