"""One fake environment of a known 7-step episode, its time-limit twin and both at once, through every adapter."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import known_episode, suites
from fakes import pool as fake_pool

from jaxrl_dist import envs, types
from jaxrl_dist.envs import wrappers
from jaxrl_dist.envs.host import as_host, pooled, worker_pool, worker_process
from jaxrl_dist.envs.suites import toy


def through_toy(name: str) -> list[known_episode.Transition]:
    return known_episode.played_on_device(envs.make(f"toy:{name}"))


def through_batch(name: str) -> list[known_episode.Transition]:
    environment = envs.make(f"toy:{name}")

    def only_row(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: jax.tree.map(lambda x: x[0], jax.vmap(function)(*jax.tree.map(lambda x: x[None], args)))

    return known_episode.played_on_device(
        environment._replace(reset=only_row(environment.reset), step=only_row(environment.step))
    )


def through_as_host(name: str) -> list[known_episode.Transition]:
    host = as_host.AsHost(envs.make(f"toy:{name}"), 1, jax.random.key(0))

    def row(timestep: types.TimeStep) -> types.TimeStep:
        return jax.tree.map(lambda x: x[0], timestep)

    return known_episode.played(lambda: row(host.reset()), lambda action: row(host.step(np.array([action]))))


def through_sends(name: str) -> list[known_episode.Transition]:
    host = as_host.AsHost(envs.make(f"toy:{name}"), 3, jax.random.key(0))

    def step(action: int) -> types.TimeStep:
        host.send(np.array([action]), np.array([1]))
        return jax.tree.map(lambda x: x[0], host.recv()[0])

    return known_episode.played(lambda: jax.tree.map(lambda x: x[1], host.reset()), step)


def through_gymnax(name: str) -> list[known_episode.Transition]:
    pytest.importorskip("gymnax")
    from jaxrl_dist.envs.suites import gymnax

    gymnax._import_library()
    from flax import struct
    from gymnax.environments import environment, spaces

    @struct.dataclass
    class FakeState(environment.EnvState):
        time: int

    class Fake(environment.Environment):
        def reset_env(self, key: jax.Array, params: Any) -> Any:
            return jnp.zeros(2), FakeState(time=0)

        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            time = state.time + 1
            terminated = (time >= known_episode.LENGTH) & (name in ("episode", "both"))
            observation = jnp.stack([time, action]).astype(float)
            return observation, FakeState(time=time), 0.5 * (time - 1) + action, terminated, {}

        def action_space(self, params: Any) -> Any:
            return spaces.Discrete(3)

        def observation_space(self, params: Any) -> Any:
            return spaces.Box(0, known_episode.LENGTH, (2,))

    limit = known_episode.LENGTH if name in ("time_limit", "both") else 1000
    params = environment.EnvParams(max_steps_in_episode=limit)
    return known_episode.played_on_device(wrappers.auto_reset(gymnax.adapt(Fake(), params, "Fake")))


def through_brax(name: str) -> list[known_episode.Transition]:
    pytest.importorskip("brax")
    from jaxrl_dist.envs.suites import brax

    with brax._without_known_noise():
        from brax.envs import base as brax_base

    class Fake(brax_base.Env):
        def reset(self, rng: jax.Array) -> Any:
            zero = jnp.float32(0)
            return brax_base.State(jnp.int32(0), jnp.zeros(2), zero, zero, {"steps": zero})

        def step(self, state: Any, action: jax.Array) -> Any:
            steps, action = state.pipeline_state + 1, action[0] + 1
            done = jnp.where((steps >= known_episode.LENGTH) & (name in ("episode", "both")), 1.0, 0.0)
            state.metrics.update(steps=steps.astype(float))
            observation = jnp.stack([steps.astype(float), action])
            return state.replace(pipeline_state=steps, obs=observation, reward=(steps - 1) / 2 + action, done=done)

        observation_size = 2
        action_size = 1
        backend = "none"

    limit = known_episode.LENGTH if name in ("time_limit", "both") else 1000
    environment = wrappers.auto_reset(brax.adapt(Fake(), "brax:fake", limit))

    def step(state: Any, action: jax.Array) -> Any:
        # Brax's actions lie in [-1, 1].
        return environment.step(state, action[None].astype(jnp.float32) - 1)

    return known_episode.played_on_device(environment._replace(step=step))


def counting_pool(name: str, num_envs: int, batch_size: int) -> worker_pool.WorkerPool:
    spec = types.EnvironmentSpec("fake", jax.ShapeDtypeStruct((2,), jnp.float32), types.DiscreteSpace(3), "classic")
    plan = worker_pool.Plan(
        spec=spec,
        factory=worker_process.Factory("fakes.host_environments:counting", name),
        leaves=(worker_process.Leaf((), (2,), "float32"),),
        observation=lambda leaves: leaves[0],
        action_dtype="int64",
        workers=2,
    )
    return worker_pool.WorkerPool(plan, np.arange(num_envs, dtype=np.uint32), batch_size, 20.0)


def through_worker_pool(name: str) -> list[known_episode.Transition]:
    pool = counting_pool(name, 2, 2)

    def row(timestep: types.TimeStep) -> types.TimeStep:
        return jax.tree.map(lambda x: x[1], timestep)

    try:
        return known_episode.played(lambda: row(pool.reset()), lambda action: row(pool.step(np.array([0, action]))))
    finally:
        pool.close()


def through_sends_to_a_worker_pool(name: str) -> list[known_episode.Transition]:
    pool = counting_pool(name, 3, 1)

    def step(action: int) -> types.TimeStep:
        pool.send(np.array([action]), np.array([1]))
        return jax.tree.map(lambda x: x[0], pool.recv()[0])

    try:
        return known_episode.played(lambda: jax.tree.map(lambda x: x[1], pool.reset()), step)
    finally:
        pool.close()


def through_gymnasium(name: str) -> list[known_episode.Transition]:
    pytest.importorskip("gymnasium")
    ending = {"episode": "Counting-v0", "time_limit": "Limited-v0", "both": "Both-v0"}[name]
    host = envs.make(f"gymnasium:fakes.registered:{ending}", {"workers": "1"}).make(np.zeros(1, np.uint32), 1, 20.0)

    def row(timestep: types.TimeStep) -> types.TimeStep:
        return jax.tree.map(lambda x: x[0], timestep)

    try:
        return known_episode.played(lambda: row(host.reset()), lambda action: row(host.step(np.array([action]))))
    finally:
        host.close()


def external(name: str, num_envs: int, batch_size: int, **params: str) -> envs.HostEnvironment:
    task = envs.make(f"external:{name}", {"observation": "float32[2]", "actions": "3", **params})
    return task.make(np.zeros(num_envs, np.uint32), batch_size, 20.0)


def through_external_functions(name: str) -> list[known_episode.Transition]:
    host = external(f"fakes.simulators:{name}", 2, 2)

    def row(timestep: types.TimeStep) -> types.TimeStep:
        return jax.tree.map(lambda x: x[1], timestep)

    with contextlib.closing(host):
        return known_episode.played(lambda: row(host.reset()), lambda action: row(host.step(np.array([0, action]))))


def through_an_external_program(name: str) -> list[known_episode.Transition]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    host = external(name, 3, 1, listen=str(port))
    code = f"from fakes import simulators; from jaxrl_dist import simulator; simulator.serve(simulators.{name}, {port})"

    def step(action: int) -> types.TimeStep:
        host.send(np.array([action]), np.array([1]))
        return jax.tree.map(lambda x: x[0], host.recv()[0])

    programs = [
        subprocess.Popen([sys.executable, "-c", code], cwd=pathlib.Path(__file__).parents[1], env=with_path())
        for _ in range(3)
    ]
    try:
        with contextlib.closing(host):
            return known_episode.played(lambda: jax.tree.map(lambda x: x[1], host.reset()), step)
    finally:
        for program in programs:
            program.kill()
            program.wait()


def with_path() -> dict[str, str]:
    """Lets another process find what this one can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def pool(name: str, num_envs: int, batch_size: int) -> pooled.Pooled:
    struct = jax.ShapeDtypeStruct((2,), np.dtype(np.float32))
    spec = types.EnvironmentSpec(f"fake:{name}", struct, types.DiscreteSpace(3), "classic")
    fake = fake_pool.FakePool(name, num_envs, batch_size)
    return pooled.Pooled(fake, spec, batch_size, 60.0, convert=lambda x: x, life_loss=False)


def through_pool(name: str) -> list[known_episode.Transition]:
    host = pool(name, 2, 2)

    def row(timestep: types.TimeStep) -> types.TimeStep:
        return jax.tree.map(lambda x: x[0], timestep)

    return known_episode.played(lambda: row(host.reset()), lambda action: row(host.step(np.array([action, 0]))))


def through_batches_of_a_pool(name: str) -> list[known_episode.Transition]:
    host = pool(name, 6, 2)

    def row(timestep: types.TimeStep) -> types.TimeStep:
        return jax.tree.map(lambda x: x[3], timestep)

    return known_episode.played(lambda: row(host.reset()), lambda action: row(host.step(np.full(6, action))))


def through_sends_to_a_pool(name: str) -> list[known_episode.Transition]:
    host = pool(name, 3, 1)

    def step(action: int) -> types.TimeStep:
        host.send(np.array([action]), np.array([1]))
        timestep, env_ids = host.recv()
        assert env_ids.tolist() == [1]
        return jax.tree.map(lambda x: x[0], timestep)

    return known_episode.played(lambda: jax.tree.map(lambda x: x[1], host.reset()), step)


def through_craftax(name: str) -> list[known_episode.Transition]:
    return known_episode.played_on_device(suites.through_craftax(name))


def through_navix(name: str) -> list[known_episode.Transition]:
    return known_episode.played_on_device(suites.through_navix(name))


def through_pgx(name: str) -> list[known_episode.Transition]:
    return known_episode.played_on_device(suites.through_pgx(name))


def through_jumanji(name: str) -> list[known_episode.Transition]:
    return known_episode.played_on_device(suites.through_jumanji(name))


def through_xminigrid(name: str) -> list[known_episode.Transition]:
    return known_episode.played_on_device(suites.through_xminigrid(name))


def through_popgym(name: str) -> list[known_episode.Transition]:
    return known_episode.played_on_device(suites.through_popgym(name))


def through_playground(name: str) -> list[known_episode.Transition]:
    return known_episode.played_on_device(suites.through_playground(name))


def through_ale(name: str) -> list[known_episode.Transition]:
    host = suites.through_ale(name, 2)

    def row(timestep: types.TimeStep) -> types.TimeStep:
        return jax.tree.map(lambda x: x[1], timestep)

    return known_episode.played(lambda: row(host.reset()), lambda action: row(host.step(np.array([0, action]))))


ADAPTERS = [
    through_toy,
    through_batch,
    through_as_host,
    through_sends,
    through_gymnax,
    through_brax,
    through_worker_pool,
    through_sends_to_a_worker_pool,
    through_gymnasium,
    through_external_functions,
    through_an_external_program,
    through_pool,
    through_batches_of_a_pool,
    through_sends_to_a_pool,
    through_craftax,
    through_navix,
    through_pgx,
    through_jumanji,
    through_xminigrid,
    through_popgym,
    through_playground,
    through_ale,
]


@pytest.mark.parametrize("name", ["episode", "time_limit", "both"])
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_every_adapter_gives_the_same_transitions(
    adapter: Callable[[str], list[known_episode.Transition]], name: str
) -> None:
    assert adapter(name) == known_episode.expected(name)


def test_the_known_episode_by_hand() -> None:
    episode, limited = known_episode.expected("episode"), known_episode.expected("time_limit")
    assert episode[6] == known_episode.Transition([6.0, 2.0], 1, 4.0, [7.0, 1.0], 0.0, types.LAST)
    assert limited[6] == episode[6]._replace(discount=1.0)
    assert episode[7] == known_episode.Transition([7.0, 1.0], 2, 0.0, [0.0, 0.0], 1.0, types.FIRST)
    assert episode[8] == known_episode.Transition([0.0, 0.0], 0, 0.0, [1.0, 0.0], 1.0, types.MID)


def test_game_over_is_false_at_a_time_limit() -> None:
    for name, over in (("episode", True), ("time_limit", False), ("both", True)):
        environment = wrappers.auto_reset(toy.bare(name, 1))
        _, timestep = environment.step(environment.reset(jax.random.key(0))[0], jnp.int32(0))
        assert timestep.step_type == types.LAST
        assert isinstance(timestep.info, types.EpisodeInfo) and timestep.info.game_over == over
