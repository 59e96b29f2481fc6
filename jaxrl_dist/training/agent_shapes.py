"""Checks the shapes of what an agent's functions return, as programs are traced; a run pays nothing for it."""

from typing import Any

import jax

from jaxrl_dist import agents, errors, types


def checked(agent: agents.Agent, system: str, action: jax.ShapeDtypeStruct) -> agents.Agent:
    """Returns the agent with functions that refuse results of wrong shapes.

    One mean, where the learner expects a number per item, would broadcast: training would go on without importance
    weights and masks.

    Args:
        agent: the agent.
        system: its name, for messages.
        action: shape of one action.
    """

    def acting(name: str, act: Any) -> Any:
        def checked_act(params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
            output = act(params, inputs)
            _check_record(system, name, output, types.ActOutput)
            batch = inputs.timestep.step_type.shape[0]
            _check(system, f"{name}().action", output.action, (batch, *action.shape), "one action per environment")
            before, after = (jax.tree.map(_shape, carry) for carry in (inputs.carry, output.carry))
            if before != after:
                _refuse(system, f"{name}().carry is {after}, expected {before}, as init_carry makes it")
            return output

        return checked_act

    def loss(params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
        output = agent.loss(params, inputs)
        _check_record(system, "loss", output, types.LossOutput)
        items = jax.tree.leaves(inputs.batch)[0].shape[:1]
        numbers = {"loss": output.loss, "valid": output.valid, "priority": output.priority}
        for group in ("metrics", "maxima"):
            numbers |= {f"{group}[{name!r}]": value for name, value in getattr(output, group).items()}
        for name, value in numbers.items():
            _check(system, f"loss().{name}", value, items, "one number per item, summed over its taught steps")
        return output

    return agent._replace(act=acting("act", agent.act), evaluate=acting("evaluate", agent.evaluate), loss=loss)


def _check_record(system: str, name: str, output: Any, record: type) -> None:
    if not isinstance(output, record):
        found = f"an array of shape {_shape(output)}" if hasattr(output, "shape") else f"a {type(output).__name__}"
        _refuse(system, f"{name}() returns {found}, expected types.{record.__name__}")


def _check(system: str, name: str, value: Any, expected: tuple[int, ...], meaning: str) -> None:
    if _shape(value) != expected:
        _refuse(system, f"{name} has shape {_shape(value)}, expected {expected}: {meaning}")


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _refuse(system: str, words: str) -> None:
    raise errors.UsageError(errors.given("system", system), f": {words}")
