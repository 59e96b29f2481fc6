"""Lines of code of an algorithm here and in other libraries: `python benchmarks/peer_lines.py --peers=FOLDER`

FOLDER holds clones (`Stoix`, `JaxMARL`, `dreamerv3`, `evosax`). Lines are counted as `code_lines.py` does, without
comments and docstrings. Ours are those of the agent's file and of what it shares with its kin alone; networks, learner
and layouts serve all agents, and are not counted. Theirs are those of the algorithm's file, which holds the loop of
training as well, with the losses of its kin; networks of Stoix lie elsewhere, too, those of JaxMARL in the file.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import clones  # noqa: E402
import code_lines  # noqa: E402

_MPO_LOSSES = ("Stoix/stoix/systems/mpo/discrete_loss.py", "Stoix/stoix/systems/mpo/continuous_loss.py")
# Algorithm -> files here below jaxrl_dist/, and theirs.
FAMILIES = {
    "PPO": (
        ("agents/ppo.py",),
        ("Stoix/stoix/systems/ppo/anakin/ff_ppo.py", "Stoix/stoix/systems/ppo/anakin/rec_ppo.py"),
    ),
    "DQN, QR-DQN, C51, Rainbow, Munchausen": (
        ("agents/dqn.py", "agents/shared/soft_values.py"),
        tuple(f"Stoix/stoix/systems/q_learning/ff_{name}.py" for name in ("dqn", "qr_dqn", "c51", "rainbow", "mdqn")),
    ),
    "R2D2": (("agents/r2d2.py",), ("Stoix/stoix/systems/q_learning/rec_r2d2.py",)),
    "PQN": (("agents/pqn.py",), ("Stoix/stoix/systems/q_learning/ff_pqn.py",)),
    "SAC": (("agents/sac.py",), ("Stoix/stoix/systems/sac/ff_sac.py",)),
    "V-MPO": (
        ("agents/vmpo.py",),
        (
            "Stoix/stoix/systems/mpo/ff_vmpo.py",
            "Stoix/stoix/systems/mpo/ff_vmpo_continuous.py",
            *_MPO_LOSSES,
        ),
    ),
    "MPO": (("agents/mpo.py",), ("Stoix/stoix/systems/mpo/ff_mpo_continuous.py", _MPO_LOSSES[1])),
    "MuZero": (("agents/muzero.py", "agents/shared/search.py"), ("Stoix/stoix/systems/search/ff_mz.py",)),
    "AlphaZero": (("agents/alphazero.py", "agents/shared/search.py"), ("Stoix/stoix/systems/search/ff_az.py",)),
    "MAPPO": (
        ("agents/mappo.py", "agents/shared/own_parameters.py", "agents/ppo.py"),
        ("JaxMARL/baselines/MAPPO/mappo_rnn_mpe.py",),
    ),
    # Theirs has layers, distributions and optimisers elsewhere (embodied/jax), ours learner and replay.
    "DreamerV3": (
        ("agents/dreamer.py", "networks/world_model.py"),
        ("dreamerv3/dreamerv3/agent.py", "dreamerv3/dreamerv3/rssm.py"),
    ),
    # Theirs asks and tells; who uses it plays the members.
    "Evolution strategies": (
        ("agents/es.py",),
        tuple(f"evosax/evosax/algorithms/distribution_based/{name}.py" for name in ("open_es", "base")),
    ),
}


def lines(root: pathlib.Path, files: tuple[str, ...]) -> int:
    """Counts the lines of code of files."""
    return sum(len(code_lines.code_lines((root / name).read_text(encoding="utf-8"))) for name in files)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=pathlib.Path, required=True, help="folder of the clones")
    peers = parser.parse_args().peers
    for name in sorted({file.partition("/")[0] for _, theirs in FAMILIES.values() for file in theirs}):
        print(f"{name} at {clones.commit(peers / name)}")
    print("\n| algorithm | here | theirs |\n|---|---|---|")
    for name, (ours, theirs) in FAMILIES.items():
        found = " + ".join(pathlib.Path(file).name for file in theirs)
        print(f"| {name} | {lines(HERE.parent / 'jaxrl_dist', ours)} | {lines(peers, theirs)} ({found}) |")


if __name__ == "__main__":
    main()
