"""One step of a policy as a program of JAX for any number of rows, with its parameters inside."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export
from jax.interpreters import partial_eval

from jaxrl_dist import errors
from jaxrl_dist.training import policy as policies
from jaxrl_dist.training import predicting

# The axis of rows, in shapes.
BATCH = "batch"
_CARRY, _NEXT, _KEY = "carry", "next_carry", "key"


class Step(NamedTuple):
    """One step of a policy, greedy, with its parameters inside; what it does not read is left out.

    Attributes:
        jaxpr: its program for `batch` rows, which takes and returns arrays in the order of `inputs` and `outputs`.
        inputs: name -> shape and dtype, [batch, ...]: `observation`, or `observation/NAME` of a tree; `reward` for
            arriving, `is_first` where an episode begins, and `carry/...`, all where the policy reads them.
        outputs: name -> likewise: `action`; `scores`, f32 [batch, A], if the action is the one of the largest score (a
            logit or a value); and `next_carry/...`.
    """

    jaxpr: Any
    inputs: dict[str, jax.ShapeDtypeStruct]
    outputs: dict[str, jax.ShapeDtypeStruct]

    @property
    def carry(self) -> dict[str, str]:
        """Returns the outputs that the inputs of the next step are, by the names of those; zeros before the first."""
        return {name: _NEXT + name.removeprefix(_CARRY) for name in self.inputs if name.startswith(_CARRY)}


def of_policy(policy: policies.Policy) -> Step:
    """Returns one step of a policy.

    Raises:
        UsageError: its code needs to know the number of rows, or it draws in evaluation, too.
    """
    (batch,) = export.symbolic_shape(BATCH)
    predictor = policy.predictor

    def rows(struct: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *struct.shape), struct.dtype)

    one = jax.eval_shape(lambda: predictor.init_carry(1))
    carry = jax.tree.map(lambda x: rows(jax.ShapeDtypeStruct(x.shape[1:], x.dtype)), one)
    number, truth = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), bool)
    observation = jax.tree.map(rows, predictor.spec.observation)
    given = {"observation": observation, "reward": rows(number), "is_first": rows(truth), _CARRY: carry}
    given[_KEY] = jax.eval_shape(lambda: jax.random.key(0))
    named, structure = jax.tree_util.tree_flatten_with_path(given)

    def flat(*leaves: Any) -> list[Any]:
        tree = jax.tree.unflatten(structure, leaves)
        state = predicting.State(tree[_CARRY], tree[_KEY])
        # The compiled function's own: a call of it would hide what it reads.
        act = predictor.greedy.__wrapped__  # type: ignore[attr-defined]
        action, state = act(policy.params, state, tree["observation"], tree["reward"], tree["is_first"])
        return [action, *jax.tree.leaves(state.carry)]

    try:
        jaxpr = jax.make_jaxpr(flat)(*(struct for _, struct in named))
    except Exception as error:
        raise errors.UsageError(
            f"{policy}: its code cannot be traced for a number of rows that is not known: {type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]}"
        ) from error
    step = _pruned(jaxpr, ["/".join(map(_key, path)) for path, _ in named])
    if _KEY in step.inputs:
        raise errors.UsageError(
            f"{policy}: it draws in evaluation, too, as a search and the latent state of a world model do, and an "
            "export has no random numbers; valid: runs of other systems"
        )
    return step


def _key(entry: Any) -> str:
    return str(getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry))))


def _pruned(closed: Any, names: list[str]) -> Step:
    """Leaves out inputs that no action depends on, and carries that only feed themselves."""
    inner = closed.jaxpr
    carries = [name for name in names if name.startswith(_CARRY)]
    action, *following = inner.outvars
    scores = _scores(inner, action)
    outputs = {"action": action, **({} if scores is None else {"scores": scores})}
    every = outputs | dict(zip((_NEXT + name.removeprefix(_CARRY) for name in carries), following, strict=True))
    unnamed = inner.debug_info.with_unknown_names()
    whole = inner.replace(outvars=list(every.values()), debug_info=unnamed)
    wanted = set(outputs)
    while True:
        program, used_consts, used = partial_eval.dce_jaxpr_consts(whole, [name in wanted for name in every])
        read = [name for name, is_used in zip(names, used, strict=True) if is_used]
        more = wanted | {_NEXT + name.removeprefix(_CARRY) for name in read if name.startswith(_CARRY)}
        if more == wanted:
            break
        wanted = more
    consts = [value for value, is_used in zip(closed.consts, used_consts, strict=True) if is_used]
    variables: list[list[Any]] = [program.invars, program.outvars]
    taken, given = ([jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in one] for one in variables)
    return Step(
        type(closed)(program, consts),
        dict(zip(read, taken, strict=True)),
        dict(zip((name for name in every if name in wanted), given, strict=True)),
    )


def _scores(jaxpr: Any, action: Any) -> Any:
    """Returns the variable of whose rows the action is the largest component's index, None if there is none."""
    made = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    while action in made and made[action].primitive.name == "convert_element_type":
        (action,) = made[action].invars
    is_chosen = action in made and made[action].primitive.name == "argmax"
    return made[action].invars[0] if is_chosen else None
