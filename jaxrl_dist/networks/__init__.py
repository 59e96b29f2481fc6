"""Networks as pure functions: torsos, cores (identity, LSTM, frame stack or both) and heads, from Flax Linen.

A `Network` is memoryless but for its carry: `stack` turns observations into inputs (frame stacking), `apply` maps
inputs to head outputs, `step` and `unroll` do both and run the recurrent core, clearing the carry at FIRST rows.
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
from jaxrl_dist.errors import UsageError
from jaxrl_dist.networks import cores, custom, noisy, torsos
from jaxrl_dist.settings import setting

STACKED = ("frame_stack", "frame_stack_lstm")
RECURRENT = ("lstm", "frame_stack_lstm")


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
        "Normalise what each hidden layer of torso and heads gives, over its features and before its activation; not "
        "inside a module of your own.",
        source="Ba et al. 2016, section 3 (layer normalization)",
    )
    shared: bool = setting(
        True,
        "One torso under all heads; off: each head has its own (always shared with another core than identity).",
        source="Mnih et al. 2016, section 4",
    )
    head_size: int = setting(
        0,
        "Units of a hidden layer that each head has of its own; it takes the place of the torso's last layer, unless "
        "an lstm is between them. 0: heads are linear.",
        low=0,
        source="Wang et al. 2016, section 3 (streams of 512 units)",
    )
    core: str = setting(
        "identity",
        "Memory: an lstm between torso and heads, a stack of the last frames before the torso, or both.",
        choices=("identity", "lstm", "frame_stack", "frame_stack_lstm"),
        source="Mnih et al. 2016",
    )
    core_size: int = setting(256, "Units of the lstm core.", low=1, source="Mnih et al. 2016, section 5")
    forget_bias: float = setting(
        1.0,
        "Bias of the lstm's forget gates: an untrained cell fades by sigmoid(bias) per step (1: .73, 4: .98).",
        source="Jozefowicz et al. 2015, section 5",
    )
    num_frames: int = setting(4, "Frames that a frame_stack core stacks.", low=2, source="Mnih et al. 2015, methods")


class Head(NamedTuple):
    """An output of the network.

    Attributes:
        name: in the dict of outputs.
        size: numbers.
        gain: of the orthogonal initialisation of its last layer.
        depends_on_input: else it is a free vector, 0 at first.
        noise: of noisy layers, σ₀ in the deviation σ₀ / √p of a weight with p inputs (Fortunato et al. 2018, section
            3.2); 0 makes plain ones.
    """

    name: str
    size: int
    gain: float
    depends_on_input: bool = True
    noise: float = 0.0


class Network(NamedTuple):
    """Pure functions of one network; `outputs` is a dict from head name to f32 [..., size].

    Where the core takes more than observations (`make`'s `extra`), `observation` is a pair of both. Noisy layers take
    `noise` from `draw_noise`: f32 [D] for all rows, or [N, D], each row its own; None leaves the noise out.

    Attributes:
        recurrent: whether outputs depend on a learned memory, so that whole sequences must be kept.
        context: rows before a window's taught rows that rebuild the inputs (k − 1 for a stack of k frames); 0 if
            recurrent, as the carry at the start of a sequence holds the frames too.
        draw_noise: (key, shape) -> f32 [*shape, D], the factors of all noisy layers.
        init: (key) -> params.
        initial: (batch_size) -> carry, leaves [B, ...].
        forget: (carry) -> carry with its learned memory cleared; stacked frames stay.
        step: (params, carry, observation [B, ...], is_first [B], noise=None) -> (outputs [B], carry).
        unroll: (params, carry, observation [L, B, ...], is_first [L, B]) -> (outputs [L, B], carry).
        stack: (carry, observation [L, B, ...], is_first [L, B]) -> inputs [L, B, ...] of `apply`, or of `unroll` if
            recurrent, which stacks by itself.
        apply: (params, inputs [N, ...], noise=None) -> outputs [N]; only for a network that is not recurrent.
    """

    recurrent: bool
    context: int
    draw_noise: Callable[..., Any]
    init: Callable[..., Any]
    initial: Callable[[int], Any]
    forget: Callable[[Any], Any]
    step: Callable[..., Any]
    unroll: Callable[..., Any]
    stack: Callable[..., Any]
    apply: Callable[..., Any]


def make(config: Config, spec: types.EnvironmentSpec, heads: Sequence[Head], extra: int = 0) -> Network:
    """Builds the network of an agent.

    Args:
        config: settings.
        spec: of the environment; its observation must be one array.
        heads: outputs that the agent wants.
        extra: numbers beside the features that a recurrent core takes, f32 [..., extra].

    Raises:
        UsageError: the torso does not fit the observation, or a module of the user's cannot be found or fails.
    """
    observation = spec.observation
    if not isinstance(observation, jax.ShapeDtypeStruct):
        raise UsageError(f"--env={spec.name}: its observation is a tree; networks take one array")
    recurrent = config.core in RECURRENT
    stacked = config.core in STACKED
    make_torso = functools.partial(
        torsos.make,
        config.torso,
        config.hidden_sizes,
        config.activation,
        config.orthogonal,
        observation.shape,
        last_layer=recurrent or not config.head_size,
        layer_norm=config.layer_norm,
    )
    torso = make_torso()
    module = _Model(
        heads=tuple(heads),
        make_torso=make_torso,
        shared=config.shared or config.core != "identity",
        make_core=functools.partial(cores.Lstm, config.core_size, config.forget_bias) if recurrent else None,
        head_size=config.head_size,
        activation=config.activation if config.torso == "mlp" else "relu",
        orthogonal=config.orthogonal,
        layer_norm=config.layer_norm,
    )
    num_frames = config.num_frames if stacked else 1
    inputs_shape = cores.stacked_shape(observation.shape, num_frames)
    if ":" in config.torso:
        custom.check(config.torso, torso, jax.ShapeDtypeStruct(inputs_shape, observation.dtype))

    def init(key: jax.Array) -> Any:
        inputs: Any = jnp.zeros((1, *inputs_shape), observation.dtype)
        if not recurrent:
            return module.init(key, inputs)["params"]
        rows = inputs[None], jnp.zeros((1, 1, extra))
        carry, is_first = cores.initial_lstm(1, config.core_size), jnp.zeros((1, 1), bool)
        return module.init(key, rows if extra else rows[0], carry, is_first, method=_Model.unroll)["params"]

    def initial(batch_size: int) -> Any:
        frames: Any = ()
        if stacked:
            frames = jnp.zeros((batch_size, num_frames - 1, *observation.shape), observation.dtype)
        return (frames, cores.initial_lstm(batch_size, config.core_size)) if recurrent else frames

    def forget(carry: Any) -> Any:
        return (carry[0], jax.tree.map(jnp.zeros_like, carry[1])) if recurrent else carry

    def apply(params: Any, inputs: Any, noise: Any = None) -> Any:
        return module.apply({"params": params}, inputs, noise)

    def step(params: Any, carry: Any, observation: Any, is_first: Any, noise: Any = None) -> Any:
        if recurrent:
            rows, first = jax.tree.map(lambda x: x[None], (observation, is_first))
            outputs, carry = unroll(params, carry, rows, first)
            return jax.tree.map(lambda x: x[0], outputs), carry
        if stacked:
            carry, observation = cores.stack_step(carry, observation, is_first)
        return apply(params, observation, noise), carry

    def push(frames: Any, observation: Any, is_first: Any) -> Any:
        if not stacked:
            return frames, observation
        return jax.lax.scan(lambda c, x: cores.stack_step(c, *x), frames, (observation, is_first))

    def stack(carry: Any, observation: Any, is_first: Any) -> Any:
        return observation if recurrent else push(carry, observation, is_first)[1]

    def unroll(params: Any, carry: Any, observation: Any, is_first: Any) -> Any:
        chex.assert_rank(is_first, 2)
        if recurrent:
            (frames, memory), (rows, *beside) = carry, observation if extra else (observation,)
            frames, rows = push(frames, rows, is_first)
            rows = (rows, *beside) if extra else rows
            outputs, memory = module.apply({"params": params}, rows, memory, is_first, method=_Model.unroll)
            return outputs, (frames, memory)
        carry, observation = push(carry, observation, is_first)
        flat = observation.reshape(-1, *observation.shape[2:])
        outputs = apply(params, flat)
        return jax.tree.map(lambda x: x.reshape(*is_first.shape, *x.shape[1:]), outputs), carry

    count = noisy.num_factors(jax.eval_shape(init, jax.random.key(0)))
    draw_noise = functools.partial(noisy.draw, count=count)
    context = 0 if recurrent else num_frames - 1
    return Network(recurrent, context, draw_noise, init, initial, forget, step, unroll, stack, apply)


class _Model(nn.Module):
    """Torso(s), an LSTM unless `make_core` is None, and heads, linear for a `head_size` of 0."""

    heads: tuple[Head, ...]
    make_torso: Callable[[], nn.Module]
    shared: bool
    make_core: Callable[[], nn.Module] | None
    head_size: int
    activation: str
    orthogonal: bool
    layer_norm: bool

    def setup(self) -> None:
        inner = [head for head in self.heads if head.depends_on_input]
        self.torsos = [self.make_torso() for _ in range(1 if self.shared else len(inner))]
        hidden = self.head_size, self.activation, self.orthogonal, self.layer_norm
        self.outputs = {head.name: _Output(head, *hidden) for head in inner}
        self.free = {
            head.name: self.param(head.name, nn.initializers.zeros_init(), (head.size,))
            for head in self.heads
            if not head.depends_on_input
        }
        if self.make_core:
            self.lstm = self.make_core()

    def __call__(self, inputs: jax.Array, noise: jax.Array | None = None) -> Any:
        return self._heads([torso(inputs) for torso in self.torsos], noise)

    def unroll(self, inputs: Any, carry: Any, is_first: jax.Array) -> Any:
        observation, *extra = inputs if isinstance(inputs, tuple) else (inputs,)
        flat = observation.reshape(-1, *observation.shape[2:])
        features = self.torsos[0](flat).reshape(*is_first.shape, -1)
        features = jnp.concatenate([features, *extra], -1)
        carry, features = self.lstm(carry, features, is_first)
        return self._heads([features], None), carry

    def _heads(self, features: list[jax.Array], noise: jax.Array | None) -> dict[str, jax.Array]:
        features = features * len(self.outputs) if self.shared else features
        outputs = {}
        for (name, output), x in zip(self.outputs.items(), features, strict=True):
            outputs[name], noise = output(x, noise)
        batch = features[0].shape[:-1]
        return outputs | {name: jnp.broadcast_to(x, (*batch, *x.shape)) for name, x in self.free.items()}


class _Output(nn.Module):
    """A head: one hidden layer of its own where `hidden` is not 0, and its last layer."""

    head: Head
    hidden: int
    activation: str
    orthogonal: bool
    layer_norm: bool

    @nn.compact
    def __call__(self, x: jax.Array, noise: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        """Returns the output, and the factors that other heads take."""
        if self.hidden:
            x, noise = self._layer(x, self.hidden, math.sqrt(2.0), noise)
            x = torsos.ACTIVATIONS[self.activation](torsos.normalisation(self.layer_norm)()(x))
        return self._layer(x, self.head.size, self.head.gain, noise)

    def _layer(self, x: jax.Array, size: int, gain: float, noise: Any) -> tuple[jax.Array, Any]:
        if not self.head.noise:
            return nn.Dense(size, kernel_init=torsos.kernel(self.orthogonal, gain))(x), noise
        own, rest = (None, None) if noise is None else jnp.split(noise, (x.shape[-1] + size,), axis=-1)
        return noisy.Noisy(size, self.head.noise)(x, own), rest
