"""Judges defaults on tasks that nobody tuned for: `python benchmarks/unseen.py [--rows=ppo/] [--minutes=60]`.

Values of families come from papers, other projects, and runs on CartPole, Catch, Pendulum, DeepSea, MemoryChain,
MinAtar Breakout and Freeway, LunarLander, HalfCheetah, and NAVIX's empty room and its room with a door. Here each
system plays other tasks by the values that it has there without a flag, five seeds in one program, or one after the
other where the layout trains one at a time; beside it, the same agents by the defaults of Stable-Baselines3, and by
PureJaxRL's where they are not ours. Rows of `unseen.jsonl` are not run again; the end writes the tables of all rows
into docs/results.md.
"""

import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jsonl  # noqa: E402
import zoo  # noqa: E402

from jaxrl_dist.runs import display  # noqa: E402

TABLE = HERE / "unseen.jsonl"
RESULTS = HERE.parent / "docs" / "results.md"
MARKERS = "<!-- unseen: written by `python benchmarks/unseen.py` -->\n", "<!-- end of unseen -->\n"
SEEDS = 5


class Task(NamedTuple):
    """A task: its environment, the steps of every system, the mean return of random play, and its layout.

    `random_play.py` measures random play.
    """

    env: str
    steps: int
    random: float
    layout: str = "anakin"


DISCRETE = {
    "acrobot": Task("gymnax:Acrobot-v1", 200_000, -498.8),
    "mountain_car": Task("gymnax:MountainCar-v0", 200_000, -200.0),
    "discounting_chain": Task("gymnax:DiscountingChain-bsuite", 100_000, 1.02),
    "four_rooms": Task("gymnax:FourRooms-misc", 200_000, 0.457),
    "frozen_lake": Task("gymnax:FrozenLake-misc", 200_000, 0.014),
    "crossing": Task("navix:Navix-SimpleCrossingS9N1-v0", 300_000, 0.006),
    "asterix": Task("gymnax:Asterix-MinAtar", 300_000, 0.49),
    "space_invaders": Task("gymnax:SpaceInvaders-MinAtar", 300_000, 4.11),
}
REAL = {
    "mountain_car_continuous": Task("gymnax:MountainCarContinuous-v0", 30_000, -33.2),
    "reacher": Task("gymnax:Reacher-misc", 30_000, 15.7),
    "point_robot": Task("gymnax:PointRobot-misc", 30_000, 0.197),
    "short_hopper": Task("envpool:Hopper-v4", 100_000, 17.1, "sebulba"),
}
BODIES = {
    "hopper": Task("envpool:Hopper-v4", 300_000, 17.1, "sebulba"),
    "swimmer": Task("envpool:Swimmer-v4", 300_000, -1.2, "sebulba"),
    "bipedal_walker": Task("envpool:BipedalWalker-v3", 300_000, -100.1, "sebulba"),
}
TABLES = (DISCRETE, REAL, BODIES)
_SB3_ON_POLICY = (
    # Theirs weighs the whole squared error by .5.
    *("--env.num_envs=1", "--agent.discount=0.99", "--agent.entropy_cost=0", "--agent.value_cost=1"),
    *("--learner.max_grad_norm=0.5", "--learner.anneal=false", "--agent.normalise_observations=false"),
    *("--agent.scale_rewards=false", "--network.torso=mlp", "--network.hidden_sizes=64,64"),
    *("--network.activation=tanh", "--network.shared=false", "--network.orthogonal=true", "--network.layer_norm=false"),
)
_SB3_OFF_POLICY = (
    *("--env.num_envs=1", "--layout.unroll_length=1", "--replay.capacity=1_000_000", "--replay.batch_size=256"),
    *("--replay.min_size=100", "--replay.samples_per_insert=256", "--agent.discount=0.99"),
    *("--learner.target_rate=0.005", "--network.activation=relu"),
)
# Steps that these play at random at first.
_SB3_RANDOM, _SB3_AT_RANDOM = 100, ("sac_sb3", "td3_sb3")
# Arm -> the system, and flags in the place of its defaults.
ARMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **{
        name: (name, ())
        for name in ("ppo", "a2c", "impala", "pqn", "dqn", "rainbow", "r2d2", "sac", "td3", "d4pg", "mpo")
    },
    "ppo_sb3": (  # Stable-Baselines3 ppo.py
        "ppo",
        (
            *_SB3_ON_POLICY,
            *("--layout.unroll_length=2048", "--learner.learning_rate=3e-4", "--learner.minibatches=32"),
            *("--learner.epochs=10", "--agent.gae_lambda=0.95", "--agent.clip_epsilon=0.2", "--agent.clip_value=0"),
        ),
    ),
    "a2c_sb3": (  # Stable-Baselines3 a2c.py
        "a2c",
        (
            *_SB3_ON_POLICY,
            *("--layout.unroll_length=5", "--learner.learning_rate=7e-4", "--agent.gae_lambda=1"),
            # PyTorch's has ε outside of the root.
            "--learner.optimizer=optax:rmsprop(decay=0.99, eps=1e-5, eps_in_sqrt=False)",
        ),
    ),
    "dqn_sb3": (  # Stable-Baselines3 dqn.py
        "dqn",
        (
            *("--env.num_envs=1", "--layout.unroll_length=4", "--replay.capacity=1_000_000", "--replay.min_size=100"),
            *("--replay.batch_size=32", "--replay.samples_per_insert=8", "--learner.target_period=2500"),
            *("--learner.learning_rate=1e-4", "--learner.max_grad_norm=10", "--learner.optimizer=adam"),
            *("--agent.epsilon_fraction=0.1", "--agent.epsilon_end=0.05", "--agent.error_clip=1"),
            *("--agent.discount=0.99", "--network.torso=mlp", "--network.hidden_sizes=64,64"),
            *("--network.activation=relu", "--learner.epsilon=1e-8"),
        ),
    ),
    "sac_sb3": (  # Stable-Baselines3 sac.py
        "sac",
        (*_SB3_OFF_POLICY, "--learner.learning_rate=3e-4", "--network.hidden_sizes=256,256"),
    ),
    "td3_sb3": (  # Stable-Baselines3 td3.py, which explores by its first random steps alone
        "td3",
        (
            *_SB3_OFF_POLICY,
            *("--learner.learning_rate=1e-3", "--agent.policy_learning_rate=1e-3", "--agent.exploration_noise=0"),
            "--network.hidden_sizes=400,300",
        ),
    ),
    "ppo_purejaxrl": (  # PureJaxRL ppo.py
        "ppo",
        (
            *("--env.num_envs=4", "--layout.unroll_length=128", "--learner.learning_rate=2.5e-4"),
            *("--learner.anneal=true", "--learner.minibatches=4", "--learner.epochs=4", "--network.torso=mlp"),
            *("--network.hidden_sizes=64,64", "--network.activation=tanh", "--agent.entropy_cost=0.01"),
            *("--agent.scale_rewards=false", "--agent.normalise_observations=false", "--agent.clip_value=0.2"),
        ),
    ),
    "dqn_purejaxrl": (  # PureJaxRL dqn.py
        "dqn",
        (
            *("--env.num_envs=10", "--layout.unroll_length=1", "--replay.capacity=10_000", "--replay.batch_size=128"),
            *("--replay.samples_per_insert=12.8", "--replay.min_size=10_000", "--learner.learning_rate=2.5e-4"),
            *("--learner.target_period=50", "--learner.epsilon=1e-8", "--agent.epsilon_end=0.05"),
            *("--agent.epsilon_fraction=0.5", "--network.torso=mlp", "--network.hidden_sizes=120,84"),
            *("--network.activation=relu", "--agent.error_clip=0"),
        ),
    ),
}
# Arms by the kind of actions.
_DISCRETE = (
    *("ppo", "a2c", "impala", "pqn", "dqn", "rainbow", "r2d2", "ppo_sb3", "a2c_sb3", "dqn_sb3", "ppo_purejaxrl"),
    "dqn_purejaxrl",
)
# Those that update once a step would take 8 to 67 minutes for a seed of 300k steps: they play one body, for 100k.
_BODIES = ("ppo", "a2c", "ppo_sb3", "a2c_sb3")
_REAL = (*_BODIES, "sac", "td3", "d4pg", "mpo", "sac_sb3", "td3_sb3")


def rows() -> dict[str, tuple[Task, tuple[str, ...]]]:
    """Returns ARM/TASK -> the task and the flags of train.py, in the order of the tables."""
    found = {}
    for tasks in TABLES:
        for name, task in tasks.items():
            for arm in arms(task):
                system, flags = ARMS[arm]
                own = (f"--system={system}", f"--env={task.env}", f"--steps={task.steps}", f"--layout={task.layout}")
                # Theirs acts by the policy that it has just updated.
                own += ("--layout.policy_lag=0",) if task.layout == "sebulba" and arm.endswith("_sb3") else ()
                own += (f"--agent.random_share={_SB3_RANDOM / task.steps:.2g}",) if arm in _SB3_AT_RANDOM else ()
                found[f"{arm}/{name}"] = task, (*own, *flags)
    return found


def arms(task: Task) -> tuple[str, ...]:
    """Returns the arms that play a task."""
    if task in DISCRETE.values():
        return _DISCRETE
    return _BODIES if task in BODIES.values() else _REAL


def train(row: tuple[Task, tuple[str, ...]], folder: pathlib.Path) -> dict[str, Any]:
    """Trains all seeds of a row in a folder, and returns their last evaluations."""
    task, flags = row
    return zoo.measured(flags, folder, together=task.layout == "anakin")[0]


def table(measured: Mapping[str, Mapping[str, Any]], tasks: Mapping[str, Task]) -> str:
    """Returns the lines of a table with a column for each task that was measured, "" if none was.

    A dash is for a row that is not measured yet; arms without a row on a task have nothing there.
    """
    names = [name for name in tasks if any(row.endswith(f"/{name}") for row in measured)]
    if not names:
        return ""
    heads = [f"`{tasks[name].env.partition(':')[2]}`, {display.count(tasks[name].steps)}" for name in names]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(names) + 1) + "|"]
    lines.append("| random play | " + " | ".join(f"{tasks[name].random:g}" for name in names) + " |")
    planned = rows()
    for arm in ARMS:
        of_arm = [f"{arm}/{name}" for name in names]
        cells = [
            zoo.scored(measured[row]).replace(" ", "<br>", 1) if row in measured else "–" * (row in planned)
            for row in of_arm
        ]
        if any(row in measured for row in of_arm):
            lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return jsonl.with_minus("".join(f"{line}\n" for line in lines))


def main() -> None:
    """Runs what is missing, and writes the tables."""
    measured = jsonl.fill(TABLE, rows(), jsonl.parser(__doc__).parse_args(), train)
    tables = filter(None, (table(measured, tasks) for tasks in TABLES))
    jsonl.show(RESULTS, MARKERS, "\n".join(tables) + jsonl.missing(rows(), measured))


if __name__ == "__main__":
    main()
