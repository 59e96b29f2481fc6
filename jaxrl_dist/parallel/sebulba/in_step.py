"""Acting with all environments of an actor together: every unroll is the next T rows of each."""

from collections.abc import Iterator

import jax

from jaxrl_dist import envs
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.sebulba import actor as actor_threads
from jaxrl_dist.parallel.sebulba import actors as numbers
from jaxrl_dist.parallel.sebulba import channels, queue, tiers


class InStep:
    """See `actor.Acting`.

    Attributes:
        programs: of an unroll.
    """

    def __init__(self, actors: numbers.Actors) -> None:
        """Builds the programs; compiles none."""
        parts, self._width = actors.parts, actors.width
        self._agent, self._spec = parts.agent, parts.environment.spec
        self.programs = unroll.host_unroll(parts.agent, parts.num_envs, parts.config.unroll_length, len(actors.local))

    def warm_up(self, published: channels.Published, device: jax.Device) -> None:
        timestep = tiers.zero_timestep(self._spec, self._width)
        self.programs.warm_up(published, timestep, self._agent.init_carry(self._width), device)

    def play(self, actor: actor_threads.Actor, environment: envs.HostEnvironment) -> Iterator[queue.Unrolled]:
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
            parts, rows = self.programs.run(published, actor.key, number, actor.env_ids, player, timestep, carry)
            timestep, carry = rows.timestep, rows.carry
            seconds = {"environment_s": rows.environment_s, "inference_s": rows.inference_s}
            yield queue.Unrolled(
                actor.number, number, version, parts, (), actor.columns, timestep, rows.episodes, seconds
            )
            number += 1
