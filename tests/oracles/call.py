"""The only bridge between the oracles and the package: it makes agents and random batches, and calls ours in float64.

Networks are linear, so that an oracle needs no more than a product to compute their outputs. All that comes out is
NumPy in plain dicts; numbers that go in are f32 numbers, held in float64.
"""

import contextlib
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from oracles import policy

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import (
    a2c,
    alphazero,
    crossq,
    discrete_sac,
    dpg,
    dqn,
    impala,
    iqn,
    mpo,
    muzero,
    ppo,
    pqn,
    r2d2,
    rnd,
    sac,
    vmpo,
)
from jaxrl_dist.agents.shared import actor_critic, normalisation, search
from jaxrl_dist.learning import learner
from jaxrl_dist.networks import noisy
from jaxrl_dist.numeric import moments
from jaxrl_dist.parallel import mesh

_AGENTS = (a2c, alphazero, crossq, discrete_sac, dpg, dqn, impala, iqn, mpo, muzero, ppo, pqn, r2d2, rnd, sac, vmpo)
MODULES = {module.__name__.rpartition(".")[2]: module for module in _AGENTS}
# Sizes of observations, discrete actions, real actions, the LSTM, and the stack.
D, A, REAL, UNITS, FRAMES = 3, 3, 2, 2, 2
LOW, HIGH = policy.LOW, policy.HIGH


class Made(NamedTuple):
    """An agent, its settings, its number of actions (0: they are real), and its core."""

    agent: agents.Agent
    config: Any
    num_actions: int
    core: str
    spec: types.EnvironmentSpec

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, and the number of actions."""
        return {**vars(self.config), "num_actions": self.num_actions}


class Found(NamedTuple):
    """Results of our code: sums over the taught rows of a batch, and values of each item.

    Attributes:
        loss: Σ weight · loss.
        gradient: its gradient by the network's parameters, in the oracles' dict.
        valid: taught rows.
        metrics: sums.
        maxima: by name.
        priorities: [N].
        draws: normal numbers, factors of noisy layers and levels of quantiles, in the order of their use.
        aux: what `adapt` gets, on one device.
    """

    loss: float
    gradient: dict[str, Any]
    valid: float
    metrics: dict[str, float]
    maxima: dict[str, float]
    priorities: np.ndarray
    draws: list[np.ndarray]
    aux: Any = ()


@contextlib.contextmanager
def wide() -> Iterator[None]:
    """Lets ours compute in float64, whose functions refuse it by their checks of dtypes, and use no key twice."""
    chex.disable_asserts()
    try:
        with jax.enable_x64(True), jax.debug_key_reuse(True):
            yield
    finally:
        chex.enable_asserts()


def make(
    name: str, *, real: bool = False, core: str = "identity", hidden_sizes: tuple[int, ...] = (), **settings: Any
) -> Made:
    """Makes an agent with a linear network: one layer per head, after an LSTM or a stack where `core` says so."""
    low, high = (-1.0, 1.0) if settings.get("distribution") == "tanh_gaussian" else (LOW, HIGH)
    action = types.BoxSpace((REAL,), low, high) if real else types.DiscreteSpace(A)
    observation = jax.ShapeDtypeStruct((D,), jnp.float32)
    spec = types.EnvironmentSpec("toy:x", observation, action, "continuous" if real else "classic", (-1.0, 1.0))
    network = networks.Config(
        torso="mlp", hidden_sizes=hidden_sizes, core=core, core_size=UNITS, num_frames=FRAMES, shared=core != "identity"
    )
    config = MODULES[name].Config(**settings)
    with unittest.mock.patch.object(noisy, "draw", _recorded(noisy.draw)):
        # Only acting takes the model of a system with one.
        model = (lambda state, action: (state, ()),) if name == "alphazero" else ()
        agent = MODULES[name].make(config, spec, network, *model)
    return Made(agent, config, 0 if real else A, core, spec)


def rows(made: Made, seed: int, length: int, columns: int) -> dict[str, Any]:
    """Random rows [L, B]: episodes that end by themselves or are cut, lives that are lost, random actions.

    Column 0 is cut at row 2 (or the last of two), column 1 ends there, and column 2 loses a life after it. Actions and
    acting states are of no policy.
    """
    rng = np.random.default_rng(seed)
    last = rng.random((length, columns)) < 0.2
    last[:, :3] = False
    end = min(2, length - 1)
    last[end, :2] = True
    last[1:] &= ~last[:-1]
    step_type = np.where(last, types.LAST, types.MID)
    step_type[1:][last[:-1]] = types.FIRST
    ended = last & (rng.random(last.shape) < 0.5)
    ended[:, :2] = last[:, :2] & np.array([False, True])
    lost = (step_type == types.MID) & (rng.random(last.shape) < 0.1)
    lost[end + 1 :, 2] = True
    shape = (length, columns)
    action = rng.normal(size=(*shape, REAL)) if not made.num_actions else rng.integers(0, A, shape)
    found = {
        "step_type": step_type,
        "reward": np.where(step_type == types.FIRST, 0, 2 * rng.normal(size=shape)),
        "discount": 1.0 - (ended | lost),
        "observation": rng.normal(size=(*shape, D)),
        "action": action,
    }
    found = jax.tree.map(_short, found)
    if "lstm" in made.core:
        found["memory"] = [_short(rng.normal(size=(columns, UNITS))) for _ in range(2)]
    if "stack" in made.core:
        found["frames"] = _short(rng.normal(size=(columns, FRAMES - 1, D)))
    return found | {"last_action": rng.integers(0, A, columns), "squashed": squashes(made)}


def squashes(made: Made) -> bool:
    """Says whether the policy's samples are squashed; then `rows` holds samples in place of actions."""
    return made.settings.get("distribution") == "tanh_gaussian" and not made.num_actions


def normalised(made: Made, given: dict[str, Any]) -> dict[str, Any]:
    """Gives rows the observations that actors saw, and running moments, and returns them as the network gets them.

    Rows that were acted on are as the actor saw them. A LAST row and the one that opens the next unroll were not, or
    will be by later moments: they are normalised by those of now.
    """
    if not made.settings["normalise_observations"]:
        return dict(given)
    rng = np.random.default_rng(9)
    count, mean, variance = 50.0, _short(rng.normal(size=D)), _short(rng.uniform(0.5, 2.0, D))
    given["moments"] = *(np.float32(x) for x in (count, mean, count * variance)), tuple(np.zeros(3, np.float32))
    given["seen"] = _short(rng.normal(size=given["observation"].shape).clip(-1, 1))
    now = ((given["observation"] - mean) / np.sqrt(variance)).clip(-1, 1)
    acted = given["step_type"] != types.LAST
    acted[-1] = False
    return {**given, "observation": np.where(acted[..., None], given["seen"], now)}


def params(made: Made, seed: int, scale: float = 0.7) -> dict[str, Any]:
    """Random parameters of the network, in the oracles' dict."""
    rng = np.random.default_rng(seed)
    return _renamed(jax.tree.map(lambda x: _short(rng.normal(size=x.shape, scale=scale)), _shapes(made)))


def learn(
    made: Made,
    given: dict[str, Any],
    now: dict[str, Any],
    *,
    acted: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    weights: np.ndarray | None = None,
    penalty: float = 0.0,
    devices: int = 1,
    around: Callable[[Any], Any] = lambda own: own,
    key: int = 4,
) -> Found:
    """Prepares a batch by the parameters that acted, and takes the loss and its gradient by those of now.

    Args:
        made: the agent.
        given: rows [L, B].
        now: parameters that learn.
        acted: parameters that acted; the same by default.
        target: of the target network.
        weights: importance weights [B].
        penalty: DPPO's weight.
        devices: over which the columns are dealt out, one half after the other.
        around: makes statistics of those of the agent inside, for a wrapper.
        key: of the loss.
    """
    axis = mesh.AXIS if devices > 1 else types.LOCAL
    gradients = learner.make(learner.Config(), made.agent, axis).gradients

    def one(acted: Any, now: Any, target: Any, sequences: Any, weights: Any, key: Any) -> Any:
        inputs = types.LossInputs(sequences, target, key, jnp.float32(0), axis)
        batch = made.agent.prepare(acted, inputs)
        count = jax.tree.leaves(batch)[0].shape[0]
        if made.agent.epoch:
            batch = made.agent.epoch(batch, jnp.arange(count)[None], axis)
        _DRAWN.clear()
        found = gradients(now, inputs._replace(batch=batch), jnp.tile(weights, count // len(weights)))
        return found, list(_DRAWN)

    statistics = around(_statistics(made, given, penalty))
    columns = given["step_type"].shape[1]
    with contextlib.ExitStack() as stack:
        stack.enter_context(wide())
        for owner, name in ((jax.random, "normal"), (iqn, "draw_levels")):
            stack.enter_context(unittest.mock.patch.object(owner, name, _recorded(getattr(owner, name))))
        fixed = [types.Params(_named(_shapes(made), x), statistics) for x in (acted or now, now)]
        of_target = jax.eval_shape(made.agent.target, _shapes(made))
        arguments = *fixed, () if target is None else _named(of_target, target)
        split = _unroll(made, given), np.ones(columns) if weights is None else weights
        if devices == 1:
            found, drawn = jax.jit(one)(*arguments, *split, jax.random.key(key))
            sums, loss, valid, metrics = found.sums, found.loss, found.valid, found.metrics
        else:
            mapped = jax.vmap(one, (None, None, None, 0, 0, None), axis_name="devices")
            found, drawn = jax.jit(mapped)(*arguments, *_dealt(split, devices), jax.random.key(key))
            sums, loss, valid, metrics = jax.tree.map(lambda x: x.sum(0), found[:4])
        maxima = {name: float(x.max()) for name, x in found.maxima.items()}
        metrics = {name: float(x) for name, x in metrics.items()}
        sums, priorities, drawn = jax.tree.map(np.asarray, (_renamed(sums), found.priorities, drawn))
        aux = jax.tree.map(np.asarray, found.aux)
        return Found(float(loss), sums, float(valid), metrics, maxima, priorities, drawn, aux)


def prepare(made: Made, given: dict[str, Any], target: dict[str, Any] | None = None, key: int = 4) -> Any:
    """Prepares the batch that `learn` learns from, with its key; leaves in NumPy."""

    def one(sequences: Any, target: Any) -> Any:
        inputs = types.LossInputs(sequences, target, jax.random.key(key), jnp.float32(0), types.LOCAL)
        return made.agent.prepare((), inputs)

    with wide():
        of_target = () if target is None else _named(_shapes(made), target)
        return jax.tree.map(np.asarray, jax.jit(one)(_unroll(made, given), of_target))


def first_error(made: Made, given: dict[str, Any]) -> np.ndarray:
    """Errors [B] of new windows, by what acting stored."""
    with wide():
        return np.asarray(made.agent.first_error(_unroll(made, given)))


def adapt(
    made: Made, given: dict[str, Any], ended: list[dict[str, Any]], penalty: float, devices: int = 1
) -> list[float]:
    """DPPO's weight after updates that ended with these parameters."""
    axis = mesh.AXIS if devices > 1 else types.LOCAL
    statistics = _statistics(made, given, penalty)

    def one(network: Any, sequences: Any) -> Any:
        return made.agent.adapt(types.Params(network, statistics), sequences, {}, (), axis).statistics.own

    with wide():
        mapped = jax.jit(jax.vmap(one, (None, 0), axis_name="devices"))
        (sequences,) = _dealt((_unroll(made, given),), devices)
        weights = [np.asarray(mapped(_named(_shapes(made), network), sequences)) for network in ended]
    assert all((weight == weight[0]).all() for weight in weights)
    return [float(weight[0]) for weight in weights]


def moved(
    made: Made, given: dict[str, Any], ended: dict[str, Any], around: Callable[[Any], Any], devices: int = 1
) -> Any:
    """Statistics of each device, leaves [devices, ...], after an update that ended with these parameters."""
    axis = mesh.AXIS if devices > 1 else types.LOCAL
    statistics = around(_statistics(made, given, 0.0))

    def one(network: Any, sequences: Any) -> Any:
        return made.agent.adapt(types.Params(network, statistics), sequences, {}, (), axis).statistics

    with wide():
        mapped = jax.jit(jax.vmap(one, (None, 0), axis_name="devices"))
        (sequences,) = _dealt((_unroll(made, given),), devices)
        return jax.tree.map(np.asarray, mapped(_named(_shapes(made), ended), sequences))


class Played(NamedTuple):
    """An unroll as it was acted on and prepared: rewards [T, B] and observations [T, B, D], as learning gets them."""

    reward: np.ndarray
    observation: np.ndarray


def play(made: Made, given: dict[str, Any], length: int, devices: int = 1) -> tuple[list[Played], float]:
    """Acts on rows, learns nothing from each unroll but its statistics, and tells the deviation that rewards get last.

    In f32. Every value is 0, so that the advantage of one step is the reward.
    """
    axis = mesh.AXIS if devices > 1 else types.LOCAL
    agent, columns = made.agent, given["step_type"].shape[1]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), _shapes(made))
    now = types.Params(zeros, agent.init(jax.random.key(0)).statistics)
    act = jax.jit(agent.act)
    adapt = jax.jit(jax.vmap(lambda now, x: agent.adapt(now, x, {}, (), axis), (None, 0), axis_name="devices"))
    prepare = jax.jit(lambda now, x: agent.prepare(now, types.LossInputs(x, (), jax.random.key(0), 0.0, types.LOCAL)))
    carry, found = agent.init_carry(columns), []
    kinds = {"step_type": np.int8, "reward": np.float32, "discount": np.float32, "observation": np.float32}
    timestep = types.TimeStep(*(given[name].astype(kind) for name, kind in kinds.items()), ())
    for start in range(0, len(given["reward"]) - 1, length):
        steps, opened = [], carry
        for t in range(start, start + length + 1):
            row = jax.tree.map(lambda x, t=t: x[t], timestep)
            after = act(now, types.ActInputs(row, carry, jax.random.key(t), ()))
            steps.append(types.Step(row, after.action, after.extras, np.zeros(columns, np.int32)))
            # The closing row is acted on once more, as the first of the next unroll.
            carry = after.carry if t < start + length else carry
        sequences = types.Unroll(jax.tree.map(lambda *x: np.stack(x), *steps), opened)
        batch = prepare(now, sequences)
        shape = (length, columns)
        found.append(Played(*(np.asarray(x).reshape(*shape, *x.shape[1:]) for x in (batch.advantage, batch.inputs))))
        (dealt,) = _dealt((sequences,), devices)
        now = jax.tree.map(lambda x: x[0], adapt(now, dealt))
    return found, float(moments.std(now.statistics.discounted_return))


def act(
    made: Made, given: dict[str, Any], now: dict[str, Any], exploration: Any = (), key: int = 0
) -> tuple[np.ndarray, list[tuple[str, Any]]]:
    """Acts on the first row, in f32.

    Returns:
        Actions [B], and the random numbers behind them in the order of their use: the key's data, and the numbers.
    """
    drawn: list[tuple[str, Any]] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def draw(key: Any, *args: Any, **kwargs: Any) -> Any:
            found = function(key, *args, **kwargs)
            # Flax looks at the shapes of first parameters too.
            if not isinstance(found, jax.core.Tracer):
                drawn.append((str(jax.random.key_data(key)), np.asarray(found)))
            return found

        return draw

    unroll = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, _unroll(made, given))
    network = jax.tree.map(lambda x: x.astype(np.float32), _named(_shapes(made), now))
    inputs = types.ActInputs(
        jax.tree.map(lambda x: x[0], unroll.steps.timestep), unroll.carry, jax.random.key(key), exploration
    )
    with contextlib.ExitStack() as patches:
        for name in ("bits", "normal", "uniform"):
            patches.enter_context(unittest.mock.patch.object(jax.random, name, noted(getattr(jax.random, name))))
        output = made.agent.act(types.Params(network, _statistics(made, given, 0.0)), inputs)
    return np.asarray(output.action), drawn


def explore(made: Made, progress: float, count: int) -> np.ndarray:
    """Returns the exploration of each of so many environments, [B]."""
    return np.asarray(made.agent.exploration((), jnp.arange(count), count, jnp.float32(progress)))


_DRAWN: list[Any] = []


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Notes what a function that draws numbers returns."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        _DRAWN.append(function(*args, **kwargs))
        return _DRAWN[-1]

    return draw


def _unroll(made: Made, given: dict[str, Any]) -> types.Unroll:
    """Our record of the rows, with what acting stores of them."""
    shape = given["step_type"].shape
    action = given["action"].astype(np.int32) if made.num_actions else given["action"]
    extras: Any = ()
    carry: Any = networks.Carry(given.get("frames", ()), tuple(given.get("memory", ())))
    if "burn_in" in made.settings:
        carry = r2d2.Carry(carry, given["last_action"].astype(np.int32))
    if "gae_lambda" in made.settings or "correction" in made.settings:
        extras = actor_critic.Extras(given.get("log_prob", ()), action if squashes(made) else (), given.get("seen", ()))
        carry = actor_critic.Carry(carry, np.zeros(shape[1]) if made.settings["scale_rewards"] else ())
    if "simulations" in made.settings:
        extras = search.Found(given["policy"], given["value"])
    timestep = given["step_type"].astype(np.int8), given["reward"], given["discount"], given["observation"]
    timestep = types.TimeStep(*timestep, ())
    steps = types.Step(timestep, np.tanh(action) if squashes(made) else action, extras, np.zeros(shape, np.int32))
    return types.Unroll(steps, carry)


def _statistics(made: Made, given: dict[str, Any], penalty: float) -> Any:
    """Running moments of observations, where rows have some, and DPPO's weight; of CrossQ those of the critics."""
    if "norm_rate" in made.settings:
        return given["running"]
    if "normalise_observations" not in made.settings:
        return ()
    running = normalisation.initial(made.config, made.spec)
    if "moments" in given:
        running = running._replace(observation=moments.Moments(*given["moments"]))
    return running._replace(own=jnp.float32(penalty) if penalty else ())


def _dealt(given: tuple[Any, ...], devices: int) -> Any:
    """Deals the columns of unrolls, and arrays [B], out to the devices."""

    def deal(x: Any, axis: int) -> Any:
        return np.stack(np.split(np.asarray(x), devices, axis))

    found = []
    for one in given:
        if isinstance(one, types.Unroll):
            steps = jax.tree.map(lambda x: deal(x, 1), one.steps)
            found.append(types.Unroll(steps, jax.tree.map(lambda x: deal(x, 0), one.carry)))
        else:
            found.append(deal(one, 0))
    return found


def _shapes(made: Made) -> Any:
    return jax.eval_shape(made.agent.init, jax.random.key(0)).network


def _renamed(network: Any) -> Any:
    """Renames Flax's tree for the oracles: `outputs_policy/Dense_0` is `policy`."""
    found = {}
    for name, part in network.items():
        inner = next(iter(part.values())) if name.startswith("outputs_") else part
        found[name.removeprefix("outputs_")] = _renamed(inner) if isinstance(inner, dict) else inner
    return found


def _named(shapes: Any, given: dict[str, Any]) -> Any:
    """Gives parameters the names that Flax has for them."""
    found = {}
    for name, part in shapes.items():
        own = given[name.removeprefix("outputs_")]
        if name.startswith("outputs_"):
            found[name] = {inner: own for inner in part}
        else:
            found[name] = _named(part, own) if isinstance(part, dict) else own
    return found


def _short(x: np.ndarray) -> np.ndarray:
    """Rounds real numbers to those of f32, and keeps them in float64."""
    return x.astype(np.float32).astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x
