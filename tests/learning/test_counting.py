"""Updates are counted one by one within an iteration, by the loop that makes them."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_dist
from jaxrl_dist import envs
from jaxrl_dist.learning import step
from jaxrl_dist.parallel import unroll


def test_the_target_follows_at_the_update_of_an_iteration_that_is_due() -> None:
    sizes = {"replay.capacity": 64, "replay.min_size": 4, "replay.batch_size": 4, "env.num_envs": 2}
    sizes |= {"layout.unroll_length": 4, "replay.samples_per_insert": 1.0, "learner.target_period": 2}
    _, environment, agent, replay, learner, _ = jaxrl_dist.make("dqn", "toy:walk", settings=sizes)
    keys, columns = jax.random.split(jax.random.key(0), 4), jnp.arange(2)
    state = learner.init(agent.init(keys[0]))
    actors = unroll.ActorState(*envs.columns(environment).reset(keys[1], columns), agent.init_carry(2))
    rows = unroll.device_unroll(agent, environment, length=4)(state.params, actors, keys[2], jnp.ones(2), 0)[1]
    memory = replay.init(unroll.step_struct(rows.steps), rows.carry)
    learn = jax.jit(step.make(learner, replay))
    after, _, _, updates, _ = learn(state, memory, [(rows, None)], 0, True, keys[3], 0.0)
    assert int(updates) == int(after.updates) == 2
    before, target, network = map(jax.tree.leaves, (state.target_network, after.target_network, after.params.network))
    for x, y in zip(target, network, strict=True):
        np.testing.assert_array_equal(x, y)
    assert any((x != y).any() for x, y in zip(target, before, strict=True))
