"""A network of the user's own: a class that its module lacks is one line that names those it has."""

import importlib
import pathlib
import re
from typing import Any

import conftest
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import jaxrl_dist
from jaxrl_dist import networks, types
from jaxrl_dist.networks import custom, encoders

NETWORKS = """
import flax.linen as nn
from flax.linen import Dense

class MyNet(nn.Module):
    pass

class Deep(MyNet):
    pass

class Plain:
    pass

class Shown(nn.Module):
    @nn.compact
    def __call__(self, observation):
        import jax
        seen.append(sorted(observation) if isinstance(observation, dict) else observation.shape)
        return sum(x[:, :1] * jax.numpy.ones((1, 4)) for x in jax.tree.leaves(observation))

seen = []
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_networks.py").write_text(NETWORKS)
    (tmp_path / "user_tools.py").write_text("import flax.linen as nn\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("name", ["network", "network.torso"])
def test_a_class_that_is_not_there_is_refused_by_a_run_before_it_has_a_folder(
    name: str, tmp_path: pathlib.Path
) -> None:
    settings = {key: value for key, value in conftest.SMALL["ppo"].items() if key != "network.torso"}
    with conftest.refused("--network=user_networks:mynett: ", "MyNet, Deep", " MyNet?"):
        jaxrl_dist.train(
            "ppo",
            "gymnax:CartPole-v1",
            out=str(tmp_path / "run"),
            settings={**settings, name: "user_networks:mynett"},
        )
    assert not (tmp_path / "run").exists()


def test_a_file_without_any_is_named_too() -> None:
    with conftest.refused("--network=user_tools:MyNet: "):
        custom.make("user_tools:MyNet")


def test_classes_are_made_without_arguments() -> None:
    assert type(custom.make("user_networks:Deep")).__name__ == "Deep"
    with conftest.refused("--network=user_networks:Dense", "TypeError", "'features'"):
        custom.make("user_networks:Dense")


@pytest.mark.slow
def test_a_network_that_was_changed_does_not_resume_in_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(nn.Module):
        features: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.relu(nn.Dense(self.features)(x.reshape(len(x), -1)))

    settings = {"layout.unroll_length": 4, "env.num_envs": 4, "evaluation.episodes": 1, "network": "user_networks:Own"}

    def train(features: int, steps: int) -> jaxrl_dist.Run:
        module = importlib.import_module("user_networks")
        monkeypatch.setattr(module, "Own", lambda: Own(features), raising=False)
        settings["steps"] = steps
        return jaxrl_dist.train("a2c", "toy:walk", out=str(tmp_path / "run"), settings=settings)

    train(8, 16)
    before = (tmp_path / "run" / "config.json").read_text()
    with conftest.refused("Dense_0", "[1, 8, 3]", "[1, 6, 3]"):
        train(6, 32)
    assert (tmp_path / "run" / "config.json").read_text() == before
    (tmp_path / "run" / "config.json").write_text(re.sub(r"jaxrl_dist [^\"]+", "jaxrl_dist 0.0.9", before))
    with conftest.refused("Dense_0", "jaxrl_dist 0.0.9"):
        train(6, 32)
    assert train(8, 32).summary["resumed_from"] == 16


def test_a_module_that_cannot_be_imported_is_one_line(tmp_path: pathlib.Path) -> None:
    with conftest.refused("--network=no_such_module:MyNet: ", "ModuleNotFoundError"):
        custom.make("no_such_module:MyNet")
    (tmp_path / "user_broken.py").write_text("x = 1\nraise ValueError('not today')\n")
    with conftest.refused("--network=user_broken:X: ", "ValueError", "user_broken.py:2: not today"):
        custom.make("user_broken:X")


@pytest.mark.parametrize(("named", "shown"), [({}, ["mask", "tile"]), ({"mask": "mask"}, ["tile"])])
def test_a_module_of_one_s_own_sees_no_mask(named: dict[str, str], shown: list[str]) -> None:
    observation = {"mask": jax.ShapeDtypeStruct((2,), bool), "tile": jax.ShapeDtypeStruct((3,), jnp.float32)}
    spec = types.EnvironmentSpec("mine:map", observation, types.DiscreteSpace(2), "classic", **named)
    encoder = encoders.make(networks.Config(torso="user_networks:Shown"), spec, (), last_layer=True)
    seen = importlib.import_module("user_networks").seen
    seen.clear()
    encoder.make().init(jax.random.key(0), encoder.pick(jax.tree.map(lambda x: jnp.ones((1, *x.shape)), observation)))
    assert seen == [shown]
