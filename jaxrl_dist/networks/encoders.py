"""Encoders: a torso for each leaf of an observation, and layers that join their features.

An observation of one array passes the torso alone. Of a tree, images pass the torso of images, and integers that stand
for categories an embedding; all else goes as it is. What comes of them is concatenated, and passes the layers of the
mlp torso. The leaf that says which actions are legal, and those that are privileged, are seen only where they are asked
for by name.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_dist import errors, types
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.networks import custom, torsos

if TYPE_CHECKING:
    from jaxrl_dist import networks


class Encoder(NamedTuple):
    """Maps observations to features.

    Attributes:
        pick: (tree of [N, ...]) -> what the module takes of it.
        make: () -> Flax module that maps this to features [N, F].

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> config, spec = networks.Config(torso="mlp", hidden_sizes=(8,)), envs.make("toy:walk").spec
        >>> encoder = networks.encoders.make(config, spec, (), last_layer=True)
        >>> rows = encoder.pick(jnp.ones((5, 2)))
        >>> encoder.make().init_with_output(jax.random.key(0), rows)[0].shape
        (5, 8)
    """

    pick: Callable[[Any], Any]
    make: Callable[[], nn.Module]


def make(config: "networks.Config", spec: types.EnvironmentSpec, inputs: Sequence[str], *, last_layer: bool) -> Encoder:
    """Makes the encoder of some leaves of an observation.

    Args:
        config: settings of the network.
        spec: of the environment; its observation has the shapes that the network gets, such as stacked frames.
        inputs: names of leaves or of trees in the observation; () takes all but the mask and what is privileged.
        last_layer: whether the last layer of units is part of it; else each head has its own.

    Raises:
        UsageError: the torso does not take such observations, or there is no such module.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import networks, types
        >>> from jaxrl_dist.networks import encoders
        >>> joints, goal = jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.int32)
        >>> observation, action = {"goal": goal, "joints": joints}, types.DiscreteSpace(2)
        >>> spec = types.EnvironmentSpec("mine:arm", observation, action, "classic", categories={"goal": (4,)})
        >>> encoder = encoders.make(networks.Config(torso="mlp"), spec, (), last_layer=True)
        >>> seen = encoder.pick({"goal": jnp.zeros((5, 2), int), "joints": jnp.zeros((5, 3))})
        >>> encoder.make().init_with_output(jax.random.key(0), seen)[0].shape
        (5, 64)
    """
    leaves = types.named_leaves(spec.observation)
    names = seen(spec, inputs)
    if ":" in config.torso:
        pick = functools.partial(_picked, names=tuple(names)) if inputs or spec.privileged or spec.mask else _unchanged
        custom.check(config.torso, custom.make(config.torso), pick(spec.observation))
        return Encoder(pick, functools.partial(custom.make, config.torso))
    # A mask is no picture, unless it is named as one.
    shapes = {name: leaf.shape for name, leaf in leaves.items() if name in names or name != (spec.mask or None)}
    images = {
        name: functools.partial(torsos.make, config, shape)
        for name, shape in shapes.items()
        if torsos.takes(config.torso, shape)
    }
    if config.torso != "mlp" and not images:
        # The torso's own message says what it takes.
        torsos.make(config, max(shapes.values(), key=len, default=()), last_layer=True)
    layers = functools.partial(torsos.make_layers, config, last_layer=last_layer)
    if len(names) == 1 and names[0] not in spec.categories:
        alone = functools.partial(images[names[0]], last_layer=last_layer) if names[0] in images else layers
        return Encoder(functools.partial(_only, name=names[0]), alone)
    joined = functools.partial(
        _Joined,
        config=config,
        names=tuple(names),
        categories=tuple(tuple(spec.categories.get(name, ())) for name in names),
        torsos=tuple(functools.partial(images[name], last_layer=True) if name in images else None for name in names),
        layers=layers,
    )
    return Encoder(functools.partial(_picked, names=tuple(names)), joined)


def seen(spec: types.EnvironmentSpec, inputs: Sequence[str]) -> list[str]:
    """Returns the names of the leaves that `inputs` means, a leaf or a tree each; () is all but mask and privileged."""
    leaves = types.named_leaves(spec.observation)
    if inputs:
        return [name for name in leaves if any(types.is_within(name, tree) for tree in inputs)]
    unseen = [name for name in (spec.mask, spec.privileged) if name]
    return [
        name
        for name, leaf in leaves.items()
        if math.prod(leaf.shape) and not any(types.is_within(name, tree) for tree in unseen)
    ]


def check_inputs(flag: str, inputs: Sequence[str], spec: types.EnvironmentSpec) -> None:
    """Checks names of leaves, or of trees, of an observation.

    Args:
        flag: that gives them.
        inputs: the names.
        spec: of the environment.

    Raises:
        UsageError: the observation has no such leaf.
    """
    leaves = types.named_leaves(spec.observation)
    for name in inputs:
        if not any(types.is_within(leaf, name) for leaf in leaves):
            has = "is one array" if "" in leaves else f"has {', '.join(leaves)}"
            trees = {leaf[:i] for leaf in leaves for i, letter in enumerate(leaf) if letter == "/"}
            near = errors.nearest(name, [*leaves, *sorted(trees)])
            raise UsageError(given(flag, ",".join(inputs)), f": the observation of {spec.name} {has}{near}")


def refuse_inputs(flag: str, inputs: Sequence[str], reason: str, other: str) -> None:
    """Refuses names of leaves for a part that an agent does not have.

    Args:
        flag: that gives them.
        inputs: the names.
        reason: that there is no such part.
        other: flag that gives the inputs of the part that there is.

    Raises:
        UsageError: there are names.
    """
    if inputs:
        names = ",".join(inputs)
        raise UsageError(given(flag, names), f": {reason}; use ", given(other, names))


def _unchanged(observation: Any) -> Any:
    return observation


def _only(observation: Any, name: str) -> Any:
    return types.named_leaves(observation)[name]


def _picked(observation: Any, names: Sequence[str]) -> dict[str, Any]:
    leaves = types.named_leaves(observation)
    return {name: leaves[name] for name in names}


class _Joined(nn.Module):
    """Encodes leaves [N, ...] by name, and maps their joined features to [N, F]."""

    config: Any
    names: tuple[str, ...]
    categories: tuple[tuple[int, ...], ...]
    torsos: tuple[Callable[[], nn.Module] | None, ...]
    layers: Callable[[], nn.Module]

    def setup(self) -> None:
        size, self.dtype = self.config.embedding_size, jnp.dtype(self.config.compute)
        self.embeddings = [_Embedding(numbers, size, self.dtype) if numbers else None for numbers in self.categories]
        self.images = [make_torso() if make_torso else None for make_torso in self.torsos]
        self.joint = self.layers()

    def __call__(self, leaves: dict[str, jax.Array]) -> jax.Array:
        parts = []
        for name, embed, encode in zip(self.names, self.embeddings, self.images, strict=True):
            x = leaves[name]
            x = embed(x) if embed else x if encode else torsos.as_float(x, self.dtype)
            x = encode(x) if encode else x
            parts.append(x.reshape(x.shape[0], -1))
        return self.joint(jnp.concatenate(parts, -1))  # type: ignore[no-any-return]


class _Embedding(nn.Module):
    """Gives each category a vector: integers [N, ..., C] become [N, ..., C · E], and 0 where one is out of range.

    It is a product with one-hot vectors, whose gradient is a product too; a gather's is a scatter.
    """

    numbers: tuple[int, ...]
    size: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        # A table for each index of the last axis, or one for all.
        columns = [x] if len(self.numbers) == 1 else [x[..., i] for i in range(len(self.numbers))]
        init = nn.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)
        parts = []
        for i, (column, number) in enumerate(zip(columns, self.numbers, strict=True)):
            table = self.param(f"table_{i}", init, (number, self.size))
            codes = column.astype(jnp.int32)
            parts.append(jax.nn.one_hot(codes, number, dtype=self.dtype) @ table.astype(self.dtype))
        joined = jnp.concatenate(parts, -1)
        return joined.reshape(*joined.shape[:-2], -1) if len(parts) == 1 and x.ndim > 1 else joined
