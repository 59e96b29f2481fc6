"""The runs that two commits are compared by, and the words that changed between them.

Flags stand here in the words of the newer commit. Where one was renamed, its old word stands in `CHANGED` (all runs) or
beside the run, and the older commit is given its own; so do paths of leaves in checkpoints, and names of metrics.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Words(NamedTuple):
    """Words that changed since the older commit.

    Attributes:
        flags: old -> new, names without dashes; "layout.policy_lag=free" renames a value, "layout." all of an owner's.
        leaves: old -> new, whole parts of a path, wherever they stand in it, as in "statistics/mean"; one that begins
            with "^" is looked for at the front only. An empty new word takes the parts away.
        gone: whole paths of leaves, in the old words, that the newer commit does not save.
        metrics: old -> new, names in `metrics.jsonl` and `summary.json`, and parts of names in the progress that is
            saved with a checkpoint.
        added: names of flags that the older commit does not know, and is not given.
        dropped: flags as the older commit alone is given them, such as "--learner.shuffle=true".
    """

    flags: Mapping[str, str] = {}
    leaves: Mapping[str, str] = {}
    gone: Sequence[str] = ()
    metrics: Mapping[str, str] = {}
    added: Sequence[str] = ()
    dropped: Sequence[str] = ()

    def over(self, common: "Words") -> "Words":
        """Joins these words with those of all runs; these come first."""
        return Words(
            flags={**self.flags, **common.flags, **self.flags},
            leaves={**self.leaves, **common.leaves, **self.leaves},
            gone=(*self.gone, *common.gone),
            metrics={**self.metrics, **common.metrics, **self.metrics},
            added=(*self.added, *common.added),
            dropped=(*common.dropped, *self.dropped),
        )


class Run(NamedTuple):
    """One run.

    Attributes:
        name: as in `RUNS=name,name`.
        flags: of the command.
        then: flags that the same command has besides when it goes on in the same folder; none: it runs once.
        follows_the_clock: metrics that do so in this run, beside `compare.CLOCK`.
        words: that changed in this run only.
    """

    name: str
    flags: str
    then: str = ""
    follows_the_clock: Sequence[str] = ()
    words: Words = Words()


CHANGED = Words()

# Every iteration is a chunk and a record of its own: how many iterations the program sums up before the host does would
# follow the clock, and with it the last bits of the sums.
_ALL = (
    "--log.interval_steps=1 --log.tensorboard=false --log.progress=false --evaluation.episodes=4 "
    "--checkpoint.interval_s=1e6 "
)
_WALK = _ALL + "--env=toy:walk --env.num_envs=8 --network.hidden_sizes=16 "
_PENDULUM = _ALL + "--env=gymnax:Pendulum-v1 --env.num_envs=4 --network.hidden_sizes=16 "
_UNROLLS = "--layout.unroll_length=16 --steps=1280 --evaluation.interval_steps=640 "
_EPOCHS = _UNROLLS + "--learner.epochs=2 --learner.minibatches=2 "
_RING = "--replay.capacity=512 --replay.min_size=64 --replay.batch_size=16 --replay.samples_per_insert=2 "
_REPLAY = _RING + "--layout.unroll_length=4 --learner.target_period=2 --steps=640 --evaluation.interval_steps=320 "
_SEQUENCES = (
    "--replay.capacity=520 --replay.min_size=80 --replay.batch_size=8 --replay.samples_per_insert=2 "
    "--agent.burn_in=3 --agent.taught=6 --agent.n_step=2 --network.core_size=8 --network.head_size=8 "
    "--layout.unroll_length=5 --learner.target_period=2 --steps=800 --evaluation.interval_steps=400 "
)
_REAL = (
    "--replay.capacity=512 --replay.min_size=64 --replay.batch_size=16 --replay.samples_per_insert=8 "
    "--layout.unroll_length=4 --steps=320 --evaluation.interval_steps=160 "
)
_SEBULBA = "--layout=sebulba --layout.policy_lag=1 "
_NO_LAG = "--layout=sebulba --layout.policy_lag=0 "
# In turn: each worker sends its gradient when all others have sent theirs. On one device, they compile once.
_IN_TURN = "--layout=async_gradient --layout.schedule=round_robin --layout.num_workers=2 --layout.worker_devices=cpu:0 "
# Such workers take one gradient per unroll, so the ratio is a batch over a worker's unroll.
_ONE_GRADIENT = "--replay.samples_per_insert=1 "
_ONE_GRADIENT_REAL = "--replay.samples_per_insert=2 "
_ONE_GRADIENT_SEQUENCES = "--replay.samples_per_insert=2.4 "

RUNS = (
    Run("ppo-anakin", "--system=ppo --layout=anakin " + _WALK + _EPOCHS),
    Run("ppo-sebulba", "--system=ppo " + _SEBULBA + _WALK + _EPOCHS),
    Run("ppo-async", "--system=ppo " + _IN_TURN + _WALK + _UNROLLS),
    Run("ppo-real", "--system=ppo --layout=anakin " + _PENDULUM + _EPOCHS),
    Run(
        "ppo-tanh",
        "--system=gpu_sim --layout=anakin --agent.distribution=tanh_gaussian --env=gymnax:MountainCarContinuous-v0 "
        "--env.num_envs=4 --network.hidden_sizes=16 " + _ALL + _EPOCHS,
    ),
    Run("dppo-sebulba", "--system=dppo " + _NO_LAG + "--layout.num_actors=2 " + _WALK + _EPOCHS),
    Run("a2c-anakin", "--system=a2c --layout=anakin " + _WALK + _UNROLLS),
    Run("a2c-sebulba", "--system=a2c " + _NO_LAG + _WALK + _UNROLLS),
    Run("a2c-async", "--system=a3c " + _IN_TURN + "--layout.worker_devices=cpu:0,cpu:1 " + _WALK + _UNROLLS),
    Run("impala-anakin", "--system=impala --layout=anakin " + _WALK + _UNROLLS),
    Run("impala-sebulba", "--system=impala --layout.num_actors=2 " + _SEBULBA + _WALK + _UNROLLS),
    Run("impala-async", "--system=impala " + _IN_TURN + _WALK + _UNROLLS),
    Run("pqn-anakin", "--system=pqn --layout=anakin " + _WALK + _EPOCHS),
    Run("pqn-sebulba", "--system=pqn " + _NO_LAG + _WALK + _EPOCHS),
    Run("pqn-async", "--system=pqn " + _IN_TURN + _WALK + _UNROLLS),
    Run("dqn-anakin", "--system=dqn --layout=anakin " + _WALK + _REPLAY),
    Run("dqn-sebulba", "--system=dqn " + _SEBULBA + _WALK + _REPLAY),
    Run("dqn-async", "--system=gorila " + _IN_TURN + _WALK + _REPLAY + _ONE_GRADIENT),
    Run("r2d2-anakin", "--system=r2d2 --layout=anakin " + _WALK + _SEQUENCES),
    Run("r2d2-sebulba", "--system=r2d2 " + _SEBULBA + _WALK + _SEQUENCES),
    Run("r2d2-async", "--system=r2d2 " + _IN_TURN + _WALK + _SEQUENCES + _ONE_GRADIENT_SEQUENCES),
    Run("dpg-anakin", "--system=td3 --layout=anakin " + _PENDULUM + _REAL),
    Run("dpg-sebulba", "--system=d4pg --agent.num_atoms=11 " + _SEBULBA + _PENDULUM + _REAL),
    Run("dpg-async", "--system=ddpg " + _IN_TURN + _PENDULUM + _REAL + _ONE_GRADIENT_REAL),
    Run("sac-anakin", "--system=sac --layout=anakin " + _PENDULUM + _REAL),
    Run("sac-sebulba", "--system=sac " + _SEBULBA + _PENDULUM + _REAL),
    Run("sac-async", "--system=sac " + _IN_TURN + _PENDULUM + _REAL + _ONE_GRADIENT_REAL),
    Run("lstm", "--system=ppo --layout=anakin --network.core=lstm --network.core_size=8 " + _WALK + _EPOCHS),
    Run(
        "frame-stack",
        "--system=pqn --layout=anakin --network.core=frame_stack --network.num_frames=2 " + _WALK + _EPOCHS,
    ),
    Run("two-devices", "--system=ppo --layout=anakin --layout.num_devices=2 " + _WALK + _EPOCHS),
    Run("several-seeds", "--system=dqn --layout=anakin --num_seeds=3 " + _WALK + _REPLAY),
    Run(
        "sweep",
        "--system=ppo --layout=anakin --num_seeds=2 "
        "--sweep=learner.learning_rate=1e-3,1e-4;agent.entropy_cost=0.0,0.01 " + _WALK + _EPOCHS,
    ),
    Run("host-replay", "--system=dqn --replay.storage=host " + _SEBULBA + _WALK + _REPLAY),
    Run(
        "rainbow",
        "--system=rainbow --layout=anakin --agent.num_atoms=11 --agent.value_low=-10 --agent.value_high=0 "
        "--network.head_size=8 " + _WALK + _REPLAY,
    ),
    Run("mixed-replay", "--system=impala_replay --replay.capacity=512 " + _SEBULBA + _WALK + _UNROLLS),
    Run("apart", "--system=apex_dqn --layout.num_actors=2 --network.head_size=8 " + _IN_TURN + _WALK + _REPLAY),
    Run("resumed", "--system=ppo --layout=anakin " + _WALK + _EPOCHS, then="--steps=1920"),
    Run("resumed-sebulba", "--system=r2d2 " + _SEBULBA + _WALK + _SEQUENCES, then="--steps=1200"),
    Run("resumed-async", "--system=gorila " + _IN_TURN + _WALK + _REPLAY + _ONE_GRADIENT, then="--steps=960"),
    Run(
        "pixels",
        "--system=dqn --layout=anakin --env=gymnax:Breakout-MinAtar --env.num_envs=4 --network.hidden_sizes=16 "
        + _ALL
        + _REPLAY,
    ),
    Run(
        "pool",
        "--system=ppo --env=envpool:CartPole-v1 --env.num_envs=8 --network.hidden_sizes=16 "
        + _SEBULBA
        + _ALL
        + _EPOCHS,
    ),
    Run(
        "central",
        # All environments act together, and no step moves a parameter: which version an unroll was played with follows
        # the clock, and so makes no difference.
        "--system=seed_impala --layout=sebulba --layout.inference=central --layout.policy_lag=free "
        "--layout.ready_envs=8 --learner.learning_rate=1e-46 " + _WALK + _UNROLLS,
        follows_the_clock=("policy_lag_p50", "policy_lag_p99", "lag_counts"),
    ),
)

QUICK = ("ppo-anakin", "ppo-sebulba", "dqn-anakin", "r2d2-anakin", "a2c-async", "sac-anakin")
