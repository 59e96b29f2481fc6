r"""MuZero: a tree search in a learned model, whose results the network learns to predict.

A representation makes a hidden state of the observation, dynamics step it by actions, and predictions are made of it:

.. math:: s^0 = h_\theta(o_t), \qquad r^k, s^k = g_\theta(s^{k-1}, a_{t+k-1}), \qquad p^k, v^k = f_\theta(s^k)

With π the search's policy, u the rewards, ν the search's value, CE the cross-entropy, φ the two atoms next to ψ(x), and
w = 1 at k = 0 and 1 / K after it, the loss of a window is

.. math:: L = \sum_{k=0}^K w_k \left(CE(\pi_{t+k}, p^k) + c \, CE(\phi(z_{t+k}), v^k)\right)
   + \sum_{k=1}^K w_k \, CE(\phi(u_{t+k}), r^k)

.. math:: z_t = \sum_{i=0}^{n-1} \gamma^i u_{t+1+i} + \gamma^n \nu_{t+n}

Behind the end of an episode rewards and values are 0, there is no policy, and actions are drawn; behind a time limit
there is nothing to learn. Hidden states are scaled to [0, 1], and half of a gradient passes into the state that
dynamics step. Where two players take turns, γ is negative. An item's priority is \|ν − z\|, and once it was learned
from \|v⁰ − z\|.

With `target_values` ν is the value by the target network, and of the share `reanalyse` of windows π is that of a new
search by it.

Source: Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model", equations 1
to 6, appendices D to H; Danihelka et al. 2022 (`agent.search=gumbel`). Differs from the paper: hidden states are
vectors, the search again is by the target network, and optimisers are the learner's.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents.shared import action_values, opponent_pool, search
from jaxrl_dist.numeric import vectors
from jaxrl_dist.settings import OURS, setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete",)
_PAPER = "Schrittwieser et al. 2020"
_SMALLEST_RANGE = 1e-5


@dataclasses.dataclass(frozen=True)
class Config(search.Config, opponent_pool.Config):
    """Settings of MuZero; defaults are the paper's for Atari."""

    unroll_steps: int = setting(
        5, "Steps of the model that are learned (K).", low=1, source=f"{_PAPER}, pseudocode (make_atari_config)"
    )
    latent_size: int = setting(
        256, "Numbers of a hidden state.", low=2, source=f"{OURS} ({_PAPER}, appendix F: 6 × 6 planes of 256)"
    )
    model_size: int = setting(
        256, "Units of the hidden layers of dynamics and heads.", low=1, source=f"{OURS} ({_PAPER}: residual blocks)"
    )
    target_values: bool = setting(
        False,
        "Bootstrap from values by the target network, which stay fresh, instead of those that acting found.",
        source=f"{_PAPER}, appendix H (with reanalysis)",
    )
    reanalyse: float = setting(
        0.0,
        "Share of windows whose policy is searched anew by the target network; 0 takes all from acting.",
        low=0.0,
        high=1.0,
        source=f"{_PAPER}, appendix H (.8 where it is used)",
    )


class Batch(NamedTuple):
    """N windows of K steps.

    Attributes:
        inputs: tree of [N, ...], of the representation.
        action: i32 [N, K].
        reward: f32 [N, K], of the steps.
        value: f32 [N, K + 1], targets z.
        policy: f32 [N, K + 1, A], targets π.
        teaches_reward: f32 [N, K], 1 where a reward teaches.
        teaches_value: f32 [N, K + 1].
        teaches_policy: f32 [N, K + 1].
    """

    inputs: ArrayTree
    action: Array
    reward: Array
    value: Array
    policy: Array
    teaches_reward: Array
    teaches_value: Array
    teaches_policy: Array


class _Static(NamedTuple):
    config: Config
    net: networks.Network
    model: "_Model"
    atoms: Any
    gamma: float


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of the network, of which the representation is made.

    Raises:
        UsageError: actions are not choices of few, the core has a memory, mctx is not installed, or there is a pool of
            opponents without a game of two.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import muzero
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> agent = muzero.make(muzero.Config(num_atoms=5), spec, network)
        >>> sorted(agent.init(jax.random.key(0)).network)
        ['model', 'representation']
    """
    search.library(config)
    networks.check_single_steps(network.core)
    num_actions = action_values.check_discrete(spec)
    head = networks.Head("latent", config.latent_size, 1.0, inputs=action_values.inputs_of(network))
    model = _Model(config.latent_size, config.model_size, num_actions, config.num_atoms)
    net = networks.make(network, spec, (head,))
    static = _Static(config, net, model, search.support(config), search.signed_discount(config, spec))
    agent = agents.Agent(
        init=functools.partial(_init, static),
        init_carry=net.initial,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="any",
        context=net.context,
        taught=1,
        lookahead=config.unroll_steps + config.n_step,
        exploration=functools.partial(search.temperature_schedule, start=config.temperature),
        target=agents.copy_target if config.target_values or config.reanalyse else agents.no_target,
        first_error=functools.partial(_first_error, static),
    )
    return opponent_pool.make(agent, config, spec)


class _Model(nn.Module):
    """Dynamics and predictions of hidden states f32 [N, H] in [0, 1]."""

    latent_size: int
    model_size: int
    num_actions: int
    num_atoms: int

    def setup(self) -> None:
        self.step_hidden = nn.Dense(self.model_size)
        self.step_out = nn.Dense(self.latent_size)
        self.reward = self._head(self.num_atoms)
        self.value = self._head(self.num_atoms)
        self.policy = self._head(self.num_actions)

    def _head(self, size: int) -> nn.Sequential:
        # Untrained policies are uniform, and values 0.
        last = nn.Dense(size, kernel_init=nn.initializers.zeros_init())
        return nn.Sequential([nn.Dense(self.model_size), nn.relu, last])

    def __call__(self, hidden: Array, action: Array) -> Any:
        return self.predict(hidden), self.step(hidden, action)

    def predict(self, hidden: Array) -> tuple[Array, Array]:
        """Returns logits f32 [N, A] of the policy and f32 [N, atoms] of the value."""
        return self.policy(hidden), self.value(hidden)

    def step(self, hidden: Array, action: Array) -> tuple[Array, Array]:
        """Returns the next hidden state, and logits f32 [N, atoms] of the reward."""
        chosen = jax.nn.one_hot(action, self.num_actions, dtype=hidden.dtype)
        x = nn.relu(self.step_hidden(jnp.concatenate([hidden, chosen], -1)))
        return scaled(hidden + self.step_out(x)), self.reward(x)


def scaled(hidden: Array) -> Array:
    """Scales each hidden state f32 [N, H] to [0, 1].

    Args:
        hidden: f32 [N, H].

    Source: Schrittwieser et al. 2020, appendix G.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import muzero
        >>> print(muzero.scaled(jnp.array([[-1.0, 0.0, 3.0]])))
        [[0.   0.25 1.  ]]
    """
    low, high = hidden.min(-1, keepdims=True), hidden.max(-1, keepdims=True)
    return (hidden - low) / jnp.maximum(high - low, _SMALLEST_RANGE)


def halved_gradient(x: Array) -> Array:
    """Returns x, through which half of a gradient passes.

    Args:
        x: f32 [...].

    Source: Schrittwieser et al. 2020, appendix G.

    Example:
        >>> import jax
        >>> from jaxrl_dist.agents import muzero
        >>> print(jax.grad(muzero.halved_gradient)(3.0))
        0.5
    """
    return 0.5 * x + jax.lax.stop_gradient(0.5 * x)


def _init(static: _Static, key: Array) -> types.Params:
    representation_key, model_key = jax.random.split(key)
    hidden, action = jnp.zeros((1, static.config.latent_size)), jnp.zeros(1, jnp.int32)
    model = static.model.init(model_key, hidden, action)["params"]
    return types.Params({"representation": static.net.init(representation_key), "model": model}, ())


def _predict(static: _Static, network: ArrayTree, hidden: Array) -> tuple[Array, Array]:
    found: Any = static.model.apply({"params": network["model"]}, hidden, method=_Model.predict)
    return found


def _step(static: _Static, network: ArrayTree, hidden: Array, action: Array) -> tuple[Array, Array]:
    found: Any = static.model.apply({"params": network["model"]}, hidden, action, method=_Model.step)
    return found


def _node(static: _Static, network: ArrayTree, hidden: Array) -> search.Node:
    logits, value = _predict(static, network, hidden)
    return search.Node(logits, search.number(value, static.atoms), hidden)


def _search(
    static: _Static, network: ArrayTree, outputs: dict[str, Array], key: Array, temperature: Array | None
) -> tuple[Array, search.Found]:
    """Searches in the model from the outputs of the representation."""

    def model(network: ArrayTree, key: Array, action: Array, hidden: ArrayTree) -> search.Edge:
        del key
        hidden, reward = _step(static, network, hidden, action)
        reward = search.number(reward, static.atoms)
        return search.Edge(reward, jnp.full_like(reward, static.gamma), _node(static, network, hidden))

    root = _node(static, network, scaled(outputs["latent"]))
    return search.run(static.config, model, network, key, root, outputs.get("mask"), temperature)


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    outputs, carry = _represent(static, params, inputs)
    action, found = _search(static, params.network, outputs, inputs.key, inputs.exploration)
    return types.ActOutput(action, found, carry)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    outputs, carry = _represent(static, params, inputs)
    action, _ = _search(static, params.network, outputs, inputs.key, None)
    return types.ActOutput(action, (), carry)


def _represent(static: _Static, params: types.Params, inputs: types.ActInputs) -> tuple[dict[str, Array], ArrayTree]:
    timestep, network = inputs.timestep, params.network["representation"]
    found: Any = static.net.step(network, inputs.carry, timestep.observation, agents.is_first(timestep))
    return found


def _targets(static: _Static, timestep: types.TimeStep, value: Array) -> Array:
    """Returns z f32 [L − 1, N] of windows [L, N]."""
    return search.n_step_values(static.config.n_step, static.gamma, timestep, value)


def _first_error(static: _Static, sequences: types.Unroll) -> Array:
    """Returns |ν − z| f32 [N] of new windows (appendix G)."""
    rows = jax.tree.map(lambda x: x[static.net.context :], sequences.steps)
    value = rows.extras.value
    return jnp.abs(value[0] - _targets(static, rows.timestep, value)[0])


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> Batch:
    """Makes the targets of each window's K + 1 rows."""
    del params
    config, sequences, last = static.config, inputs.batch, static.config.unroll_steps + 1
    timestep, context = sequences.steps.timestep, static.net.context
    seen = static.net.inputs(sequences.carry.frames, timestep.observation, agents.is_first(timestep))
    rows, seen = jax.tree.map(lambda x: x[context:], (sequences.steps, seen))
    action_key, search_key, choice_key = jax.random.split(inputs.key, 3)
    found = rows.extras
    if config.target_values or config.reanalyse:
        found = _found_again(static, inputs.target, found, seen, search_key, choice_key)
    timestep = rows.timestep
    over, unknown = _ends(timestep.step_type[:last], timestep.discount[:last])
    plays = ~(over | unknown)
    # A reward teaches where the row that it leaves is known, and the first step behind an end is 0 too.
    teaches_reward = plays[:-1] | over[:-1]
    chose = plays & opponent_pool.has_policy(found.policy[:last]) if config.pool_size else plays
    drawn = jax.random.randint(action_key, plays[:-1].shape, 0, found.policy.shape[-1])
    by_item = functools.partial(jnp.swapaxes, axis1=0, axis2=1)
    return Batch(
        jax.tree.map(lambda x: x[0], seen),
        by_item(jnp.where(plays[:-1], rows.action[: last - 1], drawn)),
        by_item(jnp.where(plays[:-1], timestep.reward[1:last], 0.0)),
        by_item(jnp.where(plays, _targets(static, timestep, found.value)[:last], 0.0)),
        by_item(jnp.where(plays[..., None], found.policy[:last], 0.0)),
        *(by_item(x.astype(jnp.float32)) for x in (teaches_reward, plays | over, chose)),
    )


def _ends(step_type: Array, discount: Array) -> tuple[Array, Array]:
    """Returns bool [K + 1, N], whether a row is at or behind a termination (or a lost life), and behind a cut.

    The first row is judged by itself: it is behind nothing, and untaught if it is LAST.
    """
    is_last, rows = step_type == types.LAST, jnp.arange(step_type.shape[0])[:, None]
    # Rows of the episode that the window opens in.
    within = jnp.cumsum(is_last, 0) - is_last == 0
    over = jnp.cumsum(within & (discount == 0) & (rows > 0), 0) > 0
    return over, ~over & (is_last | ~within)


def _found_again(
    static: _Static, target: ArrayTree, found: search.Found, seen: ArrayTree, search_key: Array, choice_key: Array
) -> search.Found:
    """Takes values of all rows, and of a share of windows policies, by the target network (appendix H)."""
    config, (length, items) = static.config, found.value.shape
    rows = config.unroll_steps + 1
    seen = seen if config.target_values else jax.tree.map(lambda x: x[:rows], seen)
    outputs = networks.of_rows(static.net, target["representation"], vectors.flat(seen))
    if config.target_values:
        value = _node(static, target, scaled(outputs["latent"])).value
        found = found._replace(value=value.reshape(length, items))
    if not config.reanalyse:
        return found
    outputs = jax.tree.map(lambda x: x[: rows * items], outputs)
    temperature = jnp.full(rows * items, config.temperature, jnp.float32)
    policy = _search(static, target, outputs, search_key, temperature)[1].policy
    chosen = jax.random.bernoulli(choice_key, config.reanalyse, (items,))
    return found._replace(policy=jnp.where(chosen[:, None], policy.reshape(rows, items, -1), found.policy[:rows]))


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Computes the loss of windows (equation 1), each step's heads weighted by 1 / K (appendix G)."""
    config, batch, network = static.config, inputs.batch, params.network
    steps, atoms = config.unroll_steps, static.atoms
    hidden = scaled(networks.of_rows(static.net, network["representation"], batch.inputs)["latent"])
    logits_of_values, losses = [], {name: jnp.zeros(hidden.shape[0]) for name in ("policy", "value", "reward")}
    for k in range(steps + 1):
        share = 1.0 if k == 0 else 1.0 / steps
        if k:
            hidden, reward = _step(static, network, halved_gradient(hidden), batch.action[:, k - 1])
            of_reward = search.number_loss(reward, batch.reward[:, k - 1], atoms)
            losses["reward"] += share * jnp.where(batch.teaches_reward[:, k - 1] > 0, of_reward, 0.0)
        logits, value = _predict(static, network, hidden)
        logits_of_values.append(value)
        of_policy = search.policy_loss(logits, batch.policy[:, k])
        losses["policy"] += share * jnp.where(batch.teaches_policy[:, k] > 0, of_policy, 0.0)
        of_value = search.number_loss(value, batch.value[:, k], atoms)
        losses["value"] += share * jnp.where(batch.teaches_value[:, k] > 0, of_value, 0.0)
    taught, predicted = batch.teaches_value[:, 0], search.number(logits_of_values[0], atoms)
    metrics = {f"{name}_loss": jnp.where(taught > 0, x, 0.0) for name, x in losses.items()}
    loss = metrics["policy_loss"] + config.value_cost * metrics["value_loss"] + metrics["reward_loss"]
    error = jnp.where(taught > 0, jnp.abs(predicted - batch.value[:, 0]), 0.0)
    metrics |= {"value": jnp.where(taught > 0, predicted, 0.0), "td_error": error, "loss": loss}
    return types.LossOutput(loss, taught, jax.lax.stop_gradient(error), metrics, {})
