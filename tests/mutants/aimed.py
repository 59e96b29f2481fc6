"""Mutants chosen by hand: wrong equations that no short test noticed once, and their like."""

from typing import NamedTuple


class Aimed(NamedTuple):
    """A wrong change of a file of the package.

    Attributes:
        file: of the package.
        old: text that stands there once.
        new: what is put in its place.
        breaks: the rule that does not hold then.
    """

    file: str
    old: str
    new: str
    breaks: str


MUTANTS = (
    Aimed(
        "agents/ppo.py",
        "jnp.minimum(surrogate, clipped * batch.advantage)",
        "jnp.maximum(surrogate, clipped * batch.advantage)",
        "PPO's objective is the lower of the clipped and the free one (Schulman et al. 2017, equation 7)",
    ),
    Aimed(
        "agents/ppo.py",
        "jnp.maximum(error, jnp.square(moved - batch.target))",
        "jnp.minimum(error, jnp.square(moved - batch.target))",
        "the clipped value error is the larger of the two",
    ),
    Aimed(
        "agents/ppo.py",
        "moved = batch.value + jnp.clip",
        "moved = value + jnp.clip",
        "values are clipped around those of the policy that acted",
    ),
    Aimed(
        "agents/ppo.py",
        "centred / (jnp.sqrt(spread(variance)) + 1e-8)",
        "centred / (spread(variance) + 1e-8)",
        "advantages are divided by their deviation",
    ),
    Aimed(
        "agents/shared/normalisation.py",
        "reward / jnp.maximum(",
        "reward * jnp.maximum(",
        "rewards are divided by the deviation of returns",
    ),
    Aimed(
        "agents/shared/normalisation.py",
        "jnp.maximum(deviation, config.smallest_deviation)",
        "jnp.minimum(deviation, config.smallest_deviation)",
        "the least deviation is a lower bound",
    ),
    Aimed(
        "numeric/returns.py",
        "goes_on = step_type != types.FIRST",
        "goes_on = step_type != types.LAST",
        "running returns begin anew with an episode",
    ),
    Aimed(
        "numeric/returns.py",
        "reward.at[0].add(gamma * before)",
        "reward.at[0].add(before)",
        "running returns go on from those before the first row",
    ),
    Aimed(
        "agents/shared/normalisation.py",
        "config.discount * discounted_return + timestep.reward",
        "discounted_return + timestep.reward",
        "the running return is discounted",
    ),
    Aimed(
        "agents/shared/normalisation.py",
        "jnp.where(agents.is_first(timestep), 0.0, config.discount",
        "jnp.where(False, 0.0, config.discount",
        "the running return begins anew with an episode",
    ),
    Aimed(
        "agents/shared/action_values.py",
        "jnp.minimum((uniform[0] *",
        "jnp.minimum((uniform[1] *",
        "random actions are drawn apart from whether to be random",
    ),
    Aimed(
        "replay/ring.py",
        "config.importance_exponent + progress *",
        "config.importance_exponent + (1 - progress) *",
        "β grows with progress",
    ),
    Aimed(
        "replay/ring.py",
        "jnp.maximum(jnp.maximum(largest, of_all.max()), ",
        "jnp.maximum(largest, ",
        "the largest priority is one number for all shards",
    ),
    Aimed(
        "agents/dqn.py",
        "evaluate(inputs.target, batch.next_inputs, noise[1])",
        "evaluate(inputs.target, batch.next_inputs, noise[0])",
        "the target draws noise of its own",
    ),
    Aimed(
        "agents/dqn.py",
        "evaluate(params.network, batch.next_inputs, noise[2])",
        "evaluate(params.network, batch.next_inputs, noise[1])",
        "the choice draws noise of its own",
    ),
    Aimed(
        "agents/dqn.py",
        "key, noise_key = jax.random.split(inputs.key)",
        "key = noise_key = jax.random.split(inputs.key)[0]",
        "the acting network's noise has a key of its own",
    ),
    Aimed(
        "learning/learner.py",
        'scale = 1 / valid if config.reduction == "mean" else 1.0',
        'scale = 1 / valid if config.reduction == "mean" else 2.0',
        "the sum of losses is not scaled",
    ),
    Aimed(
        "learning/learner.py",
        "jnp.where(norm < limit, g, g / norm * limit)",
        "jnp.where(norm < 2 * limit, g, g / norm * limit)",
        "gradients are clipped at the norm that is set",
    ),
    Aimed(
        "agents/dpg.py",
        "next_action = jnp.clip(next_action + jnp.clip(noise, -bound, bound), -1.0, 1.0)",
        "next_action = jnp.clip(next_action + jnp.clip(noise, -bound, bound), -2.0, 2.0)",
        "smoothed target actions stay in the range of actions",
    ),
    Aimed(
        "agents/shared/actor_critic.py",
        "acted = agents.taught_rows(timestep.step_type).at[-1].set(0.0) > 0",
        "acted = agents.taught_rows(timestep.step_type) > 0",
        "the closing row was not acted on yet",
    ),
    Aimed(
        "learning/step.py",
        "credit = credit + jnp.where(ready, numerator, 0)",
        "credit = credit + numerator",
        "no credit is gathered before the replay is ready",
    ),
    Aimed(
        "learning/step.py",
        "(self.credit(iteration) + numerator) // denominator",
        "(self.credit(iteration) - numerator) // denominator",
        "the schedule of updates is that of the credit",
    ),
    Aimed(
        "replay/sum_tree.py",
        "takes = (start <= rest) & (children[:, i] > 0)",
        "takes = start <= rest",
        "rounding never leads to an item without priority",
    ),
    Aimed(
        "replay/sum_tree.py",
        "takes = (start <= rest) & (children[:, i] > 0)",
        "takes = (start < rest) & (children[:, i] > 0)",
        "a share at the first item of a node leads to it",
    ),
    Aimed(
        "agents/ppo.py",
        "jnp.clip(ratio, 1 - config.clip_epsilon, 1 + config.clip_epsilon)",
        "jnp.clip(ratio, 1 - 2 * config.clip_epsilon, 1 + config.clip_epsilon)",
        "the ratio is clipped at 1 − ε",
    ),
    Aimed(
        "agents/dpg.py",
        "noise = config.target_noise * jax.random.normal(inputs.key, next_action.shape)",
        "noise = config.target_noise * jax.random.normal(inputs.key, next_action.shape[-1:])",
        "each row's target action is smoothed by noise of its own",
    ),
    Aimed(
        "learning/learner.py",
        "share = _left(config, past) if config.anneal else 1.0",
        "share = _left(config, past * past) if config.anneal else 1.0",
        "the step size falls linearly",
    ),
    Aimed(
        "learning/learner.py",
        "due = (state.updates + 1) % part.period == 0",
        "due = state.updates % part.period == 0",
        "a delayed part moves in each period's last update",
    ),
    Aimed(
        "learning/learner.py",
        "keys = jax.random.split(inputs.key, config.epochs)",
        "keys = jnp.stack([jax.random.key(7)] * config.epochs)",
        "each epoch and each update has an order of its own",
    ),
    Aimed(
        "learning/learner.py",
        "jax.random.split(loss_key, config.minibatches)",
        "jnp.stack([loss_key] * config.minibatches)",
        "each minibatch has draws of its own",
    ),
    Aimed(
        "replay/ring.py",
        "max(windows.length, -(-config.min_size // num_columns))",
        "-(-config.min_size // num_columns)",
        "nothing is drawn before a window is whole",
    ),
    Aimed(
        "numeric/moments.py",
        "_SMALLEST_STD = 1e-6",
        "_SMALLEST_STD = 1e-2",
        "what varies a little is no constant",
    ),
    Aimed(
        "training/evaluation.py",
        "returns = jnp.where(done, returns, so_far)",
        "returns = so_far",
        "an evaluation counts each environment's first episode",
    ),
    Aimed(
        "training/evaluation.py",
        'act_key = jax.random.fold_in(act_key, jax.lax.axis_index("devices"))',
        "pass",
        "each device's episodes draw actions of their own",
    ),
    Aimed(
        "training/evaluation.py",
        "key = jax.random.fold_in(act_key, i)",
        "key = act_key",
        "each step of an evaluation draws anew",
    ),
    Aimed(
        "training/evaluation.py",
        "0, 0, episodes)[own]",
        "0, 0, num_own)",
        "processes evaluate different episodes",
    ),
    Aimed(
        "networks/torsos.py",
        "x = x + conv(nn.relu(conv(nn.relu(x), channels)), channels)",
        "x = conv(nn.relu(conv(nn.relu(x), channels)), channels)",
        "a residual block adds to its input (Espeholt et al. 2018, figure 3)",
    ),
    Aimed(
        "networks/torsos.py",
        "(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512)",
        "(((16, 8, 4), (32, 4, 2), (32, 3, 1)), 256)",
        "the filters of Atari's network (Mnih et al. 2015, methods)",
    ),
    Aimed(
        "networks/__init__.py",
        "self._layer(x, config.head_size, math.sqrt(2.0), noise)",
        "self._layer(x, config.head_size, 5.0, noise)",
        "a head's hidden layer begins with the gain of relu",
    ),
)
