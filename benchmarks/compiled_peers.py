"""Compiles peers' own training programs beside ours: `python benchmarks/compiled_peers.py [--peers=FOLDER] [--write]`.

rejax and Brax come from PyPI, PureJaxRL and Stoix are clones in FOLDER (`purejaxrl`, `Stoix`), without which their rows
stay as they are in `compiled_peers.jsonl`. Their code runs unchanged (`clones.py`). Both sides of a row have the same
environments, rows, gradient steps and widths of layers. `make compiled` installs what this needs.
"""

import argparse
import functools
import importlib
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

# The devices are the compilers' alone: no backend but the CPU's is asked for.
os.environ["JAX_PLATFORMS"] = "cpu"
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import clones  # noqa: E402
import jsonl  # noqa: E402

TABLE = HERE / "compiled_peers.jsonl"
PACKAGES = HERE.parent / ".venv-peers" / "compiled"
TARGET = "h200"
# Iterations of a peer's program; no other loop of the rows has as many passes, which is how its iteration is told.
ITERATIONS = 97
Lower = Callable[[Any], Any]


class Row(NamedTuple):
    """A peer's program and ours.

    Attributes:
        peer: `purejaxrl`, `rejax`, `brax` or `stoix`.
        make: (folder of clones) -> (device) -> the lowered program.
        rows: environment steps of its iteration.
        ours: flags of ours.
        note: what a reader must know to judge the row.
    """

    peer: str
    make: Callable[[str], Lower]
    rows: int
    ours: dict[str, Any]
    note: str = ""


def rows() -> dict[str, Row]:
    """Returns name -> row."""
    import compiled
    import rows as pairs

    named = compiled.NAMED["ppo_large"]
    recurrent = {
        **{**named, "network.activation": "relu", "network.hidden_sizes": "128", "network.shared": "true"},
        **{"network.core": "gru", "network.core_size": 128, "network.head_size": 128},
    }
    dqn = _flags(*pairs._DQN)
    sac = {
        **{"system": "sac", "env": "gymnax:Pendulum-v1", "env.num_envs": 4, "layout.unroll_length": 1},
        **{"network.torso": "mlp", "network.hidden_sizes": "256,256", "network.activation": "relu"},
        **{"replay.capacity": 80_000, "replay.min_size": 4_096, "replay.batch_size": 64},
        "replay.samples_per_insert": 64,
    }
    ant = _flags(*pairs.ANT) | {"env.num_envs": 4096, "layout.unroll_length": 5}
    rainbow = {
        **{"system": "rainbow", "env": "gymnax:CartPole-v1", "env.num_envs": 64, "layout.unroll_length": 4},
        **{"network.torso": "mlp", "network.hidden_sizes": "64,64", "network.head_size": 64},
        **{"replay.capacity": 65_536, "replay.min_size": 4_096, "replay.batch_size": 256},
        **{"replay.samples_per_insert": 8, "learner.target_period": 1, "learner.target_rate": 0.005},
    }
    large = 2048 * 32
    one_core = "ours has one memory under both heads, Stoix one for each"
    return {
        "purejaxrl/ppo": Row("purejaxrl", functools.partial(_purejaxrl, "ppo", _PPO), large, named),
        "purejaxrl/ppo_rnn": Row("purejaxrl", functools.partial(_purejaxrl, "ppo_rnn", _PPO), large, recurrent),
        "purejaxrl/dqn": Row(
            "purejaxrl", functools.partial(_purejaxrl, "dqn", _DQN), 10, {**dqn, "network.hidden_sizes": "120,84"}
        ),
        "rejax/ppo": Row("rejax", functools.partial(_rejax, "ppo", _REJAX_PPO), large, named),
        "rejax/dqn": Row("rejax", functools.partial(_rejax, "dqn", _REJAX_DQN), 10, dqn),
        "rejax/sac": Row("rejax", functools.partial(_rejax, "sac", _REJAX_SAC), 4, sac),
        "brax/ppo": Row("brax", _brax, 4096 * 5, ant),
        "stoix/ff_ppo": Row("stoix", functools.partial(_stoix, "ppo.anakin.ff_ppo", _STOIX_PPO), large, named),
        "stoix/rec_ppo": Row(
            "stoix", functools.partial(_stoix, "ppo.anakin.rec_ppo", _STOIX_REC_PPO), large, recurrent, one_core
        ),
        "stoix/ff_rainbow": Row(
            "stoix", functools.partial(_stoix, "q_learning.ff_rainbow", _STOIX_RAINBOW), 256, rainbow
        ),
    }


def _flags(*given: str) -> dict[str, Any]:
    return dict(one.removeprefix("--").split("=", 1) for one in given)


_PPO = {
    **{"LR": 2.5e-4, "NUM_ENVS": 2048, "NUM_STEPS": 32, "TOTAL_TIMESTEPS": 2048 * 32 * ITERATIONS, "UPDATE_EPOCHS": 4},
    **{"NUM_MINIBATCHES": 32, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5},
    **{"MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ENV_NAME": "CartPole-v1", "ANNEAL_LR": True, "DEBUG": False},
}
_DQN = {
    **{"NUM_ENVS": 10, "BUFFER_SIZE": 10_000, "BUFFER_BATCH_SIZE": 128, "TOTAL_TIMESTEPS": 10 * ITERATIONS},
    **{"EPSILON_START": 1.0, "EPSILON_FINISH": 0.05, "EPSILON_ANNEAL_TIME": 25e4, "TARGET_UPDATE_INTERVAL": 500},
    **{"LR": 2.5e-4, "LEARNING_STARTS": 1_000, "TRAINING_INTERVAL": 10, "GAMMA": 0.99, "TAU": 1.0},
    "ENV_NAME": "CartPole-v1",
}


def _purejaxrl(module: str, config: dict[str, Any], folder: str) -> Lower:
    import jax

    program = clones.purejaxrl(pathlib.Path(folder, "purejaxrl"), module)
    return _jitted(program.make_train(dict(config)), jax.ShapeDtypeStruct((2,), "uint32"))


_REJAX_PPO = {
    **{"env": "CartPole-v1", "num_envs": 2048, "num_steps": 32, "num_epochs": 4, "num_minibatches": 32},
    **{"agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": (64, 64)}, "max_grad_norm": 0.5},
}
_REJAX_DQN = {
    **{"env": "CartPole-v1", "num_envs": 10, "buffer_size": 10_000, "fill_buffer": 1_000, "batch_size": 128},
    **{"num_epochs": 1, "target_update_freq": 500, "polyak": 0.0, "max_grad_norm": 10.0, "ddqn": False},
    **{"agent": "QNetwork", "agent_kwargs": {"activation": "relu"}},
}
_REJAX_SAC = {
    **{"env": "Pendulum-v1", "num_envs": 4, "buffer_size": 80_000, "fill_buffer": 4_096, "batch_size": 64},
    **{"num_epochs": 4, "hidden_layer_sizes": (256, 256), "agent_kwargs": {"activation": "relu"}},
}


def _rejax(name: str, config: dict[str, Any], folder: str) -> Lower:
    del folder
    import jax
    import rejax

    steps = config["num_envs"] * config.get("num_steps", 1) * ITERATIONS
    # One evaluation, behind the training, which returns nothing.
    settings = {**config, "total_timesteps": steps, "eval_freq": steps, "skip_initial_evaluation": True}
    algorithm = rejax.get_algo(name).create(**settings).replace(eval_callback=lambda *_: ())
    state = jax.eval_shape(algorithm.init_state, jax.ShapeDtypeStruct((2,), "uint32"))
    return _jitted(lambda state: algorithm.train(train_state=state)[0], state)


def _brax(folder: str) -> Lower:
    del folder
    import jax
    import jax.numpy as jnp
    from brax import envs
    from brax.training.agents.ppo import networks, train

    clones.restore("device_put_replicated", lambda tree, _: jax.tree.map(lambda x: jnp.asarray(x)[None], tree))
    factory = functools.partial(
        networks.make_ppo_networks, policy_hidden_layer_sizes=(256, 256), value_hidden_layer_sizes=(256, 256)
    )
    # 128 sequences of 5 rows in a minibatch.
    sizes = {"num_envs": 4096, "unroll_length": 5, "batch_size": 128, "num_minibatches": 32, "num_updates_per_batch": 4}
    with _Mapped("training_epoch") as mapped:
        train.train(
            environment=envs.get_environment("ant", backend="spring"),
            num_timesteps=4096 * 5 * ITERATIONS,
            num_evals=1,
            run_evals=False,
            episode_length=1000,
            normalize_observations=True,
            reward_scaling=10.0,
            network_factory=factory,
            **sizes,
        )
    return mapped.lower


_STOIX_PPO = {
    **{"arch.total_num_envs": 2048, "system.rollout_length": 32, "system.epochs": 4, "system.num_minibatches": 32},
    **{f"network.{net}_network.pre_torso.layer_sizes": [64, 64] for net in ("actor", "critic")},
    **{f"network.{net}_network.pre_torso.activation": "tanh" for net in ("actor", "critic")},
}
_STOIX_REC_PPO = {
    **{"arch.total_num_envs": 2048, "system.rollout_length": 32, "system.epochs": 4, "system.num_minibatches": 32},
    "system.recurrent_chunk_size": 32,
}
_STOIX_RAINBOW = {
    **{"arch.total_num_envs": 64, "system.rollout_length": 4, "system.epochs": 8, "system.total_batch_size": 256},
    **{"system.total_buffer_size": 65_536, "system.n_step": 3, "network.actor_network.pre_torso.layer_sizes": [64]},
    "network.actor_network.action_head.layer_sizes": [64],
}


def _stoix(module: str, overrides: dict[str, Any], folder: str) -> Lower:
    import jax
    import omegaconf

    root = pathlib.Path(folder, "Stoix")
    sys.path.insert(0, str(root))
    clones.stand_in("wandb", "neptune", "neptune.utils", "tensorboard_logger", "marl_eval", "marl_eval.json_tools")
    clones.stand_in("pandas.io.json._normalize", "hydra", "hydra.utils")
    # Hydra's parser comes as source alone: settings are read without it, as its defaults list says.
    sys.modules["hydra"].__dict__.update(main=lambda **_: lambda function: function, utils=sys.modules["hydra.utils"])
    sys.modules["hydra.utils"].__dict__["instantiate"] = _instantiate
    system = importlib.import_module(f"stoix.systems.{module}")
    read, configs = omegaconf.OmegaConf.load, root / "stoix" / "configs"
    name = module.rpartition(".")[2]
    defaults = read(configs / "default" / "anakin" / f"default_{name}.yaml").defaults
    groups = dict(pair for one in defaults if one != "_self_" for pair in one.items())
    config = omegaconf.OmegaConf.create({group: read(configs / group / f"{one}.yaml") for group, one in groups.items()})
    iterations = {"arch.num_evaluation": 1, "arch.total_timesteps": None, "arch.num_updates": ITERATIONS}
    for name, value in {**iterations, **overrides}.items():
        omegaconf.OmegaConf.update(config, name, value)
    config.num_devices = 1
    config = system.check_total_timesteps(config)
    environment, _ = system.environments.make(config=config)
    with _Mapped("learner_fn") as mapped:
        made = system.learner_setup(environment, tuple(jax.random.split(jax.random.PRNGKey(0), 3)), config)
        made[0](made[-1])
    return mapped.lower


def _instantiate(config: Any, **given: Any) -> Any:
    settings = {**config, **given}
    module, _, name = settings.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), name)(**settings)


class _Mapped:
    """Takes the place of `jax.pmap`: keeps the named function and its arguments, and answers others with zeros."""

    def __init__(self, name: str) -> None:
        self._name, self._found = name, ()

    def __enter__(self) -> "_Mapped":
        import jax

        self._pmap, jax.pmap = jax.pmap, self._map
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        import jax

        jax.pmap = self._pmap
        return isinstance(error, _Found)

    def _map(self, function: Any, **options: Any) -> Any:
        import jax
        import jax.numpy as jnp

        def call(*arguments: Any) -> Any:
            if function.__name__ == self._name:
                shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
                self._found = function, options, shapes
                raise _Found
            shapes = jax.eval_shape(jax.vmap(function, axis_name=options["axis_name"]), *arguments)
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        return call

    def lower(self, device: Any) -> Any:
        """Lowers the function that was found for one device."""
        import jax

        function, options, shapes = self._found
        return jax.pmap(function, devices=[device], **options).lower(*shapes)


class _Found(Exception):
    """Leaves a peer's own training loop."""


def _jitted(function: Any, *arguments: Any) -> Lower:
    import jax

    def lower(device: Any) -> Any:
        placed = jax.sharding.SingleDeviceSharding(device)
        return jax.jit(function, in_shardings=placed, out_shardings=placed).lower(*arguments)

    return lower


def iteration(program: Any) -> Any:
    """Returns the loop over iterations of a peer's program.

    Raises:
        ValueError: no loop has as many passes, or one in it has a number that only the device knows.
    """
    found = [loop for _, loop in program.walk() if loop.passes == ITERATIONS]
    if not found:
        raise ValueError(f"no loop of {ITERATIONS} passes")
    largest = max(found, key=lambda loop: loop.total("kernels"))
    if any(loop.passes is None for _, loop in largest.walk()):
        raise ValueError("passes of a loop are known on the device alone")
    return largest


def measure(name: str, folder: str) -> dict[str, Any]:
    """Compiles a peer's program, in a process of its own: its packages are not those of ours."""
    sys.path.insert(0, str(PACKAGES))
    from jaxrl_dist.training import compiled, hlo, targets

    target, row = targets.make(TARGET), rows()[name]
    lower = row.make(folder)
    started_s = time.perf_counter()
    lowered = lower(target.devices[0])
    lowered_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as dump:
        built = lowered.compile({"xla_dump_to": dump})
        compiled_s = time.perf_counter()
        launches = compiled.launches_in(pathlib.Path(dump))
    found = iteration(hlo.read(built.as_text(), target.speeds))
    return {
        "loops": [{"depth": depth, "passes": one.passes, "kernels": one.kernels} for depth, one in found.walk()],
        "kernels": found.total("kernels"),
        "kernels_per_step": found.total("kernels") / row.rows,
        "host": launches._asdict() if launches else None,
        "traced_s": round(lowered_s - started_s, 1),
        "compiled_s": round(compiled_s - lowered_s, 1),
    }


def version(peer: str, folder: str) -> str:
    """Returns a peer's version, or its clone's commit."""
    if peer in ("purejaxrl", "stoix"):
        return clones.commit(pathlib.Path(folder, {"purejaxrl": "purejaxrl", "stoix": "Stoix"}[peer]))
    folders = [str(PACKAGES), *sys.path]
    return next(iter(importlib.metadata.distributions(name=peer, path=folders))).version


def read() -> dict[str, dict[str, Any]]:
    """Reads the table."""
    return jsonl.read(TABLE)


def main(arguments: list[str]) -> int:
    """Compiles the rows that are asked for and can be; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", metavar="FOLDER", help="clones of PureJaxRL and Stoix")
    parser.add_argument("--rows", default="", help="beginnings of rows, with commas between, such as rejax/ppo")
    parser.add_argument("--write", action="store_true", help="put the numbers into compiled_peers.jsonl")
    parser.add_argument("--measure", default="", metavar="ROW", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(options.measure, options.peers)))
        return 0
    if not PACKAGES.is_dir():
        print(f"compiled_peers.py: {PACKAGES} is missing; `make compiled` installs it", file=sys.stderr)
        return 2
    chosen = jsonl.chosen(rows(), options.rows)
    if not chosen:
        return 2
    print(
        f"| peer, for one {TARGET.upper()} | version | kernels of a pass | per environment step | ours | ours ÷ peer |"
    )
    print("|---|---|---|---|---|---|")
    for name, row in chosen.items():
        is_here = row.peer in ("rejax", "brax") or options.peers
        found = _compare(name, row, os.path.abspath(options.peers)) if is_here else read().get(name)
        if found is None:
            continue
        print(_line(name, found), flush=True)
        if options.write and is_here:
            jsonl.put(TABLE, rows(), name, found)
    return 0


def _compare(name: str, row: Row, folder: str) -> dict[str, Any]:
    """Compiles both sides of a row."""
    import compiled

    found: dict[str, Any] = {"version": version(row.peer, folder)}
    command = [sys.executable, str(HERE / "compiled_peers.py"), f"--measure={name}", f"--peers={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", done.stderr, re.MULTILINE)
        return found | {"error": said[-1][:200] if said else f"ended with code {done.returncode}"}
    ours = compiled.measure(TARGET, row.ours)
    kept = {key: ours[key] for key in ("kernels", "kernels_per_step", "host", "traced_s", "compiled_s")}
    return found | json.loads(done.stdout.splitlines()[-1]) | {"ours": kept} | ({"note": row.note} if row.note else {})


def _line(name: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"| {name} | {found['version']} | does not compile: {found['error']} | – | – | – |"
    loops = ", ".join(
        f"{'·' * one['depth']}{'loop × ' + str(one['passes']) if one['depth'] else 'iteration'}: {one['kernels']}"
        for one in found["loops"]
    )
    own = found["ours"]["kernels_per_step"]
    return (
        f"| {name} | {found['version']} | {loops} | {found['kernels_per_step']:.3g} | {own:.3g} | "
        f"**{own / found['kernels_per_step']:.2f}**{'; ' + found['note'] if 'note' in found else ''} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
