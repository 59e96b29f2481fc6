"""Devices as a mesh ("seeds", "devices"), and the one function that maps a local program over it."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_dist import types
from jaxrl_dist.numeric import vectors

SHARED = P()
PER_SEED = P("seeds")
COLUMNS = P("seeds", "devices")
UNROLL: Any = types.Unroll._make((P(None, "devices"), P("devices")))

# XLA's option for what may be in CUDA graphs, and its own value of it.
GRAPHS = "xla_gpu_enable_command_buffer"
OWN_GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,DYNAMIC_SLICE_FUSION"


def _reduce(collective: Callable[..., jax.Array], tree: types.ArrayTree) -> types.ArrayTree:
    """Reduces a tree over the devices as one vector per dtype: on CPUs every array of a collective costs a wait."""
    if jax.lax.axis_size("devices") == 1:
        return tree
    joined, split = vectors.join(tree)
    return split([collective(vector, "devices") for vector in joined])


def _gather(tree: types.ArrayTree) -> types.ArrayTree:
    """Joins the leaves [N, ...] of all devices to [devices × N, ...], in the order of the devices."""
    if jax.lax.axis_size("devices") == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.all_gather(x, "devices", tiled=True), tree)


AXIS = types.Axis(
    sum=functools.partial(_reduce, jax.lax.psum), max=functools.partial(_reduce, jax.lax.pmax), gather=_gather
)


def make(devices: Sequence[jax.Device], num_seeds: int) -> Mesh:
    """Makes a mesh that gives seeds as many devices as divide both, and splits each seed over the rest.

    Args:
        devices: to train on.
        num_seeds: S.

    Returns:
        Mesh with the axes "seeds" and "devices".

    Example:
        >>> import jax
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> mesh = meshes.make(jax.devices()[:1], num_seeds=3)
        >>> mesh.axis_names, mesh.devices.shape
        (('seeds', 'devices'), (1, 1))
    """
    seeds = math.gcd(num_seeds, len(devices))
    grid = np.asarray(devices).reshape(seeds, -1)
    return Mesh(grid, ("seeds", "devices"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def describe(mesh: Mesh) -> str:
    """Says which devices train, such as "4 × cpu, each seed on 2 of them".

    Args:
        mesh: from `make`.

    Example:
        >>> import jax
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> meshes.describe(meshes.make(jax.devices("cpu")[:1], num_seeds=3))
        '1 × cpu'
    """
    device, count = mesh.devices.flat[0], mesh.devices.size
    share = mesh.shape["devices"] if mesh.shape["devices"] < count else "all"
    of_each = f", each seed on {share} of them" if count > 1 else ""
    return f"{count} × {device.device_kind or device.platform}{of_each}"


def device_map(
    function: Callable[..., Any], mesh: Mesh, in_specs: tuple[Any, ...], out_specs: Any
) -> Callable[..., Any]:
    """Maps a program of one seed on one device over the mesh.

    Arguments of kind `SHARED` arrive as they are, `PER_SEED` leaves [S, ...] as [...], `COLUMNS` leaves [S, B, ...] as
    the device's own [B / D, ...]; an `UNROLL` [T + 1, B] of the only seed as its columns [T + 1, B / D]. The seeds of
    an accelerator run as one batch; those of a CPU one after the other, which is faster there (a batch of small
    products leaves its fast path), and gives each seed bit for bit the result that it has alone.

    Args:
        function: local program; it may use collectives over "devices".
        mesh: from `make`.
        in_specs: kind of each argument.
        out_specs: kinds of the results, a tree prefix; no result can be `SHARED`.

    Returns:
        A function of the whole arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> mesh = meshes.make(jax.devices()[:1], num_seeds=2)
        >>> def local(columns, scale):  # [B / D] and []
        ...     return scale * meshes.AXIS.sum(columns.sum())
        >>> total = meshes.device_map(local, mesh, (meshes.COLUMNS, meshes.SHARED), meshes.PER_SEED)
        >>> print(total(jnp.arange(6.0).reshape(2, 3), 10.0))
        [ 30. 120.]
    """
    vectorise_seeds = vectorises_seeds(mesh)

    @functools.wraps(function)
    def local(*args: Any) -> Any:
        mapped = tuple(spec in (PER_SEED, COLUMNS) for spec in in_specs)
        if vectorise_seeds:
            return jax.vmap(function, in_axes=tuple(0 if m else None for m in mapped))(*args)
        per_seed = tuple(arg for arg, m in zip(args, mapped, strict=True) if m)

        def one(values: Any) -> Any:
            remaining = iter(values)
            return function(*(next(remaining) if m else arg for arg, m in zip(args, mapped, strict=True)))

        num_seeds = jax.tree.leaves(per_seed)[0].shape[0]
        if num_seeds == 1:
            outputs = one(jax.tree.map(lambda x: x[0], per_seed))
            return jax.tree.map(lambda x: x[None], outputs)
        return jax.lax.map(one, per_seed)

    return jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def program(
    mapped: Callable[..., Any], mesh: Mesh, out_specs: Any, donate: Sequence[int] = (), *, graph_loops: bool = False
) -> Any:
    """Compiles a mapped function whose results have fixed shardings, so that they can be fed back as they are.

    Args:
        mapped: from `device_map`.
        mesh: from `make`.
        out_specs: kinds of the results, a tree prefix.
        donate: indices of arguments that are used up.
        graph_loops: whether loops become nodes of CUDA graphs on GPUs. It pays where the program itself decides when
            its loops end, as the host waits for that after every pass; other loops are faster on the host.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> mesh, kinds = meshes.make(jax.devices()[:1], num_seeds=2), (meshes.PER_SEED,)
        >>> double = meshes.device_map(lambda x: 2 * x, mesh, kinds, meshes.PER_SEED)
        >>> print(meshes.program(double, mesh, meshes.PER_SEED)(jnp.ones(2)))
        [2. 2.]
    """
    shardings = jax.tree.map(functools.partial(sharding, mesh), out_specs, is_leaf=_is_kind)
    return jax.jit(
        mapped, out_shardings=shardings, donate_argnums=tuple(donate), compiler_options=_options(mesh, graph_loops)
    )


def _options(mesh: Mesh, graph_loops: bool) -> Any:
    """Returns the compiler's options for a mesh, with which loops become nodes of CUDA graphs on GPUs.

    The list is XLA's own with WHILE and CONVOLUTION; one that the user gives in XLA_FLAGS stays.
    """
    if not graph_loops or mesh.devices.flat[0].platform != "gpu" or GRAPHS in os.environ.get("XLA_FLAGS", ""):
        return None
    return {GRAPHS: f"{OWN_GRAPHS},WHILE,CONVOLUTION"}


def vectorises_seeds(mesh: Mesh) -> bool:
    """Says whether the seeds of one device run as one batch."""
    return mesh.devices.flat[0].platform != "cpu"


def sharding(mesh: Mesh, spec: P) -> NamedSharding:
    """Returns the sharding of arrays of one kind on a mesh.

    Args:
        mesh: from `make`.
        spec: `SHARED`, `PER_SEED` or `COLUMNS`.

    Example:
        >>> import jax
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> meshes.sharding(meshes.make(jax.devices()[:1], 1), meshes.PER_SEED).spec == meshes.PER_SEED
        True
    """
    return NamedSharding(mesh, spec)


def put_keys(mesh: Mesh, keys: jax.Array) -> jax.Array:
    """Puts keys, the same in every process, onto a mesh that may span several processes.

    Args:
        mesh: from `make`.
        keys: typed keys [S].

    Returns:
        The keys [S], of kind `PER_SEED`.

    Example:
        >>> import jax
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> meshes.put_keys(meshes.make(jax.devices()[:1], 2), jax.random.split(jax.random.key(0), 2)).shape
        (2,)
    """
    where = sharding(mesh, PER_SEED)
    if where.is_fully_addressable:
        return jax.device_put(keys, where)
    wrap = functools.partial(jax.random.wrap_key_data, impl=jax.random.key_impl(keys))
    return jax.jit(wrap, out_shardings=where)(np.asarray(jax.random.key_data(keys)))


def to_host(tree: types.ArrayTree) -> types.ArrayTree:
    """Copies whole arrays to the host of every process; all processes must call it alike.

    Args:
        tree: arrays [...], which may be spread over processes.

    Returns:
        The same tree in NumPy.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> print(meshes.to_host({"a": jnp.arange(3)})["a"])
        [0 1 2]
    """
    return jax.tree.map(np.asarray, jax.device_get(jax.tree.map(_gathered, tree)))


def _gathered(x: Any) -> Any:
    """Returns an array with a whole copy in each process."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return x
    where: Any = x.sharding
    return jax.jit(lambda x: x, out_shardings=sharding(where.mesh, SHARED))(x)


def global_columns(columns: int) -> jax.Array:
    """Returns the global indices of this device's columns; call it inside `device_map`.

    Args:
        columns: B, of this device.

    Returns:
        i32 [B].

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> mesh = meshes.make(jax.devices()[:1], num_seeds=1)
        >>> indices = meshes.device_map(lambda x: meshes.global_columns(3), mesh, (meshes.PER_SEED,), meshes.COLUMNS)
        >>> print(indices(jnp.zeros(1)))
        [[0 1 2]]
    """
    first = jax.lax.axis_index("devices") * columns
    return first + jnp.arange(columns, dtype=jnp.int32)


def placed(mesh: Mesh, kinds: Any, tree: types.ArrayTree) -> types.ArrayTree:
    """Returns a tree of `jax.ShapeDtypeStruct` with shardings.

    Args:
        mesh: from `make`.
        kinds: `SHARED`, `PER_SEED` or `COLUMNS`, a prefix of the tree.
        tree: tree of arrays [...], or of `jax.ShapeDtypeStruct`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.parallel import mesh as meshes
        >>> mesh = meshes.make(jax.devices()[:1], num_seeds=1)
        >>> meshes.placed(mesh, meshes.PER_SEED, {"a": jnp.zeros((1, 3))})["a"].shape
        (1, 3)
    """

    def place(kind: P, subtree: types.ArrayTree) -> types.ArrayTree:
        where = sharding(mesh, kind)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), subtree)

    return jax.tree.map(place, kinds, tree, is_leaf=_is_kind)


def _is_kind(x: Any) -> bool:
    return isinstance(x, P)
