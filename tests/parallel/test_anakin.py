"""Anakin on virtual devices: no replica drifts, chunks and seeds are exact (T2, T5, T9, T11)."""

import itertools

import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import envs
from jaxrl_dist.parallel import anakin, unroll
from jaxrl_dist.parallel import mesh as meshes

CARTPOLE = "gymnax:CartPole-v1"
PENDULUM = "gymnax:Pendulum-v1"
TEAM = "toy:team"
BOTH = {"network.core": "frame_stack_lstm", "network.num_frames": 3, "network.core_size": 8}
VARIANTS = {
    "ppo": ("ppo", CARTPOLE, {}),
    "ppo-continuous": ("ppo", PENDULUM, {}),
    "ppo-lstm": ("ppo", CARTPOLE, {"network.core": "lstm", "network.core_size": 8}),
    "dppo": ("dppo", CARTPOLE, {}),
    "rnd": ("rnd", CARTPOLE, {}),
    "rnd-lstm": ("rnd", PENDULUM, BOTH),
    "es": ("es", CARTPOLE, {"agent.normalise_observations": True}),
    "es-lstm": ("es", PENDULUM, BOTH),
    "ppo-stack": ("ppo", CARTPOLE, {"network.core": "frame_stack"}),
    "ippo": ("ippo", TEAM, {"network.core": "frame_stack"}),
    "ippo-apart": ("ippo", TEAM, {"agent.share_parameters": False, "agent.normalise_observations": True}),
    "mappo": ("mappo", TEAM, {"agent.scale_rewards": True, "agent.normalise_observations": True}),
    "mappo-lstm": ("mappo", TEAM, {"network.core": "lstm", "network.core_size": 8, "agent.share_parameters": False}),
    "a2c": ("a2c", CARTPOLE, {}),
    "a2c-continuous": ("a2c", PENDULUM, {}),
    "a2c-lstm": ("a2c", CARTPOLE, BOTH),
    "impala": ("impala", CARTPOLE, {"layout": "anakin"}),
    "impala_replay": ("impala_replay", CARTPOLE, {"layout": "anakin"}),
    "impala-stack": ("impala", PENDULUM, {"layout": "anakin", "network.core": "frame_stack"}),
    "impala-lstm": ("impala", CARTPOLE, {"layout": "anakin", **BOTH}),
    "pqn": ("pqn", CARTPOLE, {}),
    "pqn-lstm": ("pqn", CARTPOLE, BOTH),
    "pqn-stack": ("pqn", CARTPOLE, {"network.core": "frame_stack"}),
    "dqn": ("dqn", CARTPOLE, {}),
    "dqn-stack-n-step": ("dqn", CARTPOLE, {"network.core": "frame_stack", "agent.n_step": 3}),
    "td3": ("td3", PENDULUM, {}),
    "sac": ("sac", PENDULUM, {}),
    "d4pg": ("d4pg", PENDULUM, {}),
    "apex_dpg": ("apex_dpg", PENDULUM, {}),
    "rainbow": ("rainbow", CARTPOLE, {}),
    "qr_dqn": ("qr_dqn", CARTPOLE, {}),
    "munchausen": ("dqn", CARTPOLE, {"agent.temperature": 0.1, "agent.munchausen": 0.9}),
    "iqn": ("iqn", CARTPOLE, {"network.core": "frame_stack", "network.head_size": 8}),
    "discrete_sac": ("discrete_sac", CARTPOLE, {"network.core": "frame_stack"}),
    "muzero": ("muzero", CARTPOLE, {"network.core": "frame_stack"}),
    "gumbel": ("muzero", CARTPOLE, {"agent.search": "gumbel", "agent.target_values": True, "agent.reanalyse": 0.5}),
    "alphazero": ("alphazero", CARTPOLE, {"network.core": "frame_stack"}),
    "vmpo": ("vmpo", CARTPOLE, {}),
    "vmpo-lstm": ("vmpo", PENDULUM, BOTH),
    "mpo": ("mpo", PENDULUM, {}),
    "crossq": ("crossq", PENDULUM, {}),
    "dreamer": ("dreamer", CARTPOLE, {}),
    "dreamer-continuous": ("dreamer", PENDULUM, {}),
    "apex_dqn": ("apex_dqn", CARTPOLE, {"network.core": "frame_stack"}),
    "r2d2": ("r2d2", CARTPOLE, BOTH),
    "ppo-gru": ("ppo", CARTPOLE, {"network.core": "gru", "network.core_size": 8}),
    "r2d2-mingru": ("r2d2", CARTPOLE, {"network.core": "mingru"}),
    "ppo-gtrxl": ("ppo", CARTPOLE, {"network.core": "gtrxl", "network.core_size": 8, "network.core_rows": 6}),
    "r2d2-gtrxl": ("r2d2", CARTPOLE, {"network.core": "gtrxl", "network.core_size": 8}),
}


def _equal(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


SHORT = ("ppo", "a2c-continuous", "impala", "impala_replay", "impala-stack", "dqn")


@pytest.mark.parametrize(
    ("variant", "num_devices"),
    marks.some(itertools.product(VARIANTS, [1, 2]), fast={f"{variant}-2" for variant in SHORT}),
)
def test_three_iterations_move_finite_parameters_and_compile_once(small, variant, num_devices, caplog):
    system, env, settings = VARIANTS[variant]
    run = small(system, env, num_devices, settings)
    before = run.params
    with jax.log_compiles(), caplog.at_level("WARNING"):
        run.run(3).run(1).run(2)
    assert all(np.isfinite(leaf).all() for leaf in run.params)
    assert not _equal(before, run.params)
    assert sum(record.getMessage().startswith("Compiling jit(_train)") for record in caplog.records) == 1


REPLICAS = ("ppo", "a2c", "rainbow", "es", "vmpo", "crossq", "mappo", "muzero", "dreamer")


@pytest.mark.parametrize("variant", marks.some(REPLICAS, fast={"ppo"}))
def test_replicas_stay_bitwise_equal(small, variant):
    system, env, settings = VARIANTS[variant]
    run = small(system, env, 4, settings).run(6)
    for leaf in jax.tree.leaves(run.state.learner):
        shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(shards) == 4
        assert all(np.array_equal(shards[0], shard) for shard in shards[1:])


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_of_any_length_give_the_same_run(small, variant):
    system, env, settings = VARIANTS[variant]
    whole = small(system, env, 2, settings).run(7)
    parts = small(system, env, 2, settings).run(3).run(1).run(3)
    assert _equal(whole.params, parts.params)


@pytest.mark.slow
def test_seeds_on_several_devices_are_the_seeds_alone(small):
    together = small("ppo", CARTPOLE, 2, {"num_seeds": 4}).run(3)
    assert dict(together.layout.mesh.shape) == {"seeds": 2, "devices": 1}
    alone = small("ppo", CARTPOLE, 1, {"seed": 3}).run(3)
    # Another program: the compiler may order sums otherwise.
    for a, b in zip(together.params, alone.params, strict=True):
        np.testing.assert_allclose(a[3], b[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("system", "num_devices", "num_seeds", "copies"),
    [("dqn", 1, 1, False), ("dqn", 1, 2, True), ("dqn", 2, 2, False), ("dqn", 2, 4, True), ("ppo", 1, 2, False)],
)
def test_seeds_in_turn_copy_their_replays(small, monkeypatch, system, num_devices, num_seeds, copies):
    made = small(system, CARTPOLE, num_devices, {"num_seeds": num_seeds})
    assert made.layout.copies_state(num_seeds) == copies
    monkeypatch.setattr(meshes, "vectorises_seeds", lambda mesh: True)
    assert not made.layout.copies_state(num_seeds)


@pytest.mark.slow
def test_vectorised_seeds_agree_with_seeds_one_after_the_other(small, monkeypatch):
    for system in ("ppo", "rainbow"):
        loop = small(system, CARTPOLE, 1, {"num_seeds": 3}).run(4)
        with monkeypatch.context() as patch:
            patch.setattr(meshes, "vectorises_seeds", lambda mesh: True)
            batch = small(system, CARTPOLE, 1, {"num_seeds": 3}).run(4)
        np.testing.assert_array_equal(loop.metrics.updates, batch.metrics.updates)
        for a, b in zip(loop.params, batch.params, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


# One of each kind of agent.
LOWERED = ("ppo", "es", "a2c-lstm", "sac", "rainbow", "r2d2")


@pytest.mark.parametrize("variant", marks.some(list(VARIANTS), fast=LOWERED))
def test_programs_lower_for_every_platform(small, variant):
    system, env, settings = VARIANTS[variant]
    run = small(system, env, 2, settings)
    arguments = run.layout.run_arguments(run.layout.template(run.keys), 0, 1, 20)
    # One module for all: an operation that one of them lacks is an error that names it.
    text = run.layout.program.trace(*arguments).lower(lowering_platforms=("cpu", "cuda", "tpu")).as_text()
    assert "stablehlo" in text


def test_an_iteration_is_traced_once(small, monkeypatch):
    traced, iterate = [], anakin.Anakin._iterate
    monkeypatch.setattr(anakin.Anakin, "_iterate", lambda *args: traced.append(args) or iterate(*args))
    run = small("ppo", CARTPOLE, 1, {})
    run.layout.program.trace(*run.layout.run_arguments(run.layout.template(run.keys), 0, 1, 20))
    assert len(traced) == 1


def test_updates_follow_samples_per_insert(small):
    settings = {"replay.samples_per_insert": 1.5, "replay.min_size": 64}
    run = small("dqn", CARTPOLE, 1, settings).run(9)
    # 32 rows per iteration, 32 rows per update, learning from the second iteration on: 8 × 1.5 updates.
    assert run.metrics.updates.tolist() == [12]


def test_environments_have_their_own_keys_whatever_the_number_of_devices(small):
    one, four = (small("ppo", CARTPOLE, n, {}) for n in (1, 4))
    left, right = (np.asarray(run.state.actors.timestep.observation) for run in (one, four))
    np.testing.assert_array_equal(left, right)
    assert len(np.unique(left[0, :, 0])) == 8


def test_an_unroll_whose_loop_carries_words_is_the_same() -> None:
    made = jaxrl_dist.make("ppo", "gymnax:CartPole-v1", settings={"env.num_envs": 3})
    columns = jnp.arange(3)
    state, timestep = envs.columns(made.environment).reset(jax.random.key(0), columns)
    actors = unroll.ActorState(state, timestep, made.agent.init_carry(3))
    params = made.agent.init(jax.random.key(1))
    plain, packed = (
        jax.jit(unroll.device_unroll(made.agent, made.environment, 40, packs=packs))(
            params, actors, jax.random.key(2), (), jnp.int32(5)
        )
        for packs in (False, True)
    )
    assert int(plain[2].episodes) > 0
    for x, y in zip(jax.tree.leaves(plain), jax.tree.leaves(packed), strict=True):
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("system", ["dqn", pytest.param("r2d2", marks=pytest.mark.slow)])
def test_iterations_that_carry_words_are_the_same(small, system, monkeypatch):
    settings = {"replay.min_size": 64} | ({"layout.unroll_length": 1} if system == "dqn" else {})
    plain = small(system, CARTPOLE, 1, settings).run(12)
    monkeypatch.setattr(anakin, "_packs", lambda mesh: True)
    packed = small(system, CARTPOLE, 1, settings).run(12)
    assert plain.metrics.updates.tolist() == packed.metrics.updates.tolist() != [0]
    for x, y in zip(jax.tree.leaves(plain.state), jax.tree.leaves(packed.state), strict=True):
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
