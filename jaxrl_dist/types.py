"""The records that all rooms exchange: timesteps, rows, unrolls, parameters, and facts about an environment.

Arrays live in `NamedTuple`s, numbers that people choose in frozen dataclasses (see `settings/`). Experience is
time-major: `T` rows of `B` environments have leaves `[T, B, ...]`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
ArrayTree = Any

FIRST, MID, LAST = 0, 1, 2


def short_repr(record: Any) -> str:
    """Writes a record of functions in one line: other fields with their values, then the names of the functions.

    Args:
        record: `NamedTuple`; a mapping in it is written as its keys, and what its field has by default not at all.

    Returns:
        Such as `Axis(functions sum, max, gather)`.

    Example:
        >>> from jaxrl_dist import types
        >>> print(types.short_repr(types.LOCAL))
        Axis(functions sum, max, gather)
    """
    values, functions = [], []
    for name, value in record._asdict().items():
        if not callable(value) and name in record._field_defaults and value == record._field_defaults[name]:
            continue
        if isinstance(value, type):
            values.append(f"{name}={value.__module__}.{value.__name__}")
        elif callable(value):
            functions.append(name)
        elif isinstance(value, Mapping):
            values += [f"{name}={list(value)}"] if value else []
        elif value is not None:
            values.append(f"{name}={value!r}")
    parts = [", ".join(values), f"functions {', '.join(functions)}" if functions else ""]
    return f"{type(record).__name__}({'; '.join(filter(None, parts))})"


class EpisodeInfo(NamedTuple):
    """The running episode as metrics need it; never stored in replay.

    Attributes:
        episode_return: f32 [B], undiscounted sum of raw rewards of the episode up to and including this timestep.
        episode_length: i32 [B], actions executed in the episode so far (0 at FIRST).
        reward: f32 [B], raw reward for arriving here, before any clipping.
        game_over: bool [B], whether the game itself has ended here (False at a time limit or a life loss).
    """

    episode_return: Array
    episode_length: Array
    reward: Array
    game_over: Array


class TimeStep(NamedTuple):
    """One observation, and the step that led to it, in the names of dm_env.

    Attributes:
        step_type: i8 [B], FIRST 0, MID 1, LAST 2.
        reward: f32 [B], for arriving here; 0 at FIRST.
        discount: f32 [B], 0 if the environment terminated (or a life was lost), else 1; 1 at FIRST and at a truncation.
        observation: tree of [B, ...].
        info: `EpisodeInfo`; `()` once stored.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> timestep = types.TimeStep(
        ...     step_type=jnp.array([types.FIRST, types.MID], jnp.int8),
        ...     reward=jnp.array([0.0, 1.0]),
        ...     discount=jnp.ones(2),
        ...     observation=jnp.zeros((2, 4)),
        ...     info=(),
        ... )
        >>> print(timestep.step_type == types.FIRST)
        [ True False]
    """

    step_type: Array
    reward: Array
    discount: Array
    observation: ArrayTree
    info: Any


class Step(NamedTuple):
    """A stored row: a timestep, and the action that the agent took there.

    Attributes:
        timestep: `TimeStep` of leaves [B, ...] with `info=()`.
        action: [B, ...], the action chosen at this timestep (ignored by the environment on a LAST row).
        extras: tree of [B, ...], values that the agent stores in acting (log-probability, value).
        version: i32 [B], version of the policy that acted.
    """

    timestep: TimeStep
    action: Array
    extras: ArrayTree
    version: ArrayTree


class Unroll(NamedTuple):
    """Consecutive rows of B columns; the last row only closes the sequence and opens the next one.

    Attributes:
        steps: `Step` with leaves [T + 1, B, ...].
        carry: tree of [B, ...], the acting state before row 0.
    """

    steps: Step
    carry: ArrayTree


class Params(NamedTuple):
    """Parameters of a policy, as actors get them and checkpoints hold them.

    Attributes:
        network: the trained tree; gradients, optimiser and target network touch this only.
        statistics: state that lives across updates and is not trained (normalisation, adaptive coefficients).
    """

    network: ArrayTree
    statistics: ArrayTree


class ActInputs(NamedTuple):
    """The inputs of an agent that acts.

    Attributes:
        timestep: `TimeStep` [B] with `info=()`.
        carry: acting state, tree of [B, ...].
        key: typed key [], of this step.
        exploration: tree of [B, ...] from `agents.Agent.exploration`, the same for a whole unroll; () in evaluation.
        state: states of environments on the device, tree of [B, ...], for an agent that steps them in thought (a
            `systems.System` with `model`); () where they are on the host.
    """

    timestep: TimeStep
    carry: ArrayTree
    key: Array
    exploration: ArrayTree = ()
    state: ArrayTree = ()


class ActOutput(NamedTuple):
    """Holds what an agent that acts returns.

    Attributes:
        action: [B, ...].
        extras: tree of [B, ...], what the agent stores of acting.
        carry: tree of [B, ...], the next acting state.
    """

    action: Array
    extras: ArrayTree
    carry: ArrayTree


class LossInputs(NamedTuple):
    """The inputs of an agent that learns; `prepare` and `loss` take the same record.

    Attributes:
        batch: for `prepare` the `Unroll` [L, N]; for `loss` the result of `prepare`, leaves [N', ...].
        target: parameters of the target network, () without one.
        key: typed key [], of this call.
        progress: f32 [], share of training.
        axis: functions over all devices.
    """

    batch: ArrayTree
    target: ArrayTree
    key: Array
    progress: Array
    axis: "Axis"


class LossOutput(NamedTuple):
    """Per-item sums over the taught steps of each of N items.

    Attributes:
        loss: f32 [N], summed over the item's taught steps.
        valid: f32 [N], number of taught steps in the item.
        priority: f32 [N].
        metrics: dict of f32 [N], each summed over the item's taught steps.
        maxima: dict of f32 [N], each the largest of the item's taught steps, which are at least 0; 0 if it has none.
        unweighted: f32 [N], the part of the loss that importance weights do not multiply, such as a policy's.
        aux: tree for `Agent.adapt`, of all items of this device, such as moments of their activations; its mean over
            devices and over the gradient steps of an update gets there. Sums with their counts stay right where devices
            teach unequally.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> error, taught = jnp.array([[1.0, -2.0], [3.0, 0.0]]), jnp.array([[1.0, 1.0], [1.0, 0.0]])
        >>> loss = (0.5 * taught * error**2).sum(-1)  # per item, over its taught steps
        >>> output = types.LossOutput(loss, taught.sum(-1), jnp.abs(error).max(-1), {"loss": loss}, {})
        >>> print(output.loss, output.valid)
        [2.5 4.5] [2. 1.]
    """

    loss: Array
    valid: Array
    priority: Array
    metrics: dict[str, Array]
    maxima: dict[str, Array]
    unweighted: Array | float = 0.0
    aux: ArrayTree = ()


class Gradient(NamedTuple):
    """Gradient of a minibatch, over the taught rows of one device or of all.

    Attributes:
        sums: tree of the network's parameters, the gradient of the summed loss.
        loss: f32 [], that loss.
        valid: f32 [], taught rows behind it.
        metrics: name -> f32 [], summed over them.
        maxima: name -> f32 [], the largest of them.
        priorities: f32 [N], of the items of this device.
        aux: of `LossOutput`, of this device, or the mean over all.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> one = jnp.ones(())
        >>> types.Gradient({"w": jnp.ones(3)}, one, 4 * one, {}, {}, jnp.zeros(4)).sums["w"].shape
        (3,)
    """

    sums: ArrayTree
    loss: Array
    valid: Array
    metrics: dict[str, Array]
    maxima: dict[str, Array]
    priorities: Array
    aux: ArrayTree = ()


class Sample(NamedTuple):
    """N windows drawn from a replay.

    Attributes:
        sequences: `Unroll` with leaves [L, N, ...] and carry [N, ...].
        indices: tree of [N], places of the windows in the replay (`()` if it has no priorities).
        weights: f32 [N], importance weights.
        fresh: the new unroll [L, M] among them, for running statistics; `()` if all windows are new, or none.
    """

    sequences: Unroll
    indices: ArrayTree
    weights: Array
    fresh: Unroll | tuple[()] = ()


class Axis(NamedTuple):
    """Functions over all devices: collectives inside `mesh.device_map`, identities (`LOCAL`) outside it.

    Attributes:
        sum: (tree) -> tree, each leaf summed over devices.
        max: (tree) -> tree, likewise the largest.
        gather: (tree of [N, ...]) -> tree of [devices × N, ...], the same on each device.

    Example:
        >>> from jaxrl_dist import types
        >>> types.LOCAL.sum({"loss": 1.0})
        {'loss': 1.0}
    """

    sum: Callable[[ArrayTree], ArrayTree]
    max: Callable[[ArrayTree], ArrayTree]
    gather: Callable[[ArrayTree], ArrayTree]


def _identity(tree: ArrayTree) -> ArrayTree:
    return tree


LOCAL = Axis(sum=_identity, max=_identity, gather=_identity)


class Part(NamedTuple):
    """Step size and period of a part of a network that has an optimiser of its own.

    Attributes:
        learning_rate: step size; 0 takes the learner's.
        period: updates of the other parts for each update of this one; 0 never moves it.

    Example:
        >>> from jaxrl_dist import types
        >>> types.Part(learning_rate=1e-4, period=2)
        Part(learning_rate=0.0001, period=2)
    """

    learning_rate: float = 0.0
    period: int = 1


class DiscreteSpace(NamedTuple):
    """Integers 0 … num_values − 1.

    Attributes:
        num_values: number of actions.

    Example:
        >>> from jaxrl_dist import types
        >>> space = types.DiscreteSpace(3)
        >>> space.kind, space.struct.shape, space.struct.dtype
        ('discrete', (), dtype('int32'))
    """

    num_values: int

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Returns shape and dtype of one action, i32 []."""
        return jax.ShapeDtypeStruct((), np.int32)

    @property
    def kind(self) -> str:
        """Returns the kind of action, as in `systems.System.actions`."""
        return "discrete"


class MultiDiscreteSpace(NamedTuple):
    """Vectors of K integers, of which number k is one of 0 … num_values[k] − 1.

    Attributes:
        num_values: number of choices of each, K of them.

    Example:
        >>> from jaxrl_dist import types
        >>> space = types.MultiDiscreteSpace((3, 2))  # (2,) * K are K switches
        >>> space.kind, space.struct.shape, space.struct.dtype
        ('multi_discrete', (2,), dtype('int32'))
    """

    num_values: tuple[int, ...]

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Returns shape and dtype of one action, i32 [K]."""
        return jax.ShapeDtypeStruct((len(self.num_values),), np.int32)

    @property
    def kind(self) -> str:
        """Returns the kind of action, as in `systems.System.actions`."""
        return "multi_discrete"


class BoxSpace(NamedTuple):
    """Real arrays of one shape.

    Attributes:
        shape: of one action.
        low: lower bound, one for all or one per component; −inf for none.
        high: upper bound, likewise; inf for none.

    Example:
        >>> import numpy as np
        >>> from jaxrl_dist import types
        >>> types.BoxSpace((2,), low=-1.0, high=np.array([1.0, 2.0])).kind
        'bounded'
        >>> types.BoxSpace((2,), low=-np.inf, high=np.inf).kind
        'unbounded'
    """

    shape: tuple[int, ...]
    low: Any
    high: Any

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Returns shape and dtype of one action, f32 [...]."""
        return jax.ShapeDtypeStruct(self.shape, np.float32)

    def clip(self, action: Array) -> Array:
        """Returns an action within the bounds, f32 [...]: an agent's distribution may reach beyond them."""
        return jnp.clip(action, jnp.asarray(self.low), jnp.asarray(self.high))

    @property
    def kind(self) -> str:
        """Returns the kind of action, as in `systems.System.actions`."""
        return "bounded" if np.isfinite(self.low).all() and np.isfinite(self.high).all() else "unbounded"


ActionSpace = DiscreteSpace | MultiDiscreteSpace | BoxSpace


class EnvironmentSpec(NamedTuple):
    """Facts about an environment that an agent may use before it runs.

    Attributes:
        name: full name, `suite:name`.
        observation: tree of `jax.ShapeDtypeStruct` of one observation, without a batch axis.
        action: `DiscreteSpace`, `MultiDiscreteSpace` or `BoxSpace`, of one action.
        family: `classic`, `long`, `grid`, `minatar`, `board`, `atari`, `continuous` or `physics`; chooses settings.
        reward_range: (lowest, highest) reward of one step, ±inf if unknown.
        time_limit: longest episode in steps, 0 without a limit.
        frames_per_step: simulator frames per agent step (4 on Atari), for printing frames beside steps.
        mask: name of the leaf of the observation, as in `named_leaves`, that says which actions are legal: bool, with
            num_values numbers, or with their sum for a vector of choices; "" if all always are.
        categories: name of a leaf of integers -> the number n of its values 0 … n − 1, one for all of the leaf or one
            for each index of its last axis; other leaves hold quantities.
        players: 2 for a game of two players who move in turn, both of them the agent: an observation is of the player
            who moves next, a reward of the one who moved, and what one wins the other loses.
        num_agents: A, agents that play together in one environment; `observation` and `action` are those of one. Each
            is a column of its own: environment e has the columns e·A to e·A + A − 1.
        privileged: name of a leaf, or of a tree, of the observation that is known in training alone, such as the
            observations of all agents; networks see it only where it is asked for by its name. "" if there is none.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> observation = jax.ShapeDtypeStruct((4,), jnp.float32)
        >>> types.EnvironmentSpec("mine:pole", observation, types.DiscreteSpace(2), family="classic", time_limit=500)
        EnvironmentSpec(mine:pole: observation float32[4], actions 2, family classic)
    """

    name: str
    observation: ArrayTree
    action: ActionSpace
    family: str
    reward_range: tuple[float, float] = (float("-inf"), float("inf"))
    time_limit: int = 0
    frames_per_step: int = 1
    mask: str = ""
    categories: Mapping[str, tuple[int, ...]] = {}
    players: int = 1
    num_agents: int = 1
    privileged: str = ""

    def __repr__(self) -> str:
        observation = jax.tree.map(_short_struct, self.observation)
        space = self.action
        action = _short_struct(space.struct) if isinstance(space, BoxSpace) else space.num_values
        seen, family = str(observation).replace("'", ""), self.family
        several = f", {self.num_agents} agents" if self.num_agents > 1 else ""
        return f"EnvironmentSpec({self.name}: observation {seen}, actions {action}, family {family}{several})"


def _short_struct(struct: jax.ShapeDtypeStruct) -> str:
    """Writes shape and dtype as in float32[4]."""
    return f"{np.dtype(struct.dtype).name}[{','.join(map(str, struct.shape))}]"


def is_tree(observation: ArrayTree) -> bool:
    """Says whether an observation is a tree, and no array by itself."""
    return not jax.tree_util.treedef_is_leaf(jax.tree.structure(observation))


def named_leaves(tree: ArrayTree) -> dict[str, Any]:
    """Names the leaves of an observation by their places in it, in the order of `jax.tree.leaves`.

    Args:
        tree: an array, or a tree of arrays or of `jax.ShapeDtypeStruct`.

    Returns:
        Name -> leaf, such as `robot/joints`; the name of a single array is "".

    Example:
        >>> from jaxrl_dist import types
        >>> types.named_leaves({"robot": {"joints": 1}, "goal": (2, 3)})
        {'goal/0': 2, 'goal/1': 3, 'robot/joints': 1}
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def is_within(name: str, tree: str) -> bool:
    """Says whether a leaf is the one of a name, or in the tree of that name.

    Args:
        name: of the leaf, as in `named_leaves`.
        tree: name of a leaf or of a tree.

    Example:
        >>> from jaxrl_dist import types
        >>> types.is_within("robot/joints", "robot"), types.is_within("robot_2/joints", "robot")
        (True, False)
    """
    return name == tree or name.startswith(f"{tree}/")
