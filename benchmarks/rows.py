"""The rows of the benchmark table: what ours runs, what the reference runs, and the ratio that is wanted. Data only.

Both sides of a row do the same work: environments, rows per update, epochs, minibatches, networks, batch and buffer
sizes. Where a reference cannot be set so, its title or note says what differs.
"""

import dataclasses

_AS_THEY_ARE = "--agent.scale_rewards=false"
CARTPOLE = (
    *("--system=ppo", "--env=gymnax:CartPole-v1", "--learner.epochs=4", "--network.activation=tanh", _AS_THEY_ARE),
)
MLP = ("--network.torso=mlp", "--network.hidden_sizes=64,64", "--network.shared=false")
SMALL = (*CARTPOLE, *MLP, "--env.num_envs=4", "--layout.unroll_length=128", "--learner.minibatches=4")
LARGE = (*CARTPOLE, *MLP, "--env.num_envs=2048", "--layout.unroll_length=32", "--learner.minibatches=32")
_BREAKOUT = (
    "--system=ppo",
    "--env=gymnax:Breakout-MinAtar",
    "--env.num_envs=64",
    "--layout.unroll_length=128",
    "--learner.epochs=4",
    "--learner.minibatches=8",
    "--network.shared=false",
)
_DQN = (
    "--system=dqn",
    "--env=gymnax:CartPole-v1",
    "--env.num_envs=10",
    "--layout.unroll_length=1",
    "--replay.capacity=10000",
    "--replay.min_size=1000",
    "--replay.batch_size=128",
    "--replay.samples_per_insert=12.8",
    "--learner.target_period=50",
    "--network.torso=mlp",
    "--network.activation=relu",
)
ANT = (
    "--system=ppo",
    "--env=brax:ant",
    "--env.params.backend=spring",
    "--env.num_envs=256",
    "--layout.unroll_length=40",
    "--learner.epochs=4",
    "--learner.minibatches=32",
    "--network.torso=mlp",
    "--network.hidden_sizes=256,256",
    "--network.activation=swish",
    "--network.shared=false",
)

_CHEETAH = (
    *("--system=ppo", "--env=envpool:HalfCheetah-v4", "--env.num_envs=64", "--layout.unroll_length=64"),
    *("--learner.epochs=10", "--learner.minibatches=32", "--network.torso=mlp", "--network.hidden_sizes=64,64"),
)
# Actors may be an unroll or two ahead when a chunk begins, played while the other side computed, so a chunk is many.
_AHEAD = (f"--chunk_steps={24 * 64 * 64}",)
_ONE_PASS = (
    *("--env=gymnax:CartPole-v1", "--layout.unroll_length=16", "--learner.epochs=1", "--learner.minibatches=1"),
    _AS_THEY_ARE,
)
_BREAKOUT_16 = ("--env=gymnax:Breakout-MinAtar", "--layout.unroll_length=16")

PPO_SMALL = ("--num_envs=4", "--unroll=128", "--epochs=4", "--minibatches=4")
_PPO_LARGE = ("--num_envs=2048", "--unroll=32", "--epochs=4", "--minibatches=32")
_PPO_BREAKOUT = ("--env=Breakout-MinAtar", "--num_envs=64", "--unroll=128", "--epochs=4", "--minibatches=8")
_DQN_SAME = ("--algo=dqn", "--num_envs=10", "--buffer_size=10000", "--batch_size=128", "--learning_starts=1000")

_FROM_SCRATCH = "PureJaxRL's own program from its clone; each of its chunks is a training from the start"


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: for `--rows`.
        title: the work, for the table.
        ours: flags of `ours.py`.
        reference: `baseline`, `rejax`, `purejaxrl`, `brax`, `sbx`, `skrl`, `raw` or `ours`.
        reference_flags: flags of that worker.
        target: wanted ratio of ours over the reference in steps/s; 0 where the row only informs.
        note: what a reader must know to judge the row.
        compile_limit_s: wanted limit of our compile time; 0 is none.
        on_request: measured only where `--rows` begins its name; for accelerators.
    """

    name: str
    title: str
    ours: tuple[str, ...]
    reference: str
    reference_flags: tuple[str, ...]
    target: float = 0.0
    note: str = ""
    compile_limit_s: float = 0.0
    on_request: bool = False


def _chunk(steps: int) -> tuple[str, ...]:
    return (f"--chunk_steps={steps}",)


def _overhead(
    name: str, work: str, systems: tuple[str, str], flags: tuple[str, ...], num_envs: int, chunk_steps: int
) -> Row:
    """Returns a row of one asynchronous worker beside anakin; the systems are the agent's in either layout."""
    worker, whole = (
        (f"--system={system}", *flags, f"--env.num_envs={num_envs}", *_chunk(chunk_steps)) for system in systems
    )
    return Row(
        name,
        f"one worker and its server (async_gradient), {work}",
        (*worker, "--layout=async_gradient", "--layout.num_workers=1"),
        "ours",
        (*whole, "--layout=anakin"),
        target=0.8,
        note="the reference is the same under anakin",
    )


def _called(name: str, work: str, flags: tuple[str, ...]) -> Row:
    """Returns a row of anakin whose program is called for every iteration of 256 rows, beside one call for all."""
    whole = (*flags, "--env.num_envs=16", *_chunk(16384), "--layout=anakin")
    return Row(
        name,
        f"anakin called for each iteration, {work}",
        (*whole, "--calls=64"),
        "ours",
        whole,
        note="what a layout could reach whose events are one program each",
        on_request=True,
    )


ROWS = (
    Row(
        "cartpole_small_rejax",
        "PPO CartPole 4×128, 4 epochs × 4",
        (*SMALL, *_chunk(65536)),
        "rejax",
        ("--algo=ppo", *PPO_SMALL, *_chunk(65536)),
        target=1.5,
        note="rejax clips each gradient element, updates actor and critic apart, does not anneal",
    ),
    Row(
        "cartpole_small_baseline",
        "PPO CartPole 4×128, 4 epochs × 4",
        (*SMALL, *_chunk(65536)),
        "baseline",
        ("--algo=ppo", *PPO_SMALL, *_chunk(65536)),
        target=1.3,
    ),
    Row(
        "cartpole_small_purejaxrl",
        "PPO CartPole 4×128, 4 epochs × 4",
        (*SMALL, *_chunk(131072)),
        "purejaxrl",
        ("--algo=ppo", *PPO_SMALL, *_chunk(131072)),
        target=1.3,
        note=_FROM_SCRATCH,
    ),
    Row(
        "cartpole_large_rejax",
        "PPO CartPole 2048×32, 4 epochs × 32",
        (*LARGE, *_chunk(131072)),
        "rejax",
        ("--algo=ppo", *_PPO_LARGE, *_chunk(131072)),
        target=1.3,
    ),
    Row(
        "cartpole_large_baseline",
        "PPO CartPole 2048×32, 4 epochs × 32",
        (*LARGE, *_chunk(131072)),
        "baseline",
        ("--algo=ppo", *_PPO_LARGE, *_chunk(131072)),
        target=1.3,
    ),
    Row(
        "cartpole_large_purejaxrl",
        "PPO CartPole 2048×32, 4 epochs × 32",
        (*LARGE, *_chunk(262144)),
        "purejaxrl",
        ("--algo=ppo", *_PPO_LARGE, *_chunk(262144)),
        target=1.3,
        note=_FROM_SCRATCH,
    ),
    Row(
        "minatar_baseline",
        "PPO MinAtar Breakout 64×128, 4 epochs × 8, networks 64×64 on flat frames",
        (*_BREAKOUT, *MLP, "--network.activation=relu", *_chunk(65536)),
        "baseline",
        ("--algo=ppo", *_PPO_BREAKOUT, "--activation=relu", *_chunk(65536)),
        target=1.3,
        note="networks of PureJaxRL's MinAtar example",
    ),
    Row(
        "minatar_purejaxrl",
        "PPO MinAtar Breakout 64×128, 4 epochs × 8, networks 64×64 on flat frames",
        (*_BREAKOUT, *MLP, "--network.activation=relu", *_chunk(131072)),
        "purejaxrl",
        ("--algo=ppo", *_PPO_BREAKOUT, "--activation=relu", *_chunk(131072)),
        target=1.3,
        note=_FROM_SCRATCH,
    ),
    Row(
        "minatar_cnn_baseline",
        "PPO MinAtar Breakout 64×128, 4 epochs × 8, convolution + 128",
        (*_BREAKOUT, "--network.torso=minatar_cnn", *_chunk(16384)),
        "baseline",
        ("--algo=ppo", *_PPO_BREAKOUT, "--torso=minatar_cnn", *_chunk(16384)),
        note="the baseline's convolution is a product with gathered patches, 7× faster here than XLA's gradient",
    ),
    Row(
        "dqn_rejax",
        "DQN CartPole, 10 environments, batch 128, buffer 10k, networks 64×64",
        (*_DQN, "--network.hidden_sizes=64,64", *_chunk(65530)),
        "rejax",
        (*_DQN_SAME, "--epochs=1", "--target_every=500", "--activation=relu", *_chunk(20000)),
        target=10.0,
        note="the same work; rejax is far slower at its own buffer sizes, see the next row",
    ),
    Row(
        "dqn_rejax_buffer",
        "the same, rejax with its default buffer of 131k",
        (*_DQN, "--network.hidden_sizes=64,64", "--replay.capacity=131070", *_chunk(65530)),
        "rejax",
        (
            *("--algo=dqn", "--num_envs=10", "--buffer_size=131072", "--batch_size=128", "--learning_starts=1000"),
            *("--epochs=1", "--target_every=500", "--activation=relu"),
            *_chunk(8000),
        ),
        target=10.0,
    ),
    Row(
        "dqn_baseline",
        "DQN CartPole, 10 environments, batch 128, buffer 10k, networks 120×84",
        (*_DQN, "--network.hidden_sizes=120,84", *_chunk(32760)),
        "baseline",
        (*_DQN_SAME, "--hidden=120,84", "--target_every=500", *_chunk(32760)),
    ),
    Row(
        "dqn_purejaxrl",
        "DQN CartPole, 10 environments, batch 128, buffer 10k, networks 120×84",
        (*_DQN, "--network.hidden_sizes=120,84", *_chunk(131070)),
        "purejaxrl",
        (*_DQN_SAME, "--target_every=500", *_chunk(131070)),
        target=1.3,
        note=f"{_FROM_SCRATCH}, whose first 1000 of 131,070 steps do not learn",
    ),
    Row(
        "ten_seeds",
        "PPO CartPole 4×128, ten seeds in one program against one seed",
        (*SMALL, "--num_seeds=10", *_chunk(16384)),
        "ours",
        (*SMALL, *_chunk(65536)),
        target=10 / 6,
        note="steps/s over all seeds; a ratio of 10/6 is six times the time of one seed, 1 is ten runs in turn",
    ),
    Row(
        "ten_seeds_baseline",
        "PPO CartPole 4×128, ten seeds in one program",
        (*SMALL, "--num_seeds=10", *_chunk(16384)),
        "baseline",
        ("--algo=ppo", *PPO_SMALL, "--num_seeds=10", *_chunk(16384)),
        note="the baseline's seeds are one vmap",
    ),
    Row(
        "ant_brax",
        "PPO Brax ant (spring), 256 environments, 10240 rows per update, 4 epochs × 32, networks 256×256",
        (*ANT, *_chunk(10240)),
        "brax",
        (
            *("--env=ant", "--backend=spring", "--num_envs=256", "--unroll=5", "--batch_size=64"),
            *("--minibatches=32", "--epochs=4", "--policy_layers=256,256", "--value_layers=256,256"),
            *_chunk(10240),
        ),
        target=1.3,
        note="Brax's own trainer, evaluation off; its advantages reach 5 rows, ours 40",
        compile_limit_s=45.0,
    ),
    Row(
        "halfcheetah_sbx",
        "PPO HalfCheetah, 64 environments × 64, 10 epochs × 32",
        (*_CHEETAH, "--layout.policy_lag=0", *_AHEAD),
        "sbx",
        ("--num_envs=64", "--unroll=64", "--epochs=10", "--minibatches=32", "--vec=dummy", *_chunk(8192)),
        target=4.0,
        note="ours on EnvPool's HalfCheetah-v4; SBX on Gymnasium's v5, in one process, which was its faster way",
    ),
    Row(
        "halfcheetah_skrl",
        "PPO HalfCheetah, 64 environments × 64, 10 epochs × 32",
        (*_CHEETAH, "--layout.policy_lag=0", *_AHEAD),
        "skrl",
        ("--num_envs=64", "--unroll=64", "--epochs=10", "--minibatches=32", "--vec=sync", *_chunk(8192)),
        target=4.0,
        note="as beside SBX; skrl updates policy and value apart and waits for both losses of each minibatch",
    ),
    Row(
        "halfcheetah_raw",
        "PPO HalfCheetah, 64 environments × 64, one epoch × 4, networks 64×64",
        (*_CHEETAH, "--learner.epochs=1", "--learner.minibatches=4", "--layout.policy_lag=1", *_AHEAD),
        "raw",
        ("--env=HalfCheetah-v4", "--num_envs=64", *_chunk(24 * 64 * 64)),
        target=0.95,
        note="EnvPool alone with random actions",
    ),
    *(
        Row(
            f"cartpole_{width}_raw",
            f"PPO CartPole (EnvPool), {width} environments × 64, one epoch × 4, networks 64×64",
            (
                *("--system=ppo", "--env=envpool:CartPole-v1", f"--env.num_envs={width}", "--layout.unroll_length=64"),
                *("--learner.epochs=1", "--learner.minibatches=4", _AS_THEY_ARE),
                *("--layout.policy_lag=1", *_chunk(24 * width * 64)),
            ),
            "raw",
            ("--env=CartPole-v1", f"--num_envs={width}", *_chunk(24 * width * 64)),
            target=target,
            note="EnvPool alone with random actions",
        )
        for width, target in ((64, 0.5), (256, 0.6))
    ),
    _overhead("async_cartpole", "PPO CartPole 16×16, one epoch × 1", ("ppo", "ppo"), _ONE_PASS, 16, 65536),
    _overhead(
        "async_breakout", "A2C MinAtar Breakout 16×16, convolution + 128", ("a3c", "a2c"), _BREAKOUT_16, 16, 8192
    ),
    _called("called_cartpole", "PPO CartPole 16×16, one epoch × 1", ("--system=ppo", *_ONE_PASS)),
    _called("called_breakout", "A2C MinAtar Breakout 16×16, convolution + 128", ("--system=a2c", *_BREAKOUT_16)),
    _overhead("async_breakout_64", "A2C MinAtar Breakout 64×16, the same", ("a3c", "a2c"), _BREAKOUT_16, 64, 16384),
    Row(
        "atari_raw",
        "PPO Pong (EnvPool), 128 environments × 32, one epoch × 4, Nature network; 4 frames a step",
        (
            *("--system=ppo", "--env=envpool:Pong-v5", "--env.num_envs=128", "--layout.unroll_length=32"),
            *("--learner.epochs=1", "--learner.minibatches=4", "--layout.policy_lag=1"),
            *_chunk(131072),
        ),
        "raw",
        ("--env=Pong-v5", "--num_envs=128", "--stack_num=1", *_chunk(16384)),
        target=0.9,
        note="EnvPool alone with random actions; also wanted: 60,000 frames/s on 16 cores",
        on_request=True,
    ),
)

THRESHOLD_OURS = (*SMALL, *_chunk(8192))
FIRST_LINE = ("--system=ppo", "--env=gymnax:CartPole-v1", "--steps=500000")
