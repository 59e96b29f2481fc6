"""Environments that importing this module registers with Gymnasium, as a user's own module would."""

import sys
import time
from typing import Any

import gymnasium
import numpy as np
from fakes import host_environments
from gymnasium import spaces


class Counting(gymnasium.Env):
    """The known episode: terminated by itself after 7 steps, or only by Gymnasium's time limit."""

    def __init__(self, name: str) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self._counting = host_environments.Counting("episode")
        self._terminates = name != "time_limit"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._counting.reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self._counting.step(action)
        return observation, reward, terminated and self._terminates, truncated, info


class Spaces(gymnasium.Env):
    """Shows what it was made with, and each kind of space; observations are functions of seed and step."""

    def __init__(
        self, kind: str = "tree", gain: float = 1.0, flag: bool = False, sizes: Any = (), text: str = ""
    ) -> None:
        if kind == "exit":
            sys.exit(6)
        if kind == "bare":
            return
        self.made_with = [gain, flag, sizes, text]
        self.observation_space = {
            "tree": spaces.Dict(
                {
                    "image": spaces.Box(0, 255, (5, 4, 3), np.uint8),
                    "deep": spaces.Dict({"b": spaces.MultiBinary(3), "a": spaces.Discrete(4, start=2)}),
                    "pair": spaces.Tuple([spaces.Box(-1, 1, (), np.float64), spaces.Box(-9, 9, (2,), np.int64)]),
                }
            ),
            "flags": spaces.Box(0, 1, (2, 3, 1), np.uint8),
            "frames": spaces.Box(0, 255, (2, 3, 4), np.uint8),
            "grey": spaces.Box(0, 255, (36, 40), np.uint8),
            "wide": spaces.Box(-(2**40), 2**40, (1,), np.int64),
            "text": spaces.Text(5),
            "sequence": spaces.Sequence(spaces.Discrete(2)),
            "numbers": spaces.Box(0, 30_000, (2,), np.int32),
            "nothing": spaces.Dict({"none": spaces.Box(-1, 1, (0,), np.float32), "one": spaces.Box(-1, 1, (1,))}),
            "table": spaces.Dict({"x": spaces.MultiDiscrete([[2, 2]])}),
        }.get(kind, spaces.Discrete(3))
        self.action_space = {
            "integers": spaces.Box(0, 9, (2,), np.int32),
            "discrete": spaces.Discrete(2),
            "small": spaces.Discrete(3, dtype=np.uint8),
            "outside": spaces.Discrete(2),
        }.get(kind, spaces.Box(np.array([-0.1, 0.2]), np.array([0.1, 0.7]), dtype=np.float64))
        self._kind, self._steps = kind, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._steps += 1
        gain, flag, sizes, text = self.made_with
        return self._observation(), gain + 10 * flag + 100 * len(sizes) + 1000 * len(text), False, False, {}

    def _observation(self) -> Any:
        if self._kind == "nothing":
            return {"none": np.zeros(0, np.float32), "one": np.full(1, 0.5, np.float32)}
        if self._kind == "frames":
            return np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
        if self._kind == "grey":
            return np.arange(1440).reshape(36, 40).astype(np.uint8)
        if self._kind == "text":
            return "" if self._steps == 0 else f"a{self._steps}é more"
        if self._kind == "numbers":
            return np.array([100, 20_000 + self._steps], np.int32)
        if self._kind == "wide":
            return np.array([2**40 - 5])
        if self._kind == "flags":
            return np.full((2, 3, 1), self._steps % 2, np.uint8)
        if self._kind != "tree":
            return 3 if self._kind == "outside" and self._steps == 2 else self._steps % 3
        steps = self._steps
        return {
            "pair": (0.1, np.array([steps, -steps])),
            "image": np.full((5, 4, 3), steps, np.uint8),
            "deep": {"a": 2 + steps % 4, "b": np.array([1, 0, steps % 2], np.int8)},
        }


class Choosing(gymnasium.Env):
    """Shows the last action as it got it, beside a mask of legal ones and a vector of choices."""

    def __init__(self, kind: str = "from_five") -> None:
        self.action_space = {
            "from_five": spaces.Discrete(3, start=5),
            "vector": spaces.MultiDiscrete([3, 2], start=[0, -1]),
            "table": spaces.MultiDiscrete([[3, 2], [2, 2]]),
            "switches": spaces.MultiBinary(4),
        }[kind]
        count = {"from_five": 3, "vector": 5, "table": 9, "switches": 8}[kind]
        size = np.size(np.zeros(self.action_space.shape))
        self.observation_space = spaces.Dict(
            {
                "action_mask": spaces.Box(0, 1, (count,), np.int8),
                "hand": spaces.MultiDiscrete([4, 3], start=[1, 0]),
                "last": spaces.Box(-9, 9, (size,), np.int64),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observation(np.zeros(self.action_space.shape, int)), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self._observation(action), 0.0, False, False, {}

    def _observation(self, action: Any) -> Any:
        mask = np.zeros(self.observation_space["action_mask"].shape, np.int8)
        mask[::2] = 1
        return {"action_mask": mask, "hand": np.array([4, 2]), "last": np.ravel(action).astype(np.int64)}


class Slow(gymnasium.Env):
    """Never comes back where it is told to, whatever is thrown at it once."""

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, hangs: str) -> None:
        self._hangs = hangs
        self._wait("making")

    def close(self) -> None:
        self._wait("closing")

    def _wait(self, here: str) -> None:
        if here == self._hangs:
            try:
                time.sleep(3600)
            except BaseException:
                time.sleep(3600)


class Arguments(gymnasium.Env):
    """Shows whether its arguments came as a program or a flag gave them."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 1, (1,), np.int8)

    def __init__(self, size: Any = (2, 5), names: Any = None, bound: float = 1.0) -> None:
        self._is_right = (size, names, bound) == ((5, 6), {1: "a", (2, None): [True]}, np.inf) and type(size) is tuple

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.array([self._is_right], np.int8), {}

    def step(self, action: Any) -> Any:
        return np.array([self._is_right], np.int8), 0.0, False, False, {}


def short_cart(steps: int = 5, scale: float = 1.0) -> gymnasium.Env:
    """A pole whose observations are multiplied, and whose episodes are cut."""
    made = gymnasium.make("CartPole-v1", max_episode_steps=steps)
    return gymnasium.wrappers.TransformObservation(made, lambda x: np.float32(scale) * x, made.observation_space)


gymnasium.register("Slow-v0", Slow)
gymnasium.register("ShortCart-v0", "fakes.registered:short_cart", kwargs={"scale": 2.0})
gymnasium.register("Counting-v0", "fakes.registered:Counting", kwargs={"name": "episode"})
gymnasium.register("Limited-v0", "fakes.registered:Counting", max_episode_steps=7, kwargs={"name": "time_limit"})
gymnasium.register("Both-v0", Counting, max_episode_steps=7, kwargs={"name": "both"})
gymnasium.register("Spaces-v0", Spaces)
gymnasium.register(
    "Wrapped-v0",
    Arguments,
    additional_wrappers=(
        gymnasium.envs.registration.WrapperSpec("Scaled", "gymnasium.wrappers:TransformReward", {"func": abs}),
    ),
)
gymnasium.register(
    "Arguments-v0", Arguments, kwargs={"size": (5, 6), "names": {1: "a", (2, None): [True]}, "bound": np.inf}
)
gymnasium.register("Choosing-v0", Choosing)
gymnasium.register("Local-v0", lambda: Spaces())
gymnasium.register("Broken-v0", "nowhere_at_all:Env")
