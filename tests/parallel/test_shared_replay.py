"""Actors and learners apart, and replays that are shared: what they learn, at which rate, and that they resume."""

import fractions
import itertools
import pathlib
from typing import Any

import conftest
import jax
import marks
import numpy as np
import pytest

from jaxrl_dist import types
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import async_gradient, mesh, unroll
from jaxrl_dist.parallel.async_gradient import dispatcher, programs, schedules, server, shared_replay, snapshot
from jaxrl_dist.runs import checkpoint, events
from jaxrl_dist.training import event_replay

LAYOUT = {"layout": "async_gradient", "layout.worker_devices": "cpu:0"}
KINDS = {
    "bundled, global": {"layout.num_workers": 4, "layout.replay": "global", "replay.samples_per_insert": 4.0},
    "apart, global": {"layout.num_workers": 3, "layout.num_actors": 2, "layout.replay": "global"},
    "apart, local": {"layout.num_workers": 3, "layout.num_actors": 2, "layout.replay": "local"},
}
# Eight environments × 4 rows per round of unrolls, 32 windows per draw.
DQN = {"replay.min_size": 64, "replay.samples_per_insert": 2.0, "agent.epsilon_end": 1.0}
# An unroll of the slow actor makes three draws due, and there are two learners.
OVERTAKEN = {
    "layout.num_actors": 1,
    "layout.num_workers": 2,
    "layout.schedule": "virtual",
    "layout.durations": "9,1,1",
    "replay.samples_per_insert": 3.0,
    # What it plays depends on its parameters.
    "agent.epsilon_start": 0.1,
    "agent.epsilon_end": 0.1,
    "learner.learning_rate": 0.01,
}


def make(system: str = "dqn", **settings: Any) -> conftest.Small:
    return conftest.Small(system, "toy:walk", 1, {**LAYOUT, **DQN, **settings})


def equal(one: conftest.Small, other: conftest.Small, atol: float = 0.0) -> None:
    for x, y in zip(one.params, other.params, strict=True):
        np.testing.assert_allclose(x, y, atol=atol, rtol=0)


def stored(run: conftest.Small) -> snapshot.State:
    return run.layout.snapshot(run.state)


@pytest.mark.slow
def test_one_actor_and_one_learner_learn_what_sebulba_does_a_version_behind() -> None:
    """Both play an unroll while they learn from those before it; the learner starts with the first."""
    alike = {"replay.min_size": 8, "replay.samples_per_insert": 1.0, "learner.target_period": 2}
    alike |= {"agent.epsilon_start": 0.5, "agent.epsilon_end": 0.5}
    apart = make("dqn", **{**alike, "layout.num_workers": 1, "layout.num_actors": 1}).run(7)
    sebulba = {"layout": "sebulba", "layout.policy_lag": "1", "layout.actor_devices": "cpu:0"}
    together = conftest.Small("dqn", "toy:walk", 1, {**DQN, **alike, **sebulba}).run(6)
    # The gradient of the last unroll comes after it, so that of an iteration belongs to the one before.
    equal(apart, together, 1e-6)
    assert apart.metrics.updates == 6 and np.abs(apart.params[0]).max() > 0
    assert apart.metrics.layout["lag_counts"][0, 0] == 6
    for run in (apart, together):
        run.layout.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_same_bit_by_bit(kind: str, tmp_path: pathlib.Path) -> None:
    settings = {**KINDS[kind], "layout.schedule": "virtual", "layout.durations": "1,2.5,1.3", "layout.jitter": 0.1}
    settings |= {"layout.gradients_per_apply": 2, "layout.kept_versions": 2}
    whole = make(**settings).run(25).run(20)
    second = make(**settings).run(25).handed_to(make(**settings), tmp_path).run(20)
    equal(whole, second)
    for x, y in zip(*map(jax.tree.leaves, (stored(whole), stored(second))), strict=True):
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(x, y)
    assert whole.metrics.updates > 3
    for run in (whole, second):
        run.layout.close()


@pytest.mark.slow
def test_unrolls_that_came_without_a_sample_are_resumed_without_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    update = shared_replay.SharedReplay.update

    def spied(self: Any, rank: int, number: int, *sample: Any) -> None:
        given.append((rank, number))
        update(self, rank, number, *sample)

    monkeypatch.setattr(shared_replay.SharedReplay, "update", spied)
    settings = {**KINDS["bundled, global"], "replay.min_size": 128}
    whole = make("apex_dqn", **{"layout.num_actors": 0, **settings}).run(3)
    state = stored(whole)
    assert set(state.status) == {dispatcher.PLAYED} and not given
    path = checkpoint.save(tmp_path, 3, state, {})
    whole.run(25)
    expected = given.copy()
    given.clear()
    second = make("apex_dqn", **{"layout.num_actors": 0, **settings})
    second.state, _ = checkpoint.restore(path, second.layout.template(second.keys))
    second.iteration = 3
    equal(whole, second.run(25))
    assert given == expected and len(given) > 3
    for run in (whole, second):
        run.layout.close()


@pytest.mark.slow
def test_who_waits_is_answered_in_the_same_order_in_a_resumed_run(tmp_path: pathlib.Path) -> None:
    """The learner that is answered first draws the sample that is due; those after it are held back."""
    settings = {**KINDS["apart, local"], "layout.gradients_per_apply": 3, "layout.schedule": "virtual"}
    settings |= {"layout.durations": "9,9,4,2,1"}
    whole = make(**settings).run(5)
    state = stored(whole)
    order = [index for index in np.argsort(state.status) if state.status[index] >= dispatcher.WAITING]
    assert order == [3, 2]
    path = checkpoint.save(tmp_path, 5, state, {})
    second = make(**settings)
    second.state, _ = checkpoint.restore(path, second.layout.template(second.keys))
    second.iteration = 5
    equal(whole.run(12), second.run(12))
    assert whole.metrics.updates > 0
    for run in (whole, second):
        run.layout.close()


@pytest.mark.slow
def test_an_actor_that_is_held_back_is_held_back_in_a_resumed_run(tmp_path: pathlib.Path) -> None:
    """When it was answered too many draws were due; the learners drew right after that, but nobody asked it again."""
    whole = make(**OVERTAKEN).run(3)
    assert list(stored(whole).status) == [dispatcher.HELD_BACK, dispatcher.AT_WORK, dispatcher.AT_WORK]
    whole.run(5)
    second = make(**OVERTAKEN).run(3).handed_to(make(**OVERTAKEN), tmp_path).run(5)
    equal(whole, second)
    np.testing.assert_array_equal(stored(whole).schedule, stored(second).schedule)
    assert whole.metrics.updates == 15 and np.abs(whole.params[0]).max() > 0
    for run in (whole, second):
        run.layout.close()


@pytest.mark.parametrize(
    ("durations", "samples_per_insert"),
    marks.some(
        itertools.product(["1", "1,1,9", "9,9,1"], [0.5, 2.0, 8.0]),
        fast={"1-2.0", "1,1,9-0.5"},
    ),
)
def test_samples_per_insert_is_kept_whoever_is_slow(durations: str, samples_per_insert: float) -> None:
    settings = {**KINDS["apart, local"], "replay.samples_per_insert": samples_per_insert}
    run = make(**settings, **{"layout.schedule": "virtual", "layout.durations": durations}).run(60)
    *inserted, drawn = (int(count) for count in stored(run).counts)
    run.layout.close()
    assert sum(inserted) == 60
    # 64 rows of 8 environments are two unrolls of each actor; the first draw is due with the second.
    due = (sum(inserted) - 2) * 16 * samples_per_insert / 32
    # Three learners may be at work, and each actor may have been as its unroll made more draws due.
    assert due - 3 - 2 * samples_per_insert * 16 / 32 <= drawn <= due


def test_all_rows_of_a_shared_ring_are_one_environment_s_history() -> None:
    run = make(**{**KINDS["apart, global"], "layout.schedule": "virtual", "layout.durations": "1,3,1"}).run(20)
    (ring,) = stored(run).replay
    filled, rows = np.asarray(ring.filled), jax.tree.map(np.asarray, ring.rows)
    assert filled.sum() == 20 * 4 * 4 and len(set(filled[:4])) == 1 and filled[0] > 1.5 * filled[7] > 0
    for column, count in enumerate(filled):
        timestep = jax.tree.map(lambda x: x[column, :count], rows.timestep)  # noqa: B023
        ended = timestep.step_type[:-1] == types.LAST
        np.testing.assert_array_equal(timestep.step_type[1:] == types.FIRST, ended)
    run.layout.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_free_run_repeats_by_its_log(kind: str, tmp_path: pathlib.Path, train: conftest.Train) -> None:
    settings = {**LAYOUT, **DQN, **KINDS[kind], "layout.schedule": "free", "steps": 960}
    train("dqn", **settings, **{"evaluation.episodes": 2, "layout.max_gradient_age": 2})
    log = events.read(tmp_path)
    members = KINDS[kind]["layout.num_workers"] + KINDS[kind].get("layout.num_actors", 0)
    assert {event.worker for event in log} == set(range(members))
    record = event_replay.replay_schedule(tmp_path)
    assert record["match"] and record["events"] == len(log)


@pytest.mark.slow
def test_a_run_that_was_resumed_with_an_actor_held_back_repeats_by_its_log(
    tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    settings = {**LAYOUT, **DQN, **OVERTAKEN, "agent.epsilon_wait": 0.0, "evaluation.episodes": 2}
    for steps in (96, 192):
        train("dqn", steps=steps, **settings)
    log, record = events.read(tmp_path), event_replay.replay_schedule(tmp_path)
    assert record["match"] and record["events"] == len(log) > 12
    assert [event.worker for event in log].count(0) == 6


@pytest.mark.slow
def test_a_replay_that_was_not_saved_fills_anew(train: conftest.Train) -> None:
    settings = {**LAYOUT, **DQN, **KINDS["apart, local"], "checkpoint.replay": False, "evaluation.episodes": 2}
    first, second = (train("dqn", steps=steps, **settings).summary["learner_steps"] for steps in (960, 1920))
    # The rows of 64 environment steps per actor come before the next gradients, as at the start.
    assert second <= 2 * first + 3


def test_the_rate_counts_from_the_first_unroll_that_may_be_drawn_from() -> None:
    rate = shared_replay.Rate(first=3, per_unroll=fractions.Fraction(3, 2), ahead=2)
    assert not rate.is_ready(np.array([5, 2])) and rate.due(np.array([5, 2])) == 0
    assert rate.due(np.array([3, 3])) == 3 and rate.due(np.array([4, 3])) == 4


class Scripted(server.ParameterServer):
    """A server whose gradients are as a list says: what the learner's updates are, and whether they are sound."""

    def __init__(self, sound: list[bool | None], kept: int, every: int) -> None:
        none: Any = ()
        settings = async_gradient.Config(num_workers=1, kept_versions=kept, kept_every=every)
        super().__init__(settings, none, mesh.make(jax.devices()[:1], 1))
        first = learner.LearnerState(types.Params(none, none), none, none, np.zeros(1, np.int32))
        self.load(first, server.Server(none, none, none), [first] * kept, 0)
        self.sound, self.seen = sound, []

    def receive(self, work: Any, progress: Any) -> Any:
        good = self.sound.pop(0) if self.sound else True
        if good is None:
            nothing: Any = server.Verdict(0, *(False,) * 6)  # type: ignore[arg-type]
            return server.pack(nothing, work.episodes, {})
        self.seen.append(int(self.learner.updates))
        self.learner = self.learner._replace(updates=self.learner.updates + good)
        verdict = server.Verdict(0, False, False, not good, good, good, False)  # type: ignore[arg-type]
        return server.pack(verdict, work.episodes, {})


class Fake:
    number, plays, learns, may_hang = 0, True, True, False

    def work(self, held: Any, sample: Any) -> programs.Work:
        none: Any = ()
        return programs.Work(none, held.updates, unroll.no_episodes())

    def check(self) -> None:
        pass

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


def dispatched(sound: list[bool | None], kept: int, every: int = 1) -> tuple[dispatcher.Dispatcher, Scripted]:
    judge, made = Scripted(sound, kept, every), [Fake()]
    threads = dispatcher.Dispatcher(made, schedules.RoundRobin(1), judge, None, 0)  # type: ignore[arg-type]
    threads.answer(0, 0.0)
    return threads, judge


class Counted(shared_replay.SharedReplay):
    """A replay without rows: what is added and drawn is only counted."""

    def __init__(self, counts: np.ndarray, per_unroll: int, learners: int) -> None:
        self._rate, self.counts = shared_replay.Rate(2, fractions.Fraction(per_unroll), learners), counts

    def draw(self, *turn: Any) -> Any:
        self.counts[-1] += 1

    def add(self, player: int, unroll: Any) -> None:
        self.counts[player] += 1

    def update(self, *sample: Any) -> None:
        pass


class Counting:
    """A server without parameters: each gradient is an update."""

    versions, answers_at_once = (), True

    def __init__(self, updates: int) -> None:
        none: Any = ()
        self.learner = learner.LearnerState(types.Params(none, none), none, none, np.int32(updates))

    def receive(self, work: Any, progress: Any) -> np.ndarray:
        self.learner = self.learner._replace(updates=self.learner.updates + 1)
        return np.zeros(())


class Member(Fake):
    """An actor, or a learner of a shared replay; it writes down what it is given at each turn."""

    key = None

    def __init__(self, rank: int, plays: bool, number: int, turns: dict[Any, Any]) -> None:
        self.rank, self.plays, self.learns, self.number, self._turns = rank, plays, not plays, number, turns

    def work(self, held: Any, sample: Any) -> programs.Work:
        name = f"{'actor' if self.plays else 'learner'} {self.rank}, {self.number}"
        self._turns[name] = int(held.updates), round(float(held.progress), 4)
        self.number += 1
        none: Any = ()
        if self.plays:
            return programs.Work(episodes=unroll.no_episodes(), unroll=none)
        return programs.Work(none, held.updates, indices=none, priorities=none)


class Crew:
    """Actors and learners of a shared replay, and the updates and the progress that each was given at its turns."""

    def __init__(self, actors: int, learners: int, draws: int, schedule: schedules.Schedule) -> None:
        self.turns: dict[str, tuple[int, float]] = {}
        self.actors, self.learners, self.draws, self.schedule = actors, learners, draws, schedule
        members = actors + learners
        self.status, self.sent = [dispatcher.FRESH] * members, [programs.Work()] * members
        self._begin([0] * members, np.zeros(actors + 1, np.int64), 0, 0.0)

    def _begin(self, numbers: list[int], counts: np.ndarray, updates: int, progress: float) -> None:
        actors = [Member(rank, True, number, self.turns) for rank, number in enumerate(numbers[: self.actors])]
        learners = [Member(rank, False, number, self.turns) for rank, number in enumerate(numbers[self.actors :])]
        members: Any = [*actors, *learners]
        judge: Any = Counting(updates)
        self.threads = dispatcher.Dispatcher(
            members, self.schedule, judge, Counted(counts, self.draws, self.learners), 0
        )
        self.threads.go_on(self.status, self.sent, progress)

    def run(self, first: int, end: int) -> "Crew":
        for i in range(first, end):
            self.threads.iterate(i, 100, lambda: None)
        self.sent, self.status = self.threads.rest()
        return self

    def resumed(self, iteration: int) -> "Crew":
        """Puts other threads where the present ones rest."""
        before: Any = self.threads
        before.close()
        numbers = [one.number for one in before.workers]
        self._begin(numbers, before.replay.counts, before.server.learner.updates, iteration / 100)
        return self


@pytest.mark.parametrize("order", ["in turn", "slow actors"])
@pytest.mark.parametrize(("actors", "learners", "draws"), [(1, 1, 2), (1, 2, 3), (2, 2, 3)])
def test_wherever_a_run_is_cut_its_members_go_on_as_if_it_were_not(
    actors: int, learners: int, draws: int, order: str
) -> None:
    def crew() -> Crew:
        slow = schedules.VirtualClock([9.0] * actors + [1.0] * learners, 0.0, 0)
        schedule = slow if order == "slow actors" else schedules.RoundRobin(actors + learners)
        return Crew(actors, learners, draws, schedule)

    whole, held_back = crew().run(0, 12), 0
    for cut in range(1, 10):
        part = crew().run(0, cut)
        held_back += dispatcher.HELD_BACK in part.status[:actors]
        assert part.resumed(cut).run(cut, 12).turns == whole.turns, cut
        part.threads.close()
    assert held_back > 0 and whole.threads.server.learner.updates > 10
    whole.threads.close()


def test_a_run_that_did_not_save_who_is_held_back_goes_on() -> None:
    """In older checkpoints its status is 0, as that of a member that may start."""
    crew = Crew(1, 1, 2, schedules.RoundRobin(2)).run(0, 2)
    assert crew.status == [dispatcher.HELD_BACK, dispatcher.AT_WORK]
    crew.status = [0, 1]
    turns = crew.resumed(2).run(2, 4).turns
    assert (turns["actor 0, 2"], turns["actor 0, 3"]) == ((0, 0.02), (2, 0.03))
    crew.threads.close()


def test_members_are_held_back_only_as_long_as_another_is_at_work() -> None:
    """After a fault nobody may be."""
    crew = Crew(1, 1, 2, schedules.RoundRobin(2)).run(0, 1)
    crew.status = [dispatcher.HELD_BACK, dispatcher.HELD_BACK]
    played = {"actor 0, 0": (0, 0.0), "actor 0, 1": (0, 0.01), "actor 0, 2": (0, 0.01)}
    assert crew.resumed(1).run(1, 2).turns == {**played, "learner 0, 0": (0, 0.02)}
    crew.threads.close()


def test_gradients_that_go_on_being_broken_take_the_server_back() -> None:
    threads, judge = dispatched([True] * 7 + [False] * 10 + [True] * 3, kept=3)
    for i in range(20):
        threads.iterate(i, 100, lambda: None)
    # Versions 5, 6 and 7 were kept: 5 is the oldest.
    assert judge.seen == [*range(7), *[7] * 10, 5, 6, 7]
    assert threads.take()[1] == 1 and [int(one.updates) for one in judge.versions] == [6, 7, 8]
    assert threads.events == 20


@pytest.mark.parametrize("kept", [0, 2])
def test_what_comes_of_no_rows_says_nothing_of_broken_gradients(kept: int) -> None:
    """As between the ends of episodes, where workers exchange by these."""
    threads, _ = dispatched([False, None, None] * 12, kept=kept)
    with pytest.raises(FloatingPointError, match=r"\b10 gradients"):
        for i in range(36):
            threads.iterate(i, 100, lambda: None)
            fault = None if kept else threads.take()[2]
            if fault is not None:
                raise fault


def test_a_version_that_stays_broken_ends_the_run() -> None:
    threads, judge = dispatched([True] * 4 + [False] * 20, kept=2, every=2)
    with pytest.raises(FloatingPointError, match=r"\b10 gradients"):
        for i in range(24):
            threads.iterate(i, 100, lambda: None)
    # Every second version is kept, 2 and 4.
    assert judge.seen == [*range(4), *[4] * 10, *[2] * 10]


def test_a_kept_version_comes_back_bit_for_bit() -> None:
    run = make("dqn", **{"replay.samples_per_insert": 4.0, "layout.num_workers": 4, "layout.kept_versions": 3}).run(12)
    early = [np.array(leaf) for leaf in run.params]
    updates = int(run.state.learner.updates[0])
    run.run(2)
    before = stored(run)
    run.layout.close()
    back = run.layout.events.roll_back(before, updates)
    for x, y in zip(early, jax.tree.leaves(back.learner.params), strict=True):
        np.testing.assert_array_equal(x, y)
    with conftest.refused("version 99 ", f"{updates}, {updates + 1}, "):
        run.layout.events.roll_back(before, 99)
    run.state = back
    run.run(8)
    # What all four were at work on is of parameters that may be no more.
    assert run.metrics.layout["stale"][0] == 4 and run.metrics.updates == 4
    run.layout.close()


REFUSED = [
    ("ppo", {"layout.num_actors": 2}, ["--layout.num_actors=2"]),
    ("ppo", {"layout.replay": "global"}, ["--layout.replay=global", "local"]),
    ("dqn", {"layout.num_actors": 3}, ["--layout.num_actors=3", "--env.num_envs=8", "nearest valid: 2"]),
    ("dqn", {"layout.num_actors": 2, "layout.exchange": "episode"}, ["--layout.exchange=episode", "unroll"]),
    ("dqn", {"layout.replay": "global"}, ["--replay.samples_per_insert by 2"]),
]


@pytest.mark.parametrize(("system", "settings", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_one_line(system: str, settings: dict[str, Any], words: list[str]) -> None:
    once = {"learner.epochs": 1, "learner.minibatches": 1} if system == "ppo" else DQN
    with conftest.refused(*words):
        conftest.Small(system, "toy:walk", 1, {**LAYOUT, **once, **settings})
