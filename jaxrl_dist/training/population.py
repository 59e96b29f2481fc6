"""Population-based training of a sweep's members: what happens after an evaluation, and what is recorded of it.

Source: Jaderberg et al. 2017, "Population based training of neural networks".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist.learning import learner, members
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.settings import sweep
from jaxrl_dist.settings.resolve import Resolved

# Folded into the key of a member's evaluations, whose own numbers are smaller.
_EXPLOIT = 2**31 - 1
# Of a member's values in a record, before the name of a setting; and what a record says of members that were replaced.
VALUE, SOURCE = "member_", "member_goes_on_from"

Exploit = Callable[[learner.LearnerState, np.ndarray, jax.Array, int], tuple[learner.LearnerState, list[int]]]


def make(settings: Resolved, mesh: Mesh) -> Exploit:
    """Makes what a session calls after an evaluation.

    Args:
        settings: with a sweep.
        mesh: of the learner.

    Returns:
        (learner state [S, ...], returns f64 [S, episodes], keys [S] of evaluations, iteration) -> the state that
        members go on with, and the member [S] that each one goes on from.
    """
    count, bounds = settings["num_seeds"], sweep.bounds(settings)

    def exploit(state: learner.LearnerState, returns: jax.Array, keys: jax.Array, iteration: jax.Array) -> Any:
        # All members of a population have its seed's key.
        own = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, _EXPLOIT), iteration))(keys[:count])
        return members.exploit(state, returns, own, bounds)

    program = meshes.program(exploit, mesh, (meshes.PER_SEED, meshes.SHARED))

    def run(state: learner.LearnerState, returns: np.ndarray, keys: jax.Array, iteration: int) -> Any:
        state, source = program(state, ranks(returns), meshes.put_keys(mesh, keys), np.int32(iteration))
        return state, meshes.to_host(source).tolist()

    return run


def ranks(returns: np.ndarray) -> np.ndarray:
    """Returns f32 [S], the places of members by their mean returns f64 [S, episodes], which f32 would round together.

    Of equal returns the last is the best, and no number is the worst.
    """
    means = returns.mean(1)
    order = np.argsort(np.where(np.isnan(means), -np.inf, means), kind="stable")
    return np.argsort(order).astype(np.float32)


def values(params: Any) -> list[dict[str, float]]:
    """Returns the values of each member of a sweep, from its parameters [S, ...]."""
    found = {name: meshes.to_host(x).tolist() for name, x in params.statistics.values.items()}
    return [dict(zip(found, one, strict=True)) for one in zip(*found.values(), strict=True)]


def record(of_members: Sequence[Mapping[str, float]], source: Sequence[int] | None) -> dict[str, list[float]]:
    """Returns what the record of an evaluation says of a population.

    Args:
        of_members: the values with which each member was evaluated.
        source: the member that each one goes on from; None if all go on as they are.
    """
    found: dict[str, list[float]] = {f"{VALUE}{name}": [one[name] for one in of_members] for name in of_members[0]}
    return found if source is None else found | {SOURCE: list(source)}


def ranked(settings: Resolved, last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the members of each population by the record of its last evaluation, each population's best one first."""
    names, count = sweep.combinations(settings)[0], settings["num_seeds"]
    found = [
        {
            "seed": settings["seed"] + i % count,
            "member": i,
            "settings": {name: last[f"{VALUE}{name}"][i] for name in names},
            "eval_return_mean": score,
        }
        for i, score in enumerate(last["eval_return_per_seed"])
    ]
    return sorted(found, key=lambda one: (one["seed"], -one["eval_return_mean"]))
