"""The Python of the documents runs as it is printed, with fewer steps."""

import contextlib
import json
import pathlib
import re
import socket
import sys
import threading
import types as python_types
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import host_environments

import jaxrl_dist
from jaxrl_dist import envs, networks, types
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import unroll

ROOT = pathlib.Path(__file__).resolve().parents[1]


def block(document: str, phrase: str) -> str:
    """Returns the one Python block of a document that has a phrase."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if phrase in code]
    assert len(found) == 1, f"{document} has {len(found)} examples with {phrase!r}"
    return found[0]


def module(code: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs code as a module, which dataclasses and Flax look up by its name."""
    made = python_types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(code, name, "exec"), made.__dict__)
    return made


def test_every_example_of_the_readme_is_run_here() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("```python") == 2


def test_training_and_loading(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = block("README.md", "jaxrl_dist.train(")
    names = module(code.replace("100_000", "2_048"), "train_and_load", monkeypatch)
    assert names.run.reason == "finished" and names.run.summary["env_steps"] == 2_048
    assert names.run.summary["eval_return_mean"] > 5
    assert (tmp_path / "runs" / "notebook" / "summary.json").is_file()
    assert names.policy.env_steps == 2_048 and names.policy.settings["agent.discount"] == 0.98
    assert names.action in (0, 1) and names.action.dtype == jnp.int32


def test_the_readme_shows_the_loop_of_the_page() -> None:
    assert block("README.md", "def iterate") == block("docs/own_loop.md", '.make("ppo"')


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo", "dqn"])
def test_a_loop_of_the_users_own_learns(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = block("docs/own_loop.md", f'.make("{system}"')
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    last = module(code, "own_loop", monkeypatch).last
    assert last.episode_return / last.episodes > 475


@pytest.mark.parametrize("system", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_a_loop_of_the_users_own_has_the_settings_of_a_run(
    system: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    code = block("docs/own_loop.md", f'.make("{system}"').replace("500_000", "2_048")
    names = module(code, "own_loop", monkeypatch)
    run = jaxrl_dist.train(system, "gymnax:CartPole-v1", steps=2_048, out=str(tmp_path))
    written = json.loads((run.folder / "config.json").read_text())["settings"]
    assert {name for name in written if name.startswith(("agent.", "learner."))}
    found = {name: one["value"] for name, one in written.items() if name != "out"}
    assert json.loads(json.dumps({name: names.settings[name] for name in found})) == found


def test_a_network_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module(block("docs/own_network.md", "class MyNet"), "my_module", monkeypatch)
    spec = envs.make("toy:episode").spec
    net = networks.make(networks.Config(torso="my_module:MyNet"), spec, (networks.Head("q", 3, 1.0),))
    outputs = networks.of_rows(net, net.init(jax.random.key(0)), jnp.ones((5, 2)))
    assert outputs["q"].shape == (5, 3)


def test_a_memory_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module(block("docs/own_network.md", "class MyCore"), "my_module", monkeypatch)
    config = networks.Config(torso="mlp", hidden_sizes=(4,), core="my_module:MyCore", core_size=3)
    net = networks.make(config, envs.make("toy:episode").spec, (networks.Head("q", 3, 1.0),))
    params, carry = net.init(jax.random.key(0)), net.initial(2)
    rows, is_first = jax.random.normal(jax.random.key(1), (5, 2, 2)), jnp.zeros((5, 2), bool).at[3, 0].set(True)
    whole, memory = net.unroll(params, carry.memory, rows, is_first)
    for row, first, expected in zip(rows, is_first, whole["q"], strict=True):
        outputs, carry = net.step(params, carry, row, first)
        np.testing.assert_allclose(outputs["q"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(carry.memory, memory, rtol=1e-5, atol=1e-6)
    fresh, _ = net.unroll(params, net.initial(2).memory, rows[3:], is_first[3:])
    np.testing.assert_allclose(fresh["q"][:, 0], whole["q"][3:, 0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(fresh["q"][:, 1], whole["q"][3:, 1], atol=1e-3)


def test_an_environment_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module(block("docs/adding_an_environment.md", "BareEnvironment"), "corridor", monkeypatch)
    environment = envs.make("custom:corridor:make", {"length": "3", "time_limit": "5"})
    assert isinstance(environment, envs.Environment)
    state, timestep = environment.reset(jax.random.key(0))
    assert timestep.observation.tolist() == [0, 0]
    seen = []
    for action in (1, 1, 1, 1, 0, 0, 0, 0, 0, 1):
        state, timestep = environment.step(state, jnp.int32(action))
        seen.append((int(timestep.step_type), float(timestep.discount), round(float(timestep.reward), 2)))
    arrived, cut = (types.LAST, 0.0, 1.0), (types.LAST, 1.0, -0.01)
    assert seen[2] == arrived and seen[3][0] == types.FIRST and seen[8] == cut and seen[9][0] == types.FIRST
    assert environment.spec.name == "custom:corridor:make" and environment.spec.time_limit == 5


@pytest.mark.slow
def test_a_simulator_that_owns_its_loop() -> None:
    code = block("docs/external_simulators.md", "session.begin(")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    class World(host_environments.Counting):
        def __init__(self, seed: int) -> None:
            super().__init__("episode")

        def reset(self) -> Any:
            return super().reset()[0]

        def step(self, action: int) -> Any:
            return super().step(action)[:4]

    params = {"observation": "float32[2]", "actions": "3", "listen": str(port)}
    task = envs.make("external:world", params)
    assert isinstance(task, envs.HostTask)
    with contextlib.closing(task.make(np.zeros(1, np.uint32), 1, 20.0)) as environment:
        code = code.replace("port=5555", f"port={port}")
        thread = threading.Thread(target=exec, args=(code, {"World": World, "__name__": "__main__"}), daemon=True)
        thread.start()
        assert environment.reset().observation.tolist() == [[0, 0]]
        rows = [environment.step(np.ones(1, np.int32)) for _ in range(8)]
    assert [int(row.step_type[0]) for row in rows] == [types.MID] * 6 + [types.LAST, types.FIRST]
    thread.join(conftest.SOON_S)
    assert not thread.is_alive()


def test_the_agent_in_one_file_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    reinforce = module(block("docs/writing_an_agent.md", "def make("), "reinforce", monkeypatch)
    environment = envs.make("toy:episode")
    network = networks.Config(torso="mlp", hidden_sizes=(8,))
    agent = reinforce.make(reinforce.Config(), environment.spec, network)
    rules = learner.make(learner.Config(learning_rate=0.03, anneal=False), agent, types.LOCAL)
    play = unroll.device_unroll(agent, environment, 16)

    def iteration(i: Any, loop: Any) -> Any:
        state, actors, _ = loop
        actors, rows, _ = play(state.params, actors, jax.random.key(i), jnp.zeros(8), jnp.int32(0))
        state, _, metrics = rules.update(
            state, types.Sample(rows, (), jnp.ones(8)), jax.random.key(i), jnp.float32(0.0)
        )
        return state, actors, (rows.steps.action == 2).mean()

    @jax.jit
    def train() -> Any:
        state = rules.init(agent.init(jax.random.key(0)))
        actors = unroll.ActorState(
            *jax.vmap(environment.reset)(jax.random.split(jax.random.key(1), 8)), agent.init_carry(8)
        )
        start = jax.lax.fori_loop(0, 1, iteration, (state, actors, jnp.float32(0.0)))
        return start[-1], jax.lax.fori_loop(1, 100, iteration, start)[-1]

    first, last = map(float, train())
    # The toy's reward grows with the action, so the largest becomes the likeliest.
    assert first < 0.6 < 0.8 < last
