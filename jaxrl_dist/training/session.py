"""Drives a run: iterations in chunks, logs, evaluations, checkpoints, and a stop at any time.

Each of several processes drives it alike. What follows the clock, a signal, a callback or a fault is agreed on by
`processes.exchange`; whatever is written, process 0 writes.
"""

import contextlib
import functools
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import errors, parallel, processes, types
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import memory_use, mesh
from jaxrl_dist.runs import checkpoint, events, loggers
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import resolve, sweep
from jaxrl_dist.training import assemble, evaluation, guard, population, records, resume
from jaxrl_dist.training import stop as stopping

_CHUNK_S = 1.0
# Chunks take so many times as long where each copies the state of seeds.
_TIMES_LONGER = 6
FINISHED, RETURN_REACHED, STOPPED = "finished", "return reached", "stopped"
# Gets a copy of each record; a true result ends the run, and may be a text with the reason.
Callback = Callable[[dict[str, Any]], object]


class Result(NamedTuple):
    """The end of a session.

    Attributes:
        reason: `finished`, `return reached`, `stopped`, or "callback " with the callback's name and its text.
        progress: progress at the end.
        resumed_from: as in `Started`.
        params: `types.Params`, leaves [S, ...].
    """

    reason: str
    progress: records.Progress
    resumed_from: int | None
    params: types.Params


class _Next(NamedTuple):
    """The decision before a chunk, the same in all processes.

    Attributes:
        stop_code: exit code of a requested stop, 0 without one.
        saves: whether the run is saved now.
        length: longest number of iterations of the next chunk.
    """

    stop_code: int
    saves: bool
    length: int


class _Session(NamedTuple):
    parts: assemble.Assembly
    folder: pathlib.Path
    logger: loggers.Logger
    stop: stopping.StopToken
    keys: jax.Array
    evaluation_keys: jax.Array
    clock_s: float
    callbacks: Sequence[Callback]
    recent: records.Recent
    check_lock: Callable[[], None]

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.folder / "checkpoints"

    def save(self, name: int | str, tree: Any, meta: Mapping[str, Any]) -> None:
        """Saves a checkpoint of the run, after a check that the folder is still its own."""
        checkpoint.save(self.checkpoints, name, tree, meta, self.check_lock)

    def any_with_lock(self, said: Sequence[bool]) -> bool:
        """Checks that the folder is still its own, and says whether anything is true; for `processes.exchange`."""
        self.check_lock()
        return any(said)

    def tick(self, progress: records.Progress) -> None:
        """Moves the clocks on, and redraws the live line."""
        progress.run_until(time.perf_counter() - self.clock_s)
        counters = records.counters(self.parts, progress)
        self.logger.show({name: counters[name] for name in ("env_steps", "frames", "wall_s")})


def run(
    parts: assemble.Assembly,
    folder: pathlib.Path,
    started: resume.Started,
    logger: loggers.Logger,
    stop: stopping.StopToken,
    callbacks: Sequence[Callback] = (),
    check_lock: Callable[[], None] = lambda: None,
) -> Result:
    """Drives a run until it is finished or stopped; saves either way.

    Args:
        parts: assembled system.
        folder: run folder, locked by the caller.
        started: from `resume.start`; its state must not be used again.
        logger: logs every record.
        stop: checked between chunks.
        callbacks: each is called with every record after it is logged; an exception of one is raised after saving.
        check_lock: checks the lock of the folder before anything is written into it.

    Raises:
        guard.NonFiniteError: training diverged.
        EnvironmentFault: an environment failed, or the return of an evaluation is not finite.
        checkpoint.CheckpointError: a checkpoint cannot be written.
        LockError: the folder was moved, removed or taken over; nothing more is written into it.
    """
    evaluation_keys = jax.vmap(lambda key: run_keys.seed_keys(key).evaluation)(started.keys)
    session = _Session(
        *(parts, folder, logger, stop, started.keys, evaluation_keys, started.clock_s, callbacks, records.Recent()),
        check_lock,
    )
    state, progress = started.state, started.progress
    _announce(session, state, progress, -(-parts.settings["steps"] // parts.layout.rows_per_iteration))
    reason = _reason(session, progress, _decide(session).stop_code)
    if not reason:
        with jax.thread_guard(processes.count() > 1):
            state = _compile(session, state, progress)
            state, reason = _loop(session, state, progress)
            _save(session, state, progress)
    return Result(reason, progress, started.resumed_from, state.learner.params)


def _announce(session: _Session, state: Any, progress: records.Progress, total: int) -> None:
    """Says what runs where, and how a new number of steps changes schedules."""
    say, asked = session.logger.say, session.parts.settings["steps"]
    steps = functools.partial(records.env_steps, session.parts)
    session.logger.total_steps = steps(total)
    session.logger.members = sweep.num_members(session.parts.settings)
    say(f"{_described(session.parts)}; folder {session.folder}")
    rows = session.parts.layout.rows_per_iteration
    if asked < rows:
        say(f"{asked:,} steps are asked for, and an iteration has {rows:,}: this run has {steps(total):,}")
    for line in _too_short(session.parts, state):
        say(line)
    replay = memory_use.describe(memory_use.replay_parts(state.replay))
    for line in (*session.parts.layout.placement, session.parts.protocol, replay):
        if line:
            say(line)
    if progress.iteration >= total:
        done = steps(progress.iteration)
        say(f"it already has {done:,} steps per seed, and {asked:,} are asked for: nothing left to train")
    elif progress.iteration:
        say(f"resumed at {steps(progress.iteration):,} of {steps(total):,} steps per seed")
    if 0 < progress.iteration < total and progress.total != total:
        before, after = progress.iteration / progress.total, progress.iteration / total
        say(
            f"the run now ends at {steps(total):,} steps instead of {steps(progress.total):,}: "
            f"annealed settings go on from {after:.0%} of their schedule, they were at {before:.0%}"
        )
    progress.total = total
    progress.sessions.append((records.num_events(session.parts, state), total))


def _too_short(parts: assemble.Assembly, state: Any) -> Iterator[str]:
    """Yields what a run is too short for: to learn, to explore while it learns, to refresh its target network."""
    settings = parts.settings.settings
    if not {"replay.min_size", "replay.batch_size", "replay.samples_per_insert"} <= set(settings):
        return
    rows, wanted = settings["steps"] * parts.environment.spec.num_agents, settings["replay.min_size"]
    if rows <= wanted:
        yield (
            f"nothing will be learned: the first update waits for --replay.min_size={wanted} rows, and the run plays "
            f"{rows:,}; raise --steps, or lower --replay.min_size"
        )
        return
    window = parts.agent.context + parts.agent.taught + parts.agent.lookahead
    if rows < (needed := window * settings["env.num_envs"] * parts.environment.spec.num_agents):
        yield (
            f"nothing will be learned: a sample has {window} rows of an environment, so the first update waits for "
            f"{needed:,} rows, and the run plays {rows:,}; raise --steps, or lower --env.num_envs"
        )
        return
    explored = settings.get("agent.epsilon_wait", 0.0) + settings.get("agent.epsilon_fraction", 1.0)
    falls = settings.get("agent.epsilon_start", 0.0) > settings.get("agent.epsilon_end", 0.0)
    if falls and settings.get("agent.exploration", "schedule") == "schedule" and explored * rows <= wanted:
        yield (
            f"ε has fallen after {explored * rows:,.0f} rows, and learning begins after --replay.min_size={wanted}; "
            "raise --agent.epsilon_wait, or lower --replay.min_size"
        )
    taught = (rows - wanted) * settings["replay.samples_per_insert"]
    updates = int(taught / (settings["replay.batch_size"] * parts.agent.taught))
    period = settings["learner.target_period"]
    if updates < period and jax.tree.leaves(state.learner.target_network):
        yield (
            f"the target network is never refreshed: --learner.target_period={period} is more than the {updates:,} "
            "updates of the run; lower it, or raise --steps"
        )


def _described(parts: assemble.Assembly) -> str:
    """Says in one line where a run trains, and on how much at a time."""
    settings, members = parts.settings, sweep.num_members(parts.settings)
    num_agents = parts.environment.spec.num_agents
    rows = parts.layout.rows_per_iteration * num_agents // settings["learner.minibatches"]
    if "replay.batch_size" in settings.settings:
        rows = settings["replay.batch_size"] * parts.agent.taught
    of_agents = f" of {num_agents} agents" if num_agents > 1 else ""
    told = [
        f"{settings['layout']} on {mesh.describe(parts.layout.mesh)}",
        f"{settings['env.num_envs']:,} environments{of_agents} × {settings['layout.unroll_length']:,} steps",
        f"batches of {rows:,} rows",
        f"network {settings['network.torso']}",
        *([f"{members} seeds"] if members > 1 else ()),
    ]
    return " · ".join(told)


def _decide(session: _Session, saves: bool = False, length: int = 1) -> _Next:
    """Agrees on what comes next: a stop that any process was asked for, else what the clock of process 0 says."""

    def decide(said: list[Any]) -> Any:
        return max(stop_code for stop_code, *_ in said), *said[0][1:]

    own = session.stop.exit_code if session.stop.requested else 0
    found = _Next(*processes.exchange((own, saves, length), decide))
    if found.stop_code:
        session.stop.request(found.stop_code - 128)
    return found


def _reason(session: _Session, progress: records.Progress, stop_code: int) -> str:
    """Returns the reason why the run is at its end, "" if it is not."""
    if progress.last_return is not None and progress.last_return >= session.parts.settings["stop_at_return"]:
        return RETURN_REACHED
    if progress.iteration >= progress.total and progress.evaluated == progress.iteration:
        return FINISHED
    return STOPPED if stop_code else ""


def _compile(session: _Session, state: Any, progress: records.Progress) -> Any:
    """Compiles training and evaluation at the same time by running both for no steps."""
    started_s = time.perf_counter()
    params = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), state.learner.params)

    def compile_evaluation() -> None:
        # JAX's `with` sets the precision of one thread only.
        with matmul_precision(session.parts.settings):
            session.parts.evaluate(params, session.evaluation_keys, 0, limit=0)

    with (
        session.stop.at_once("stopped while compiling; there was nothing new to save"),
        session.logger.waiting("compiling"),
        futures.ThreadPoolExecutor(1) as pool,
    ):
        compiled = pool.submit(compile_evaluation) if processes.count() == 1 else None
        state, sums = session.parts.layout.run(state, progress.iteration, 0, progress.total)
        guard.is_sound(state, sums)
        # With several processes, one thread launches all programs, so that every process has them in the same order.
        if compiled is None:
            compile_evaluation()
        else:
            compiled.result()
    seconds = time.perf_counter() - started_s
    progress.compile_s += seconds
    progress.wall_s = time.perf_counter() - session.clock_s
    session.logger.say(f"compiled in {seconds:.1f} s")
    session.tick(progress)
    return state


def matmul_precision(settings: resolve.Resolved) -> contextlib.AbstractContextManager[Any]:
    """Sets the precision of matrix products that the settings ask for, in this thread and within the context."""
    return jax.default_matmul_precision(None if settings["precision"] == "default" else settings["precision"])


def intervals(parts: assemble.Assembly) -> tuple[int, int]:
    """Returns the iterations from one log line, and from one evaluation, to the next: rounded down, but at least 1."""
    rows, settings = parts.layout.rows_per_iteration, parts.settings
    log = settings["log.interval_steps"] or settings["steps"] // 100
    evaluation = settings["evaluation.interval_steps"] or settings["steps"] // 20
    return max(1, log // rows), max(1, evaluation // rows)


def _loop(session: _Session, state: Any, progress: records.Progress) -> tuple[Any, str]:
    parts, settings = session.parts, session.parts.settings
    log_every, evaluate_every = intervals(parts)
    copies = parts.layout.copies_state(sweep.num_members(settings))
    chunk_s = _CHUNK_S * (_TIMES_LONGER if copies else 1)
    length, chunks, learned, saved_s, called = 1, 0, 0, time.perf_counter(), ""
    while True:
        is_last = progress.iteration >= progress.total
        # Here, so that a record is also made of what was saved at a fault. After a stop before the first iteration of
        # a chunk, everything is logged already.
        if (progress.iteration % log_every == 0 or is_last) and progress.pending.iterations:
            record = records.training_record(parts, progress, session.recent)
            with _saving_at_a_fault(session, state, progress):
                called = processes.exchange(None, functools.partial(_publish, session, record))
        if progress.evaluated < progress.iteration and (progress.iteration % evaluate_every == 0 or is_last):
            state, told = _evaluate(session, state, progress)
            called = told or called
            is_exploited = parts.exploit is not None and progress.evaluated == progress.iteration
            if is_exploited and progress.iteration and not is_last:
                # What goes wrong is found by training again from a checkpoint, where no population exploits.
                _save(session, state, progress)
                saved_s = time.perf_counter()
        is_late = time.perf_counter() - saved_s >= settings["checkpoint.interval_s"]
        following = _decide(session, bool(is_late and chunks), length)
        if reason := _reason(session, progress, following.stop_code) or called:
            return state, reason
        if following.saves:
            # Environments that were lost and replaced meanwhile are in the next save.
            with contextlib.suppress(parallel.NotRestedError):
                _save(session, state, progress)
            saved_s = time.perf_counter()
        due = [(progress.iteration // every + 1) * every for every in (log_every, evaluate_every)]
        count = min(*due, progress.total, progress.iteration + following.length) - progress.iteration
        chunks += 1
        started_s = time.perf_counter()
        with _profile(session, learned):
            state, metrics, count, fault = _iterations(session, state, progress, count)
        seconds = time.perf_counter() - started_s
        has_failed = processes.exchange(fault is not None, session.any_with_lock)
        # After a fault the state may have been donated already, so it is checked only where it is to be saved.
        if parts.layout.diagnosis.kept() or (not has_failed and not processes.all_of(guard.is_sound(state, metrics))):
            session.logger.say("something is not finite: training again from the last checkpoint to find it")
            del state
            guard.stop_at_failure(parts, session.folder, session.keys, progress, count, session.check_lock)
        length = max(1, round(min(count * chunk_s / seconds, 4 * count)))
        records.add_chunk(progress, records.by_path(metrics), seconds, count)
        learned += progress.learner_steps > 0
        if parts.layout.events is not None:
            events.append(session.folder, parts.layout.events.take())
        session.tick(progress)
        if has_failed:
            with (
                _saving_at_a_fault(session, state, progress, functools.partial(guard.is_sound, state, metrics)),
                processes.alike(),
            ):
                if fault is not None:
                    raise fault


@contextlib.contextmanager
def _saving_at_a_fault(
    session: _Session, state: Any, progress: records.Progress, is_sound: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Saves the run before a fault leaves the context; the fault leaves it even if saving fails."""
    try:
        yield
    except errors.LockError:
        raise
    except Exception as fault:
        try:
            if not processes.all_of(is_sound()):
                raise guard.NonFiniteError("it is not finite")
            # Before the first iteration nothing was learned, and the folder stays free for the corrected command.
            if progress.iteration:
                _save(session, state, progress)
        except Exception as error:
            fault.add_note(f"what was learned since the last checkpoint could not be saved: {error}")
        raise


def _iterations(session: _Session, state: Any, progress: records.Progress, count: int) -> Any:
    """Runs iterations; returns the state, the metrics on the host, the number of iterations, and the fault or None."""
    try:
        state, metrics = session.parts.layout.run(
            state, progress.iteration, count, progress.total, stopped=lambda: session.stop.requested
        )
        return state, mesh.to_host(metrics), count, None
    except parallel.Interrupted as end:
        return end.state, mesh.to_host(end.metrics), end.iterations, end.fault


def _profile(session: _Session, learned: int) -> contextlib.AbstractContextManager[Any]:
    """Profiles the chunk after the session's first one with an update, if the settings ask for it."""
    if learned != 1 or not session.parts.settings["profile"] or not processes.is_first():
        return contextlib.nullcontext()
    session.logger.say(f"profiling into {session.folder / 'profile'}: tensorboard --logdir={session.folder} shows it")
    return jax.profiler.trace(str(session.folder / "profile"))


def _publish(session: _Session, record: Mapping[str, Any], said: object = None) -> str:
    """Logs a record and passes it to the callbacks; returns the reason of one that ends the run, "" if none does.

    A function for `processes.exchange`, since process 0 alone publishes.
    """
    del said
    session.logger.log(record)
    answers = [(callback, callback(dict(record))) for callback in session.callbacks]
    for callback, answer in answers:
        if answer:
            name = getattr(callback, "__name__", type(callback).__name__)
            return f"callback {name}: {answer}" if isinstance(answer, str) else f"callback {name}"
    return ""


def _evaluate(session: _Session, state: Any, progress: records.Progress) -> tuple[Any, str]:
    """Evaluates; if a stop cuts it short, the evaluation is due when the run goes on.

    Returns:
        The state that training goes on from, and the answer of `_publish`.
    """
    params, parts = state.learner.params, session.parts
    with _saving_at_a_fault(session, state, progress):
        returns = parts.evaluate(
            params, session.evaluation_keys, progress.iteration, stopped=lambda: session.stop.requested
        )
        if returns is None:
            return state, ""
        evaluation.check_finite(returns, parts.settings.settings)
        _keep_best(session, params, progress, float(returns.mean()))
        of_population = {}
        if parts.exploit is not None:
            # Before the evaluation counts: a run that is saved goes on with these members, or evaluates once more.
            state, of_population = _exploited(session, state, progress, returns)
        progress.evaluated = progress.iteration
    with _saving_at_a_fault(session, state, progress):
        processes.exchange(None, lambda said: session.check_lock())
        record = records.evaluation_record(parts, progress, returns) | of_population
        return state, processes.exchange(None, functools.partial(_publish, session, record))


def _keep_best(session: _Session, params: types.Params, progress: records.Progress, score: float) -> None:
    """Notes the mean return of an evaluation, and saves parameters that have the best one so far."""
    progress.last_return = score
    session.tick(progress)
    # The evaluation at step 0 is of an untrained policy, and no candidate for the best.
    if progress.iteration and (progress.best_return is None or score > progress.best_return):
        session.save("best", params, _steps_meta(session, progress))
        progress.best_return, progress.seconds_to_best = score, progress.wall_s


def _exploited(session: _Session, state: Any, progress: records.Progress, returns: np.ndarray) -> Any:
    """Returns the state that a population goes on with, and its part of the record.

    Members are kept before the first update, which has made none of them better, and where the run ends.
    """
    parts, keys = session.parts, session.evaluation_keys
    assert parts.exploit is not None
    values = population.values(state.learner.params)
    is_last = progress.iteration >= progress.total or progress.last_return >= parts.settings["stop_at_return"]
    if is_last or not progress.iteration:
        return state, population.record(values, None)
    learner, source = parts.exploit(state.learner, returns, keys, progress.iteration)
    return parts.layout.start_from(state, learner), population.record(values, source)


def _save(session: _Session, state: Any, progress: records.Progress) -> None:
    """Saves parameters and state, which the guard has already checked."""
    progress.run_until(time.perf_counter() - session.clock_s)
    meta = _steps_meta(session, progress)

    def sync_logs(said: object) -> None:
        # A checkpoint counts on all that was logged before it, and must not outlive that when power fails.
        events.sync(session.folder)
        session.logger.sync()

    processes.exchange(None, sync_logs)
    # The state is saved last: a process that is killed before that resumes from the one before, with the same results.
    session.save("latest", state.learner.params, meta)
    with processes.alike():
        saved = resume.snapshot(session.parts, state)
    session.save(meta["env_steps"], saved, resume.meta_of(session.parts, progress))

    def tidy(said: object) -> None:
        with folders.named(session.checkpoints):
            checkpoint.prune(session.checkpoints, session.parts.settings["checkpoint.keep"])
        guard.forget_failure(session.folder, progress.iteration)

    processes.exchange(None, tidy)


def _steps_meta(session: _Session, progress: records.Progress) -> dict[str, int]:
    return {"env_steps": records.env_steps(session.parts, progress.iteration)}
