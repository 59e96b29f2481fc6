"""The known episode of `known_episode` in the interfaces of suites, whose packages need not be installed."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_dist import envs, types
from jaxrl_dist.envs import wrappers
from jaxrl_dist.envs.host import pooled
from jaxrl_dist.envs.suites import ale, brax, craftax, jumanji, navix, pgx, popgym, xminigrid

LENGTH = 7
_NEVER = 1000


def _ends(name: str) -> bool:
    return name in ("episode", "both")


def _limit(name: str) -> int:
    return LENGTH if name in ("time_limit", "both") else _NEVER


def through_craftax(name: str) -> envs.Environment:
    """Ends at a limit are ends like any other, as in Craftax."""

    @struct.dataclass
    class Params:
        max_timesteps: int

    @struct.dataclass
    class State:
        timestep: Any

    class Fake:
        num_actions = 3

        def reset_env(self, key: Any, params: Any) -> Any:
            return jnp.zeros(2), State(jnp.int32(0))

        def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            steps = state.timestep + 1
            done = ((steps >= LENGTH) & _ends(name)) | (steps >= params.max_timesteps)
            return jnp.stack([steps, action]).astype(float), State(steps), (steps - 1) / 2 + action, done, {}

    return wrappers.auto_reset(craftax.adapt(Fake(), Params(_limit(name)), "fake"))


def through_navix(name: str) -> envs.Environment:
    """One cell, whose kind is the number of steps and whose colour is the action."""

    @struct.dataclass
    class State:
        cache: Any

    @struct.dataclass
    class Timestep:
        t: Any
        observation: Any
        reward: Any
        step_type: Any
        state: Any

    class Fake:
        action_set = (0, 1, 2)
        max_steps = _limit(name)

        def reset(self, key: Any) -> Any:
            zero = jnp.int32(0)
            return Timestep(zero, jnp.zeros((1, 1, 3), jnp.uint8), jnp.float32(0), zero, State(jnp.zeros(9)))

        def _step(self, timestep: Any, action: Any) -> Any:
            t = timestep.t + 1
            terminated, truncated = (t >= LENGTH) & _ends(name), t >= self.max_steps
            kind = jnp.clip(truncated + 2 * terminated, 0, 2)
            cell = jnp.stack([t, action, 0]).astype(jnp.uint8)[None, None]
            return Timestep(t, cell, (t - 1) / 2 + action, kind, timestep.state)

    environment = wrappers.auto_reset(navix.adapt(Fake(), "fake"))

    def decoded(output: Any) -> Any:
        state, timestep = output
        kind, colour = timestep.observation[0, 0, :11].argmax(), timestep.observation[0, 0, 11:17].argmax()
        return state, timestep._replace(observation=jnp.stack([kind, colour]).astype(float))

    return environment._replace(
        reset=lambda key: decoded(environment.reset(key)),
        step=lambda state, action: decoded(environment.step(state, action)),
    )


def through_pgx(name: str) -> envs.Environment:
    """The other player opens, and answers every move; half of the reward comes with its answer, and so does the end."""

    @struct.dataclass
    class State:
        current_player: Any
        observation: Any
        rewards: Any
        terminated: Any
        truncated: Any
        legal_action_mask: Any

    class Fake:
        num_actions = 3
        observation_shape = (2,)

        def init(self, key: Any) -> Any:
            false = jnp.bool_(False)
            return State(jnp.int32(1), jnp.zeros(2), jnp.zeros(2), false, false, jnp.ones(3, bool))

        def step(self, state: Any, action: Any, key: Any) -> Any:
            steps, last = state.observation
            is_agents = state.current_player == 0
            moved = jnp.where(is_agents, jnp.stack([steps + 1, action.astype(float)]), state.observation)
            reward = jnp.where(is_agents, steps / 2, last)
            over = ~is_agents & (steps >= LENGTH) & _ends(name)
            return state.replace(
                current_player=1 - state.current_player,
                observation=moved,
                rewards=jnp.stack([reward, -reward]),
                terminated=over,
            )

        def _observe(self, state: Any, player: int) -> Any:
            return state.observation

    limit = _limit(name) % _NEVER
    return _without_mask(wrappers.auto_reset(pgx.adapt(Fake(), "fake", max_steps=limit)))


def _without_mask(environment: envs.Environment) -> envs.Environment:
    """Shows what an observation has beside the mask."""

    def shown(result: Any) -> Any:
        state, timestep = result
        return state, timestep._replace(observation=timestep.observation["observation"])

    spec = environment.spec._replace(observation=environment.spec.observation["observation"], mask="")
    reset, step = environment.reset, environment.step
    return environment._replace(
        reset=lambda key: shown(reset(key)), step=lambda state, action: shown(step(state, action)), spec=spec
    )


def through_jumanji(name: str) -> envs.Environment:
    """Observations of two numbers, actions of two of which the first is always 0."""

    class Observation(NamedTuple):
        steps: Any
        action: Any

    class Timestep(NamedTuple):
        step_type: Any
        reward: Any
        discount: Any
        observation: Any

    class ActionSpec(NamedTuple):
        num_values: Any

    class Fake:
        action_spec = ActionSpec(np.array([1, 3]))
        observation_spec = Observation(None, None)

        def reset(self, key: Any) -> Any:
            zero = jnp.int32(0)
            return zero, Timestep(jnp.int8(0), jnp.float32(0), jnp.float32(1), Observation(zero, zero))

        def step(self, state: Any, action: Any) -> Any:
            steps, (_, last) = state + 1, action
            terminated, truncated = (steps >= LENGTH) & _ends(name), steps >= _limit(name)
            kind = jnp.where(terminated | truncated, types.LAST, types.MID).astype(jnp.int8)
            return steps, Timestep(kind, state / 2 + last, jnp.where(terminated, 0.0, 1.0), Observation(steps, last))

    return wrappers.flatten(wrappers.auto_reset(jumanji.adapt(Fake(), "fake")))


def through_xminigrid(name: str) -> envs.Environment:
    """The two numbers are the cells of an observation; the direction is always the first."""

    @struct.dataclass
    class Agent:
        direction: Any

    @struct.dataclass
    class State:
        agent: Any
        steps: Any

    class Timestep(NamedTuple):
        state: Any
        step_type: Any
        reward: Any
        discount: Any
        observation: Any

    class Settings(NamedTuple):
        max_steps: int

    class Fake:
        def num_actions(self, settings: Any) -> int:
            return 3

        def reset(self, settings: Any, key: Any) -> Any:
            state = State(Agent(jnp.int32(0)), jnp.int32(0))
            return Timestep(state, jnp.uint8(0), jnp.float32(0), jnp.float32(1), jnp.zeros(2, jnp.uint8))

        def step(self, settings: Any, timestep: Any, action: Any) -> Any:
            state = timestep.state.replace(steps=timestep.state.steps + 1)
            terminated, truncated = (state.steps >= LENGTH) & _ends(name), state.steps == settings.max_steps
            kind = jnp.where(terminated | truncated, types.LAST, types.MID).astype(jnp.uint8)
            seen = jnp.stack([state.steps, action]).astype(jnp.uint8)
            return Timestep(state, kind, timestep.state.steps / 2 + action, jnp.where(terminated, 0.0, 1.0), seen)

    made = wrappers.auto_reset(xminigrid.adapt(Fake(), Settings(_limit(name)), "fake"))
    spec = made.spec._replace(observation=jax.ShapeDtypeStruct((2,), jnp.float32), categories={})

    def shown(result: Any) -> Any:
        state, timestep = result
        assert timestep.observation["direction"].shape == (4,)
        return state, timestep._replace(observation=timestep.observation["cells"].astype(jnp.float32))

    return made._replace(
        reset=lambda key: shown(made.reset(key)), step=lambda state, a: shown(made.step(state, a)), spec=spec
    )


def through_popgym(name: str) -> envs.Environment:
    """Observations are the numbers of the known episode instead of a picture."""

    class Actions(NamedTuple):
        n: int = 3

    class Fake:
        max_episode_length = _limit(name)

        def action_space(self, settings: Any) -> Any:
            return Actions()

        def reset_env(self, key: Any, settings: Any) -> Any:
            return jnp.zeros(2), jnp.int32(0)

        def step_env(self, key: Any, state: Any, action: Any, settings: Any) -> Any:
            steps = state + 1
            told = {"terminated": (steps >= LENGTH) & _ends(name), "truncated": steps >= _limit(name)}
            observation = jnp.stack([steps, action]).astype(jnp.float32)
            return observation, steps, state / 2 + action, told["terminated"] | told["truncated"], told

    return wrappers.auto_reset(popgym.adapt(Fake(), None, "fake"))


def through_playground(name: str) -> envs.Environment:
    """Actions are those of the known episode, less one."""

    @struct.dataclass
    class State:
        data: Any
        obs: Any
        reward: Any
        done: Any
        metrics: Any

    class Fake:
        action_size, observation_size = 1, 2

        def reset(self, rng: Any) -> Any:
            zero = jnp.float32(0)
            return State(jnp.int32(0), jnp.zeros(2), zero, zero, {"steps": zero})

        def step(self, state: Any, action: Any) -> Any:
            steps, action = state.data + 1, action[0] + 1
            state.metrics.update(steps=steps.astype(float))
            done = jnp.where((steps >= LENGTH) & _ends(name), 1.0, 0.0)
            observation = jnp.stack([steps.astype(float), action])
            return state.replace(data=steps, obs=observation, reward=(steps - 1) / 2 + action, done=done)

    environment = wrappers.auto_reset(brax.adapt(Fake(), "playground:fake", _limit(name)))
    return environment._replace(step=lambda state, a: environment.step(state, a[None].astype(jnp.float32) - 1))


def through_ale(name: str, num_envs: int) -> pooled.Pooled:
    """Frames of two pixels."""
    spec = types.EnvironmentSpec("fake", jax.ShapeDtypeStruct((2,), jnp.float32), types.DiscreteSpace(3), "classic")
    pool = ale._Pool(_FakeVector(name, num_envs), np.arange(num_envs, dtype=np.uint32))
    return pooled.Pooled(
        pool, spec, num_envs, 60.0, convert=lambda x: x.reshape(len(x), 2).astype(np.float32), life_loss=False
    )


class _FakeVector:
    """As ale-py's vector environment: an action where an episode has ended resets."""

    def __init__(self, name: str, num_envs: int) -> None:
        self.num_envs, self._name = num_envs, name
        self._steps, self._ended = np.zeros(num_envs, int), np.zeros(num_envs, bool)

    def reset(self, seed: Any) -> Any:
        self._steps[:], self._ended[:] = 0, False
        return self._frames(np.zeros(self.num_envs, int)), self._info()

    def send(self, action: Any) -> None:
        assert action.shape == (self.num_envs,) and action.dtype == np.int32
        self._action = action

    def recv(self) -> Any:
        first, action = self._ended, np.where(self._ended, 0, self._action)
        self._steps = np.where(first, 0, self._steps + 1)
        terminated = (self._steps >= LENGTH) & _ends(self._name)
        truncated = self._steps >= _limit(self._name)
        self._ended = terminated | truncated
        reward = np.where(first, 0, (self._steps - 1) / 2 + action)
        return self._frames(action), reward, terminated, truncated, self._info()

    def _frames(self, action: np.ndarray) -> np.ndarray:
        return np.stack([self._steps, action], axis=-1).astype(np.uint8)[:, None, None]

    def _info(self) -> dict[str, np.ndarray]:
        return {"env_id": np.arange(self.num_envs, dtype=np.int32), "lives": np.zeros(self.num_envs, np.int32)}
