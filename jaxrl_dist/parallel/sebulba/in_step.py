"""Acts on all environments of an actor together: an unroll is the next T rows of each."""

from collections.abc import Iterator

import jax

from jaxrl_dist import envs
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.sebulba import queue
from jaxrl_dist.parallel.sebulba.actor import Actor
from jaxrl_dist.parallel.sebulba.actors import Actors


class InStep:
    """Plays all environments in step, see `actor.Acting`.

    Attributes:
        programs: programs of an unroll.
    """

    def __init__(self, actors: Actors) -> None:
        """Builds the programs; compiles none."""
        parts, self._width, self.open = actors.parts, actors.num_rows, actors.make_environments
        self._agent, self._spec = parts.agent, parts.environment.spec
        length, pieces = parts.config.unroll_length, len(actors.local)
        self.programs = unroll.HostUnroll(parts.agent, self._spec, parts.num_envs, length, pieces)

    def warm_up(self, published: unroll.Published, device: jax.Device) -> None:
        timestep = unroll.zero_timestep(self._spec, self._width)
        self.programs.warm_up(published, timestep, self._agent.init_carry(self._width), device)

    def play(self, actor: Actor, environment: envs.HostEnvironment) -> Iterator[queue.Unrolled]:
        number, (saved, timestep, carry) = actor.begin
        player = environment
        if jax.tree.leaves(saved):
            environment.load(saved)  # type: ignore[attr-defined]
        elif timestep:
            player = unroll.ResetOnFirstStep(environment)  # type: ignore[assignment]
        else:
            timestep = environment.reset()._replace(info=())
        carry = jax.device_put(carry, actor.device)
        while True:
            actor.at = number, unroll.ActorState((), timestep, carry)
            number, version, published = actor.parameters(number)
            place = actor.key, number, actor.env_ids
            parts, rows = self.programs.run(published, *place, player, timestep, carry, actor.check_current)
            timestep, carry = rows.timestep, rows.carry
            seconds = {"environment_s": rows.environment_s, "inference_s": rows.inference_s}
            yield queue.Unrolled(
                actor.number, number, version, parts, (), actor.columns, timestep, rows.episodes, seconds
            )
            number += 1
