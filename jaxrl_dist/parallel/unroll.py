"""Unrolling a policy in environments: on the device as one scan, on the host with one program per step."""

import functools
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents, envs, types
from jaxrl_dist.envs.host import checked, episodes
from jaxrl_dist.numeric import words
from jaxrl_dist.types import Array, ArrayTree

# Name of the loop in compiled programs and in profiles.
ROLLOUT_STEP = "rollout_step"


class ActorState(NamedTuple):
    """State of B environments between unrolls.

    Attributes:
        environment: tree of [B, ...], the environments' states.
        timestep: leaves [B, ...], the one that the next unroll opens with.
        carry: tree of [B, ...], the acting state before it.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxrl_dist
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.parallel import unroll
        >>> made = jaxrl_dist.make("a2c", "toy:walk")
        >>> state, timestep = envs.columns(made.environment).reset(jax.random.key(0), jnp.arange(2))
        >>> actors = unroll.ActorState(state, timestep, made.agent.init_carry(2))
        >>> actors.timestep.observation.shape
        (2, 2)
    """

    environment: ArrayTree
    timestep: types.TimeStep
    carry: ArrayTree


class EpisodeSums(NamedTuple):
    """Sums over the rows of an unroll, [] each.

    Attributes:
        episodes: i32 [], episodes that ended.
        episode_return: f32 [], sum of their returns.
        episode_length: i32 [], sum of their lengths.
        valid_steps: i32 [], taught rows.
        unsound_rows: i32 [], rows with impossible numbers.
    """

    episodes: Array
    episode_return: Array
    episode_length: Array
    valid_steps: Array
    unsound_rows: Array


def device_unroll(
    agent: agents.Agent, environment: envs.Environment, length: int, *, packs: bool = False
) -> Callable[..., tuple[ActorState, types.Unroll, EpisodeSums]]:
    """Makes the unroll of T rows on the device.

    Args:
        agent: chooses the actions.
        environment: one environment, of which B are stepped.
        length: T.
        packs: whether the loop carries and writes small leaves as words of one array, bit for bit: an accelerator
            starts a kernel for each array, and a CPU is slower by it.

    Returns:
        (params, actor_state, key, exploration, version i32 []) -> (actor_state, unroll [T + 1, B], sums). The
        closing row is acted on for its extras only; its action is chosen anew when the next unroll opens with it.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxrl_dist
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.parallel import unroll
        >>> made = jaxrl_dist.make("a2c", "toy:episode")
        >>> play = unroll.device_unroll(made.agent, made.environment, length=16)
        >>> state, timestep = envs.columns(made.environment).reset(jax.random.key(0), jnp.arange(2))
        >>> actors = unroll.ActorState(state, timestep, made.agent.init_carry(2))
        >>> params, version = made.agent.init(jax.random.key(1)), jnp.int32(0)
        >>> actors, rows, sums = play(params, actors, jax.random.key(2), (), version)
        >>> rows.steps.action.shape, int(sums.episodes), int(sums.valid_steps)
        ((17, 2), 4, 28)
    """

    step, num_agents = envs.columns(environment).step, environment.spec.num_agents
    pack, unpack = words.packing(packs)

    def unroll(
        params: types.Params, state: ActorState, key: Array, exploration: ArrayTree, version: Array
    ) -> tuple[ActorState, types.Unroll, EpisodeSums]:
        keys = jax.random.split(key, length + 1)

        def act(state: ActorState, key: Array) -> tuple[types.Step, ArrayTree]:
            timestep = state.timestep._replace(info=())
            output = agent.act(params, types.ActInputs(timestep, state.carry, key, exploration, state.environment))
            return types.Step(timestep, output.action, output.extras, ()), output.carry

        def body(carried: Any, key: Array) -> tuple[Any, Any]:
            state: ActorState = unpack(carried)
            row, carry = act(state, key)
            environments, timestep = step(state.environment, row.action)
            info = timestep.info
            episode = envs.outcomes(num_agents, timestep.step_type, info.episode_return, info.episode_length)
            return pack(ActorState(environments, timestep, carry)), pack((row, episode))

        with jax.named_scope(ROLLOUT_STEP):
            carried, written = jax.lax.scan(body, pack(state), keys[:-1])
        final, (rows, episode) = unpack(carried), unpack(written)
        closing, _ = act(final, keys[-1])
        steps = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), rows, closing)
        # The same for every row, so it is written once behind the loop.
        steps = steps._replace(version=jnp.broadcast_to(version, steps.timestep.step_type.shape))
        return final, types.Unroll(steps, state.carry), _episode_sums(environment.spec, rows.timestep, episode)

    return unroll


class HostRows(NamedTuple):
    """Results of an unroll on the host beside the unroll itself.

    Attributes:
        timestep: leaves [B, ...] in NumPy, the closing row's; `info` is ().
        carry: leaves [B, ...], the acting state before that row.
        episodes: sums in NumPy.
        environment_s: seconds spent in the environments.
        inference_s: seconds spent on choosing actions, with the copies to and from the device.
    """

    timestep: types.TimeStep
    carry: ArrayTree
    episodes: EpisodeSums
    environment_s: float
    inference_s: float


def step_struct(steps: types.Step) -> types.Step:
    """Returns shapes and dtypes of one row of one environment, as `Replay.init` takes them.

    Args:
        steps: rows [T + 1, B].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.parallel import unroll
        >>> unroll.step_struct(types.Step((), jnp.zeros((5, 2, 3)), (), ())).action.shape
        (3,)
    """
    found: types.Step = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), steps)
    return found


class Published(NamedTuple):
    """Holds the parameters that environments on the host are played with.

    Attributes:
        params: parameters, on the device that acts.
        updates: i32 [], number of updates that made them, which rows carry as their version.
        progress: f32 [], share of training, for schedules.
    """

    params: types.Params
    updates: Any
    progress: Any


class HostUnroll:
    """Plays unrolls of T rows in environments on the host, with one program per row.

    With the same environment, keys and parameters the rows are those of `device_unroll`. The program makes the timestep
    of what the library gave, and runs on the device of the parameters. Rows are kept on the host; they are written
    while the environments step, and checked and summed up once per unroll.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxrl_dist
        >>> from jaxrl_dist.envs.host import as_host
        >>> from jaxrl_dist.parallel import unroll
        >>> made = jaxrl_dist.make("a2c", "toy:walk")
        >>> play = unroll.HostUnroll(made.agent, made.environment.spec, num_envs=2, length=4, parts=1)
        >>> environment = as_host.AsHost(made.environment, 2, jax.random.key(0))
        >>> timestep, carry = environment.reset()._replace(info=()), made.agent.init_carry(2)
        >>> published = unroll.Published(made.agent.init(jax.random.key(1)), jnp.int32(0), jnp.float32(0.0))
        >>> (rows,), after = play.run(published, jax.random.key(2), 0, jnp.arange(2), environment, timestep, carry)
        >>> rows.steps.action.shape, after.timestep.observation.shape
        ((5, 2), (2, 2))
    """

    def __init__(
        self, agent: agents.Agent, spec: types.EnvironmentSpec, num_envs: int, length: int, parts: int
    ) -> None:
        """Builds the programs; compiles none.

        Args:
            agent: chooses the actions.
            spec: of the environments.
            num_envs: environments of the whole run, for the agent's exploration.
            length: T.
            parts: number of parts into which the unroll's columns are cut.
        """
        self._agent, self._spec, self._num_envs, self._length, self._parts = agent, spec, num_envs, length, parts
        self._begin, self._act = jax.jit(self._begun), jax.jit(self._acted)

    def run(
        self,
        published: Published,
        key: Array,
        index: int,
        env_ids: Array,
        environment: envs.HostEnvironment,
        timestep: types.TimeStep,
        carry: ArrayTree,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[tuple[types.Unroll, ...], HostRows]:
        """Plays T rows.

        Args:
            published: parameters to act with.
            key: typed key of the actor; with `index` folded in, it is the key that `device_unroll` takes.
            index: number of the unroll.
            env_ids: i32 [E], global indices of the environments.
            environment: E environments of A agents, B columns.
            timestep: leaves [B, ...] in NumPy, row 0 of the unroll.
            carry: leaves [B, ...], the acting state before row 0.
            check: called before each row; if it raises, the exception passes through, and the unroll is lost.

        Returns:
            The parts of the unroll [T + 1, B / parts], in NumPy but for the acting state, and `HostRows`.

        Raises:
            errors.EnvironmentFault: an environment died, hung or returned an invalid value.
            ValueError: the agent chose an action that is not one of the action space; the environments were given
                another one.
        """
        opening, params, ids = carry, published.params, np.arange(len(env_ids), dtype=np.int32)
        keys, exploration = self._begin(published, key, np.int32(index), env_ids)
        raw, rows = episodes.raw_step(timestep), Rows(self._length)
        environment_s, started_s = 0.0, time.perf_counter()
        for t in range(self._length + 1):
            check()
            # The call itself takes arrays from the host to the parameters' device, in a quarter of `device_put`'s time.
            sent, acted, following = self._act(params, carry, keys, exploration, np.int32(t), raw)
            if t == 0:
                rows.allocate((raw, acted), len(timestep.step_type))
            if t == self._length:
                rows.write(t, (raw, acted))
                break
            sent, sending_s = np.asarray(sent), time.perf_counter()
            environment.raw_send(sent, ids)
            writing_s = time.perf_counter()
            rows.write(t, (raw, acted))
            receiving_s = time.perf_counter()
            raw, carry = checked.receive_all(environment, ids), following
            environment_s += time.perf_counter() - receiving_s + writing_s - sending_s
        steps, sums = finished(environment, rows.tree(), np.asarray(published.updates), ids)
        inference_s = time.perf_counter() - started_s - environment_s
        closing = jax.tree.map(lambda x: x[-1].copy(), steps.timestep)
        return cut(types.Unroll(steps, opening), self._parts), HostRows(
            closing, carry, sums, environment_s, inference_s
        )

    def warm_up(self, published: Published, timestep: types.TimeStep, carry: ArrayTree, device: jax.Device) -> None:
        """Compiles the programs for a device."""
        number = np.int32(0)
        ids = np.arange(timestep.step_type.shape[0] // self._spec.num_agents, dtype=np.int32)
        carry, key, ids = jax.device_put((carry, jax.random.key(0), ids), device)
        keys, exploration = self._begin(published, key, number, ids)
        raw = episodes.raw_step(timestep)
        jax.block_until_ready(self._act(published.params, carry, keys, exploration, number, raw))

    def _begun(self, published: Published, key: Array, index: Array, env_ids: Array) -> tuple[Array, ArrayTree]:
        """Returns the keys of the rows [T + 1], and the exploration [B, ...]."""
        keys = jax.random.split(jax.random.split(jax.random.fold_in(key, index))[0], self._length + 1)
        num_agents = self._spec.num_agents
        columns, num_columns = envs.column_ids(env_ids, num_agents), self._num_envs * num_agents
        return keys, self._agent.exploration(published.params, columns, num_columns, published.progress)

    def _acted(
        self, params: types.Params, carry: ArrayTree, keys: Array, exploration: ArrayTree, t: Array, raw: envs.RawStep
    ) -> tuple[Array, tuple[Array, ArrayTree], ArrayTree]:
        """Returns actions [B] that are safe to send, the agent's own actions and extras, and the next acting state."""
        output = self._agent.act(params, types.ActInputs(episodes.timestep(raw), carry, keys[t], exploration))
        return episodes.safe_action(self._spec, output.action), (output.action, output.extras), output.carry


class Rows:
    """Rows [T + 1, B] on the host while they are played.

    Attributes:
        leaves: the arrays of all rows; none before `allocate`.
    """

    def __init__(self, length: int) -> None:
        """Takes T."""
        self.leaves: list[np.ndarray] = []
        self._length = length
        self._structure: Any = None

    def allocate(self, row: ArrayTree, width: int) -> None:
        """Makes space for B columns of rows like this one, a tree of [N, ...]; f64 becomes f32."""
        leaves, self._structure = jax.tree.flatten(row)
        dtypes = (np.dtype(np.float32) if x.dtype == np.float64 else x.dtype for x in leaves)
        shapes = ((self._length + 1, width, *x.shape[1:]) for x in leaves)
        self.leaves = [np.empty(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    def emptied(self) -> "Rows":
        """Returns as much space again."""
        rows = Rows(self._length)
        rows._structure, rows.leaves = self._structure, [np.empty_like(x) for x in self.leaves]
        return rows

    def write(self, at: Any, row: ArrayTree) -> None:
        """Writes rows at an index of [T + 1, B].

        Raises:
            TypeError: an array is of another kind than those before.
        """
        for table, leaf in zip(self.leaves, jax.tree.leaves(row), strict=True):
            x = np.asarray(leaf)
            if x.dtype != table.dtype and not np.can_cast(x.dtype, table.dtype, "same_kind"):
                raise TypeError(
                    f"a row has {x.dtype}{list(x.shape)}, those before {table.dtype}{list(table.shape[2:])}"
                )
            table[at] = x

    def tree(self) -> ArrayTree:
        """Returns all rows, a tree of [T + 1, B, ...]."""
        return jax.tree.unflatten(self._structure, self.leaves)


def finished(
    environment: envs.HostEnvironment, rows: tuple[envs.RawStep, tuple[Any, Any]], version: np.ndarray, ids: np.ndarray
) -> tuple[types.Step, EpisodeSums]:
    """Checks rows that are complete, and sums up their episodes.

    Args:
        environment: gave them.
        rows: raw steps, and actions with extras, leaves [T + 1, B, ...]; row 0 was the last of the columns before.
        version: i32 [] or [T + 1, B], version of the policy that acted.
        ids: i32 [E], environments of the columns; of one that comes several times, these are in order. With A agents
            in each, B is E·A.

    Returns:
        The rows as `types.Step`, and sums in NumPy.

    Raises:
        errors.EnvironmentFault: an environment returned an invalid value.
        ValueError: an action is not one of the action space.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.envs.host import as_host, episodes
        >>> from jaxrl_dist.parallel import unroll
        >>> environment = as_host.AsHost(envs.make("toy:walk"), num_envs=2, env_key=jax.random.key(0))
        >>> ids, action = np.arange(2, dtype=np.int32), np.ones((2, 2), np.int32)
        >>> opening = episodes.raw_step(environment.reset())
        >>> environment.raw_send(action[0], ids)
        >>> raw = jax.tree.map(lambda *x: np.stack(x), opening, environment.raw_recv()[0])
        >>> steps, sums = unroll.finished(environment, (raw, (action, ())), np.int32(0), ids)
        >>> steps.timestep.step_type.tolist(), sums.valid_steps
        ([[0, 0], [1, 1]], array([2], dtype=int32))
    """
    raw, (action, extras) = rows
    timestep = episodes.timestep(raw)
    episodes.check_actions(environment.spec, action[:-1])
    is_last, lost, sums = timestep.step_type == types.LAST, episodes.lost(raw), np.zeros(3)
    num_agents = environment.spec.num_agents
    for turn in _turns(ids):
        columns = turn if isinstance(turn, slice) else envs.column_ids(turn, num_agents)
        arrived = jax.tree.map(lambda x: x[1:, columns], timestep)  # noqa: B023
        account = environment.account(arrived, lost[1:, columns], ids[turn])
        ended, returns, lengths = envs.outcomes(num_agents, arrived.step_type, *account)
        # An episode that was cut short by a fault has length 0.
        played: Any = ended & (lengths > 0)
        counts = float(np.count_nonzero(played)), float(lengths[played].sum())
        sums += (counts[0], _sum_by_rows(returns, played), counts[1])
    valid = is_last[:-1].size - np.count_nonzero(is_last[:-1])
    steps = types.Step(timestep, action, extras, np.broadcast_to(version, is_last.shape))
    return steps, host_sums(sums[0], sums[1], sums[2], float(valid))


def _sum_by_rows(numbers: np.ndarray, chosen: np.ndarray) -> float:
    """Adds up the chosen ones of f32 [T, B] row by row, since the order of a sum is part of its bits."""
    found, ends = numbers[chosen], np.cumsum(np.count_nonzero(chosen, 1)).tolist()
    total, begin = 0.0, 0
    for end in ends:
        if end > begin:
            total += float(np.add.reduce(found[begin:end]))
        begin = end
    return total


def _turns(ids: np.ndarray) -> Iterator[Any]:
    """Yields indices into environments i32 [B] that are all different: first the first of each, then the second, …"""
    left = np.arange(len(ids))
    while len(left):
        turn = left[np.sort(np.unique(ids[left], return_index=True)[1])]
        yield slice(None) if len(turn) == len(ids) else turn
        left = np.setdiff1d(left, turn)


class ResetOnFirstStep:
    """New environments in the place of lost ones: the first step, which follows a LAST row, resets them."""

    def __init__(self, environment: envs.HostEnvironment) -> None:
        """Takes environments that have not begun."""
        self.spec, self.account = environment.spec, environment.account
        self._environment, self._ids = environment, np.arange(environment.num_envs, dtype=np.int32)
        self._is_fresh = True

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step; does nothing at the first call."""
        if not self._is_fresh:
            self._environment.raw_send(action, env_ids)

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        """Waits for the environments, or resets at the first call."""
        if self._is_fresh:
            self._is_fresh = False
            return self._environment.raw_reset(), self._ids
        return self._environment.raw_recv()


def rows_struct(agent: agents.Agent, spec: types.EnvironmentSpec, unroll_length: int, width: int) -> types.Unroll:
    """Returns an unroll [T + 1, B] of `jax.ShapeDtypeStruct`.

    Args:
        agent: acts.
        spec: of the environment.
        unroll_length: T.
        width: B.

    Example:
        >>> import jaxrl_dist
        >>> from jaxrl_dist.parallel import unroll
        >>> made = jaxrl_dist.make("a2c", "toy:walk")
        >>> unroll.rows_struct(made.agent, made.environment.spec, unroll_length=4, width=2).steps.action.shape
        (5, 2)
    """

    def one() -> tuple[types.Step, ArrayTree]:
        params, carry, timestep = agent.init(jax.random.key(0)), agent.init_carry(width), zero_timestep(spec, width)
        exploration = agent.exploration(params, jnp.arange(width), width, jnp.float32(0))
        output = agent.act(params, types.ActInputs(timestep, carry, jax.random.key(0), exploration))
        version = jnp.zeros(width, jnp.int32)
        return types.Step(timestep, output.action, output.extras, version), carry

    step, carry = jax.eval_shape(one)
    steps = jax.tree.map(lambda x: jax.ShapeDtypeStruct((unroll_length + 1, *x.shape), x.dtype), step)
    return types.Unroll(steps, carry)


def zero_timestep(spec: types.EnvironmentSpec, width: int) -> Any:
    """Returns a LAST timestep [B] of zeros in NumPy, the one before anything is played.

    Args:
        spec: of the environment.
        width: B.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.parallel import unroll
        >>> timestep = unroll.zero_timestep(envs.make("toy:walk").spec, width=3)
        >>> timestep.step_type, timestep.observation.shape
        (array([2, 2, 2], dtype=int8), (3, 2))
    """
    zeros: Any = np.zeros(width, np.float32)
    last: Any = np.full(width, types.LAST, np.int8)
    observation = jax.tree.map(lambda x: np.zeros((width, *x.shape), x.dtype), spec.observation)
    return types.TimeStep(last, zeros, zeros, observation, ())


def ended(timestep: types.TimeStep) -> types.TimeStep:
    """Makes every row of a timestep in NumPy the last of its episode.

    Args:
        timestep: leaves [B, ...].

    Example:
        >>> import numpy as np
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.parallel import unroll
        >>> zero = np.zeros(2, np.float32)
        >>> unroll.ended(types.TimeStep(np.ones(2, np.int8), zero, zero, zero, ())).step_type
        array([2, 2], dtype=int8)
    """
    last: Any = np.full_like(timestep.step_type, types.LAST)
    return timestep._replace(step_type=last)


def no_episodes() -> EpisodeSums:
    """Returns sums of zero, leaves [1] in NumPy."""
    return host_sums(0, 0, 0, 0)


def host_sums(episodes: float, episode_return: float, episode_length: float, valid: float) -> EpisodeSums:
    """Returns sums as leaves [1] in NumPy; no row is counted as impossible, since the adapter checks every row.

    Args:
        episodes: that ended.
        episode_return: sum of their returns.
        episode_length: sum of their lengths, in steps.
        valid: taught rows.

    Example:
        >>> from jaxrl_dist.parallel import unroll
        >>> unroll.host_sums(2, 10.0, 14, 30).episode_return
        array([10.], dtype=float32)
    """
    numbers = (episodes, episode_return, episode_length, valid, 0)
    dtypes = (np.int32, np.float32, np.int32, np.int32, np.int32)
    return EpisodeSums._make(np.asarray([x], dtype) for x, dtype in zip(numbers, dtypes, strict=True))


def cut(unroll: types.Unroll, parts: int) -> tuple[types.Unroll, ...]:
    """Cuts an unroll by columns into equal parts.

    Args:
        unroll: [T + 1, B].
        parts: number of them.

    Returns:
        Unrolls [T + 1, B / parts].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.parallel import unroll
        >>> rows = types.Unroll(types.Step((), jnp.zeros((5, 4)), (), ()), jnp.zeros(4))
        >>> [part.steps.action.shape for part in unroll.cut(rows, parts=2)]
        [(5, 2), (5, 2)]
    """
    return tuple(map(types.Unroll, _cut(unroll.steps, parts, 1), _cut(unroll.carry, parts, 0)))


def _cut(tree: ArrayTree, parts: int, axis: int) -> tuple[ArrayTree, ...]:
    """Cuts every leaf into equal parts."""
    if parts == 1:
        return (tree,)

    def piece(leaf: Any, part: int) -> Any:
        width = leaf.shape[axis] // parts
        return leaf[(slice(None),) * axis + (slice(part * width, (part + 1) * width),)]

    return tuple(jax.tree.map(lambda leaf: piece(leaf, part), tree) for part in range(parts))  # noqa: B023


def _episode_sums(spec: types.EnvironmentSpec, timestep: types.TimeStep, outcomes: envs.Outcomes) -> EpisodeSums:
    ended, episode_return, episode_length = outcomes
    unsound = functools.reduce(operator.or_, envs.out_of_range(spec, timestep).values())
    return EpisodeSums(
        ended.sum(dtype=jnp.int32),
        jnp.where(ended, episode_return, 0.0).sum(),
        jnp.where(ended, episode_length, 0).sum(dtype=jnp.int32),
        (timestep.step_type != types.LAST).sum(dtype=jnp.int32),
        unsound.sum(dtype=jnp.int32),
    )
