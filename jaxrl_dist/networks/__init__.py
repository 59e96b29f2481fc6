"""Networks as pure functions: torsos, cores (a memory, a stack of frames, or both) and heads, from Flax Linen.

A `Network` keeps no state but its carry. `inputs` turns observations into inputs (frame stacking); `unroll` maps inputs
to head outputs and runs the core, whose memory it clears at FIRST rows; `step` does both for one row.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_dist import types
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.networks import attention, cores, custom, encoders, noisy, torsos
from jaxrl_dist.numeric import vectors
from jaxrl_dist.settings import OURS, setting

# Beginning of the names of torsos in a tree of parameters, which Flax takes from `_Model.torsos`.
_TORSOS = "torsos_"
STACKED = ("frame_stack", "frame_stack_lstm")
# Names of cores with a memory.
MEMORIES = ("lstm", "frame_stack_lstm", "gru", "mingru", "gtrxl")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the network."""

    torso: str = setting(
        "nature_cnn",
        "Torso: mlp, minatar_cnn, nature_cnn, impala_resnet, or module:Class for a Flax module of your own that maps "
        "observations [B, ...] to features [B, F].",
        choices=("mlp", "minatar_cnn", "nature_cnn", "impala_resnet", "module:Class"),
        source="Mnih et al. 2015, methods",
    )
    hidden_sizes: tuple[int, ...] = setting(
        (64, 64), "Widths of the layers of the mlp torso.", low=1, source="Schulman et al. 2017, section 6.1"
    )
    activation: str = setting(
        "tanh",
        "Activation of the mlp torso; the convolutional torsos use relu.",
        choices=("tanh", "relu", "swish"),
        source="Engstrom et al. 2020, section 3 (hyperbolic tan activations)",
    )
    orthogonal: bool = setting(
        True,
        "Orthogonal initialisation with gains √2 (torso), .01 (policy), 1 (value); off: LeCun normal.",
        source="Engstrom et al. 2020, section 3",
    )
    layer_norm: bool = setting(
        False,
        "Normalise the outputs of each hidden layer of torso and heads, over its features and before its activation; "
        "not inside a module of your own.",
        source="Ba et al. 2016, section 3 (layer normalization)",
    )
    shared: bool = setting(
        True,
        "One torso under all heads; off: each head has its own, which no core but identity allows.",
        source="Mnih et al. 2016, section 4",
    )
    head_size: int = setting(
        0,
        "Units of a hidden layer that each head has of its own; it takes the place of the torso's last layer, unless "
        "a memory is between them. 0: heads are linear.",
        low=0,
        source="Wang et al. 2016, section 3 (streams of 512 units)",
    )
    core: str = setting(
        "identity",
        "Memory; identity is none. An lstm, a gru, a mingru (whose rows are learned in parallel) and a gtrxl (which "
        "attends to the last rows) stand between torso and heads; frame_stack puts the last frames before the torso, "
        "frame_stack_lstm does both, and module:Class is a Flax module of your own.",
        choices=("identity", "lstm", "gru", "mingru", "gtrxl", "frame_stack", "frame_stack_lstm", "module:Class"),
        source="Mnih et al. 2016",
    )
    core_size: int = setting(256, "Units of the core's memory.", low=1, source="Mnih et al. 2016, section 5")
    forget_bias: float = setting(
        1.0,
        "Bias of the gates that keep a memory: an untrained one fades by sigmoid(bias) per step (1: .73, 4: .98).",
        source="Jozefowicz et al. 2015, section 5",
    )
    core_layers: int = setting(2, "Layers of a gtrxl.", low=1, source=f"{OURS} (Parisotto et al. 2020, section 4: 12)")
    core_heads: int = setting(
        4, "Heads of attention of a gtrxl; they divide core_size.", low=1, source=f"{OURS} (Parisotto et al. 2020: 8)"
    )
    core_rows: int = setting(
        64,
        "Rows before its own that each row of a gtrxl attends to, in each layer.",
        low=1,
        source=f"{OURS} (Parisotto et al. 2020, section 4: 512)",
    )
    num_frames: int = setting(4, "Frames that a frame_stack core stacks.", low=2, source="Mnih et al. 2015, methods")
    compute: str = setting(
        "float32",
        "Dtype of activations and products of torso, memory and hidden layers. Parameters, what a memory keeps, the "
        "last layer of each head and all that follows stay float32; so does a core of your own.",
        choices=("float32", "bfloat16"),
        source="Kalamkar et al. 2019, section 3 (bfloat16 beside a float32 copy of the weights)",
    )
    embedding_size: int = setting(
        16,
        "Numbers that stand for a category, where an observation has leaves of categories.",
        low=1,
        source="Nikulin et al. 2023, XLand-MiniGrid train_single_task.py (obs_emb_dim)",
    )
    policy_inputs: tuple[str, ...] = setting(
        (),
        "Leaves, or trees, of the observation that the policy sees, by name; none named: all but the mask of actions "
        "and what is for training alone, such as the observations of other agents.",
        source=OURS,
    )
    value_inputs: tuple[str, ...] = setting(
        (),
        "Leaves, or trees, of the observation that critics and values of actions see, by name; none named: all "
        "but the mask and what is for training alone. A critic may see what the policy does not.",
        source="Pinto et al. 2018, section III (asymmetric actor critic)",
    )


class Head(NamedTuple):
    """An output of the network.

    Attributes:
        name: key in the dict of outputs.
        size: number of outputs.
        gain: gain of the orthogonal initialisation of its last layer.
        depends_on_input: whether it depends on the features; else it is a free vector, 0 at first.
        noise: σ₀ of noisy layers, in the deviation σ₀ / √p of a weight with p inputs (Fortunato et al. 2018, section
            3.2); 0 makes plain layers.
        inputs: names of leaves, or of trees, of the observation that it sees; () is all but the mask and what is
            privileged. Heads that see the same share encoder and core.

    Example:
        >>> from jaxrl_dist import networks
        >>> networks.Head("value", size=1, gain=1.0)
        Head(name='value', size=1, gain=1.0, depends_on_input=True, noise=0.0, inputs=())
    """

    name: str
    size: int
    gain: float
    depends_on_input: bool = True
    noise: float = 0.0
    inputs: tuple[str, ...] = ()


class Carry(NamedTuple):
    """Carries the last frames of a stack, and the memory of a recurrent core, from row to row.

    Attributes:
        frames: tree of [B, k − 1, ...], () if none are stacked.
        memory: tree of [B, ...], () for a core without one; a tuple of these if heads see different leaves.
    """

    frames: Any
    memory: Any


class Network(NamedTuple):
    """Pure functions of one network; `outputs` is a dict from head name to f32 [..., size].

    Where the environment says which actions are legal, `outputs` has `mask` too, bool [..., numbers of actions]. If the
    core takes further numbers (`extra` of `make`), `observation` is a pair of observation and numbers. Noisy
    layers take `noise` from `draw_noise`: f32 [D] for all rows, or [N, D] for each of N rows; None leaves it out.

    Attributes:
        recurrent: whether outputs depend on a learned memory, so that whole sequences must be kept.
        context: rows before a window's taught rows that rebuild the inputs (k − 1 for a stack of k frames); 0 if
            recurrent, as the carry at the start of a sequence holds the frames too.
        draw_noise: (key, shape) -> f32 [*shape, D], the factors of all noisy layers.
        init: (key) -> params.
        initial: (batch_size) -> `Carry`.
        forget: (carry) -> carry with its memory cleared; stacked frames stay.
        inputs: (frames, observation [T, B, ...], is_first [T, B]) -> inputs [T, B, ...] of `unroll`: stacks frames.
        step: (params, carry, observation [B, ...], is_first [B], noise=None) -> (outputs [B], carry).
        unroll: (params, memory, inputs [T, B, ...], is_first [T, B], noise=None) -> (outputs [T, B], memory), for every
            core; one without a memory treats rows as independent items.
    """

    recurrent: bool
    context: int
    draw_noise: Callable[..., Any]
    init: Callable[..., Any]
    initial: Callable[[int], Carry]
    forget: Callable[[Carry], Carry]
    inputs: Callable[..., Any]
    step: Callable[..., Any]
    unroll: Callable[..., Any]

    def __repr__(self) -> str:
        return types.short_repr(self)


def make(config: Config, spec: types.EnvironmentSpec, heads: Sequence[Head], extra: int = 0) -> Network:
    """Builds the network of an agent.

    Args:
        config: settings.
        spec: spec of the environment.
        heads: outputs that the agent needs.
        extra: number of further inputs of a recurrent core beside the features, f32 [..., extra].

    Returns:
        `Network`, pure functions.

    Raises:
        UsageError: the torso does not fit the observation, which has no such leaf; or a module of the user's cannot be
            found or fails.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> spec = envs.make("toy:walk").spec  # observations f32 [2]
        >>> config = networks.Config(torso="mlp", core="lstm", core_size=8)
        >>> net = networks.make(config, spec, [networks.Head("value", size=1, gain=1.0)])
        >>> params, carry = net.init(jax.random.key(0)), net.initial(batch_size=3)
        >>> outputs, carry = net.step(params, carry, jnp.ones((3, 2)), is_first=jnp.ones(3, bool))
        >>> outputs["value"].shape
        (3, 1)
    """
    for name in ("policy_inputs", "value_inputs"):
        encoders.check_inputs(f"network.{name}", getattr(config, name), spec)
    if not encoders.seen(spec, config.policy_inputs):
        shape = getattr(spec.observation, "shape", spec.observation)
        raise UsageError(given("env", spec.name), f": its observation {shape} has no numbers that a policy may see")
    recurrent = is_recurrent(config.core)
    stack = _stack_of(config, spec)
    has_last_layer = recurrent or not config.head_size
    stacked = spec._replace(observation=stack.structs(spec.observation))
    inputs = dict.fromkeys(head.inputs for head in heads if head.depends_on_input)
    streams = tuple((names, encoders.make(config, stacked, names, last_layer=has_last_layer)) for names in inputs)
    core = _make_core(config) if recurrent else None
    return _network(_Built(config, _Model(config, tuple(heads), streams, core), core, stack, spec, extra))


def make_around(
    config: Config,
    spec: types.EnvironmentSpec,
    inputs: tuple[str, ...],
    module: Callable[[encoders.Encoder], nn.Module],
) -> Network:
    """Builds a network of an agent's own module, which has no memory, around an encoder.

    Args:
        config: settings.
        spec: spec of the environment.
        inputs: names of leaves of the observation that the encoder sees; () is all but the mask.
        module: (`encoders.Encoder`) -> Flax module that maps stacked observations [N, ...] and `noise`, None or
            f32 [N, D], to its outputs, name -> [N, ...]. Without a `head_size` the encoder has all layers of the torso,
            else all but the last. In its tree of parameters the encoder's begin with `torsos_`.

    Returns:
        `Network`, whose `draw_noise` draws nothing.

    Raises:
        UsageError: the core has a memory, or the torso does not fit the observation.

    Example:
        >>> import flax.linen as nn
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> class Product(nn.Module):
        ...     encoder: networks.encoders.Encoder
        ...     def setup(self):
        ...         self.torsos = [self.encoder.make()]
        ...     def __call__(self, inputs, noise=None):
        ...         features = self.torsos[0](self.encoder.pick(inputs))
        ...         return {"out": features if noise is None else features * noise}
        >>> config, spec = networks.Config(torso="mlp", hidden_sizes=(8,)), envs.make("toy:walk").spec
        >>> net = networks.make_around(config, spec, (), Product)
        >>> networks.of_rows(net, net.init(jax.random.key(0)), jnp.ones((5, 2)), jnp.zeros((5, 1)))["out"].shape
        (5, 8)
    """
    check_single_steps(config.core)
    for name in ("policy_inputs", "value_inputs"):
        encoders.check_inputs(f"network.{name}", getattr(config, name), spec)
    stack = _stack_of(config, spec)
    stacked = spec._replace(observation=stack.structs(spec.observation))
    encoder = encoders.make(config, stacked, inputs, last_layer=not config.head_size)
    return _network(_Built(config, module(encoder), None, stack, spec, 0))


def _stack_of(config: Config, spec: types.EnvironmentSpec) -> cores.FrameStack:
    """Returns the frames that a core stacks, one where it stacks none.

    Raises:
        UsageError: it stacks frames, and nothing that can be stacked is observed.
    """
    chosen = _is_stacked(config, spec)
    if config.core in STACKED and not any(chosen):
        told = f": {spec.name} shows categories alone, which are not stacked; valid: identity, or a memory such as lstm"
        raise UsageError(given("network.core", config.core), told)
    return cores.FrameStack(config.num_frames if config.core in STACKED else 1, chosen)


def _network(built: "_Built") -> Network:
    recurrent = built.core is not None
    count = noisy.num_factors(jax.eval_shape(built.init, jax.random.key(0)))
    return Network(
        recurrent=recurrent,
        context=0 if recurrent else built.stack.num_frames - 1,
        draw_noise=functools.partial(noisy.draw, count=count),
        init=built.init,
        initial=built.initial,
        forget=_forget,
        inputs=built.inputs,
        step=built.step,
        unroll=built.unroll,
    )


def _is_stacked(config: Config, spec: types.EnvironmentSpec) -> tuple[bool, ...]:
    """Says which leaves of an observation a stack of frames holds.

    Of what policy and critic see, each for itself, these are the images, or all numbers if there are none.
    """
    leaves, chosen = types.named_leaves(spec.observation), set[str]()
    for inputs in (config.policy_inputs, config.value_inputs):
        numbers = {*encoders.seen(spec, inputs)} - {*spec.categories, spec.mask or None}
        images = {name for name in numbers if torsos.is_image(leaves[name].shape)}
        chosen |= images or numbers
    return tuple(name in chosen for name in leaves)


def check_single_steps(core: str) -> None:
    """Checks that a core has no memory, for an agent that replays single steps.

    Args:
        core: as in `Config`.

    Raises:
        UsageError: it has one.

    Example:
        >>> from jaxrl_dist import networks
        >>> networks.check_single_steps("frame_stack")
        >>> networks.check_single_steps("lstm")
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: network.core=lstm: this agent replays single steps; …
    """
    if is_recurrent(core):
        raise UsageError(given("network.core", core), ": this agent replays single steps; use identity or frame_stack")


def is_recurrent(core: str) -> bool:
    """Says whether a core has a learned memory, by its name."""
    return core in MEMORIES or ":" in core


def _make_core(config: Config) -> Any:
    if ":" in config.core:
        return custom.make_core(config.core, config.core_size)
    if config.core == "gtrxl":
        if config.core_size % config.core_heads:
            raise UsageError(
                given("network.core_heads", config.core_heads),
                f" do not divide the {config.core_size} units of ",
                given("network.core_size", config.core_size),
            )
        return attention.GTrXL(config.core_size, config.core_layers, config.core_heads, config.core_rows)
    by_name = {"gru": cores.Gru, "mingru": cores.MinGru}
    return by_name.get(config.core, cores.Lstm)(config.core_size, config.forget_bias)


def of_rows(net: Network, params: Any, inputs: Any, noise: Any = None) -> dict[str, jax.Array]:
    """Returns the outputs of rows, of a network without memory.

    Args:
        net: the network.
        params: its parameters.
        inputs: from `Network.inputs`, without the axis of time: [N, ...].
        noise: as of `Network`.

    Returns:
        Name of a head -> f32 [N, size].

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> heads = [networks.Head("policy", size=3, gain=0.01), networks.Head("value", size=1, gain=1.0)]
        >>> net = networks.make(networks.Config(torso="mlp"), envs.make("toy:walk").spec, heads)
        >>> outputs = networks.of_rows(net, net.init(jax.random.key(0)), jnp.ones((5, 2)))
        >>> outputs["policy"].shape, outputs["value"].shape
        ((5, 3), (5, 1))
    """
    rows = jax.tree.map(lambda x: x[None], inputs)
    is_first = jnp.zeros(jax.tree.leaves(rows)[0].shape[:2], bool)
    outputs: dict[str, jax.Array] = jax.tree.map(lambda x: x[0], net.unroll(params, (), rows, is_first, noise)[0])
    return outputs


class _Built(NamedTuple):
    """The parts that a network's functions are bound to.

    Attributes:
        config: settings.
        module: encoders, cores and heads, or a module of an agent's own if there is no core.
        core: a core, of which each stream has one of its own; None without one.
        stack: of frames.
        spec: of the environment.
        extra: number of further inputs of the core.
    """

    config: Config
    module: Any
    core: cores.Core | None
    stack: cores.FrameStack
    spec: types.EnvironmentSpec
    extra: int

    def init(self, key: jax.Array) -> Any:
        structs = self.stack.structs(self.spec.observation)
        inputs: Any = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), structs)
        if self.core is None:
            return self.module.init(key, inputs)["params"]
        rows = jax.tree.map(lambda x: x[None], inputs)
        extra = [jnp.zeros((1, 1, self.extra))] if self.extra else []
        memory, is_first = self._memory(1), jnp.zeros((1, 1), bool)
        return self.module.init(key, rows, extra, memory, is_first, method=_Model.unroll)["params"]

    def initial(self, batch_size: int) -> Carry:
        memory = () if self.core is None else self._memory(batch_size)
        return Carry(self.stack.initial(self.spec.observation, batch_size), memory)

    def inputs(self, frames: Any, observation: Any, is_first: jax.Array) -> Any:
        return self._push(frames, observation, is_first)[1]

    def step(self, params: Any, carry: Carry, observation: Any, is_first: jax.Array, noise: Any = None) -> Any:
        rows, first = jax.tree.map(lambda x: x[None], (observation, is_first))
        frames, inputs = self._push(carry.frames, rows, first)
        outputs, memory = self.unroll(params, carry.memory, inputs, first, noise)
        return jax.tree.map(lambda x: x[0], outputs), Carry(frames, memory)

    def unroll(self, params: Any, memory: Any, inputs: Any, is_first: jax.Array, noise: Any = None) -> Any:
        chex.assert_rank(is_first, 2)
        if self.config.compute == "bfloat16":
            params, inputs = self._halved_params(params), _halved(inputs)
        observation, *extra = inputs if self.extra else (inputs,)
        if self.core is not None:
            own = {"params": params}
            outputs, memory = self.module.apply(own, observation, extra, memory, is_first, method=_Model.unroll)
        else:
            outputs = self.module.apply({"params": params}, vectors.flat(observation), noise)
            outputs = jax.tree.map(lambda x: x.reshape(*is_first.shape, *x.shape[1:]), outputs)
        if self.spec.mask:
            mask = types.named_leaves(observation)[self.spec.mask]
            outputs = outputs | {"mask": mask.reshape(*is_first.shape, -1).astype(bool)}
        return outputs, memory

    def _memory(self, batch_size: int) -> Any:
        """Returns the memory before any row, a tuple of one for each stream if there are several."""
        assert self.core is not None
        memories = tuple(self.core.initial(batch_size) for _ in self.module.streams)
        return memories[0] if len(memories) == 1 else memories

    def _halved_params(self, params: Any) -> Any:
        """Returns parameters in bfloat16, but for those of heads and of a core of the user's."""
        is_own = ":" in self.config.core
        cast = (_TORSOS,) if self.core is None or is_own else (_TORSOS, _name(self.module.core))
        return {name: _halved(part) if name.startswith(cast) else part for name, part in params.items()}

    def _push(self, frames: Any, observation: Any, is_first: jax.Array) -> tuple[Any, Any]:
        """Returns the frames after rows [T, B, ...], and the rows stacked."""
        rows, *beside = observation if self.extra else (observation,)
        frames, rows = self.stack.push(frames, rows, is_first)
        return frames, (rows, *beside) if self.extra else rows


def _halved(tree: Any) -> Any:
    """Casts the floats of a tree to bfloat16; other numbers stay."""
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _widened(x: jax.Array) -> jax.Array:
    """Casts bfloat16 to float32; wider floats stay."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _forget(carry: Carry) -> Carry:
    """Clears the memory; the stacked frames stay."""
    return carry._replace(memory=jax.tree.map(jnp.zeros_like, carry.memory))


class _Model(nn.Module):
    """Encoders, cores with a memory unless `core` is None, and heads, linear for a `head_size` of 0.

    Heads that see the same leaves are a stream, with an encoder and a core; without sharing each head has an encoder.
    """

    config: Config
    heads: tuple[Head, ...]
    streams: tuple[tuple[tuple[str, ...], encoders.Encoder], ...]
    core: nn.Module | None

    def setup(self) -> None:
        inner = [head for head in self.heads if head.depends_on_input]
        is_shared = self.config.shared or self.config.core != "identity"
        encoder_of = dict(self.streams)
        seen = list(encoder_of) if is_shared else [head.inputs for head in inner]
        self.picks = [encoder_of[inputs].pick for inputs in seen]
        self.torsos = [encoder_of[inputs].make() for inputs in seen]
        self.torso_of = [seen.index(head.inputs) for head in inner] if is_shared else list(range(len(inner)))
        self.outputs = {head.name: _Output(self.config, head) for head in inner}
        self.free = {
            head.name: self.param(head.name, nn.initializers.zeros_init(), (head.size,))
            for head in self.heads
            if not head.depends_on_input
        }
        if self.core is not None:
            for name in self._core_names():
                # Flax names and draws parameters by the name of the attribute.
                setattr(self, name, self.core.clone())

    def __call__(self, inputs: Any, noise: jax.Array | None = None) -> Any:
        return self._heads([torso(pick(inputs)) for pick, torso in zip(self.picks, self.torsos, strict=True)], noise)

    def unroll(self, inputs: Any, extra: Any, carry: Any, is_first: jax.Array) -> Any:
        flat = vectors.flat(inputs)
        carries = [carry] if len(self.streams) == 1 else carry
        streams, after = [], []
        for name, pick, torso, memory in zip(self._core_names(), self.picks, self.torsos, carries, strict=True):
            features = torso(pick(flat)).reshape(*is_first.shape, -1)
            features = jnp.concatenate([features, *extra], -1)
            if ":" in self.config.core:
                features = _widened(features)
            memory, features = getattr(self, name)(memory, features, is_first)
            after.append(memory)
            streams.append(features)
        return self._heads(streams, None), after[0] if len(after) == 1 else tuple(after)

    def _core_names(self) -> list[str]:
        first = _name(self.core)
        return [first, *(f"{first}_{i}" for i in range(1, len(self.streams)))]

    def _heads(self, features: list[jax.Array], noise: jax.Array | None) -> dict[str, jax.Array]:
        outputs = {}
        for (name, output), index in zip(self.outputs.items(), self.torso_of, strict=True):
            outputs[name], noise = output(features[index], noise)
        batch = features[0].shape[:-1]
        return outputs | {name: jnp.broadcast_to(x, (*batch, *x.shape)) for name, x in self.free.items()}


def _name(core: nn.Module | None) -> str:
    return type(core).__name__.lower()


class _Output(nn.Module):
    """A head: one hidden layer of its own where `head_size` is not 0, and its last layer."""

    config: Config
    head: Head

    @nn.compact
    def __call__(self, x: jax.Array, noise: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        """Returns the output, and the factors that other heads take."""
        config = self.config
        if config.head_size:
            x = _halved(x) if config.compute == "bfloat16" else x
            x, noise = self._layer(x, config.head_size, math.sqrt(2.0), noise)
            activation = torsos.ACTIVATIONS[config.activation if config.torso == "mlp" else "relu"]
            x = activation(torsos.normalisation(config.layer_norm)()(x))
        return self._layer(_widened(x), self.head.size, self.head.gain, noise)

    def _layer(self, x: jax.Array, size: int, gain: float, noise: Any) -> tuple[jax.Array, Any]:
        """Computes in bfloat16 if its input is."""
        if not self.head.noise:
            dtype = x.dtype if x.dtype == jnp.bfloat16 else None
            return nn.Dense(size, dtype=dtype, kernel_init=torsos.kernel(self.config.orthogonal, gain))(x), noise
        own, rest = (None, None) if noise is None else jnp.split(noise, (x.shape[-1] + size,), axis=-1)
        return noisy.Noisy(size, self.head.noise)(x, own), rest
