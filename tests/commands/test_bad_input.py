"""Wrong commands: one line with the valid values and the nearest match, exit code 2, before a device is touched."""

import contextlib
import errno
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import conftest
import pytest

from jaxrl_dist import commands, envs, errors
from jaxrl_dist.commands import evaluate, launch, study
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import fields
from jaxrl_dist.systems import catalogue, training_flags
from jaxrl_dist.training import resume

SCRIPT = conftest.PACKAGE.parent / "scripts" / "train.py"

WRONG = [
    ("--system=ppoo", "--system=ppoo: ", " ppo?"),
    ("--system=PPO", "--system=PPO: ", " ppo?"),
    ("--sytem=ppo", "--sytem: ", "--system?"),
    ("--layout=anakim", "--layout=anakim: ", " anakin?"),
    ("--dry_run=maybe", "--dry_run=maybe: ", "true", "false"),
    ("--layout=atuo", "--layout=atuo: ", " auto?"),
    ("--env=CartPole-v1", "--env=CartPole-v1: ", "suite:name", " gymnax:CartPole-v1?"),
    ("--env=gymnax:CartPol-v1", "--env=gymnax:CartPol-v1: ", " CartPole-v1?"),
    ("--env=gymnax:cartpole-v1", "--env=gymnax:cartpole-v1: ", " CartPole-v1?"),
    ("--env=gynmax:CartPole-v1", "--env=gynmax:CartPole-v1: ", " gynmax,", " gymnax:CartPole-v1?"),
    ("--env=gymnax:", "--env=gymnax:", "suite:name"),
    ("--env=", "--env=", "suite:name"),
    ("--env=brax:antt", "--env=brax:antt: ", " ant?"),
    ("--agent.discont=0.9", "--agent.discont: ", " --agent.discount?"),
    ("--vf_coef=1", "--vf_coef: ", "--agent.value_cost", "twice"),
    ("--VF_COEF=1", "--VF_COEF: ", "PureJaxRL", "--agent.value_cost", "the same number"),
    ("--discount=0.9", "--discount: ", " --agent.discount?"),
    ("--learner.discount=0.9", "--learner.discount: ", " --agent.discount?"),
    ("--gamma=0.9", "--gamma: ", "--agent.discount "),
    ("--agent.gamma=0.9", "--agent.gamma: ", "--agent.discount "),
    ("--learner.lr=1e-3", "--learner.lr: ", "--learner.learning_rate "),
    ("--LR=1e-3", "--LR: ", "PureJaxRL", "--learner.learning_rate "),
    ("--total_timesteps=9", "--total_timesteps: ", "Stable-Baselines3", "--steps "),
    ("--total-timesteps=9", "--total-timesteps: ", "--steps "),
    ("--n_steps=9", "--n_steps: ", "--layout.unroll_length "),
    ("--n_steps=9 --system=dqn", "--layout.unroll_length or --agent.n_step "),
    ("--batch_size=9", "--batch_size: ", "--learner.minibatches;"),
    ("--batch_size=9 --system=dqn", "--batch_size: ", "--replay.batch_size"),
    ("--buffer_size=9", "--buffer_size: ", "--replay.capacity of ", "dqn"),
    ("--device=cpu", "--device: ", "JAX_PLATFORMS"),
    ("--checkpoint_freq=9", "--checkpoint_freq: ", "RLlib", "--checkpoint.interval_s;"),
    ("--arch.num_updates=9", "--arch.num_updates: ", "Stoix", "--steps;"),
    ("--timesteps=9", "--timesteps: ", "--steps?"),
    ("--hidden_dim=9", "--hidden_dim: ", "--network.hidden_sizes?"),
    ("--checkpoint_interval=9", "--checkpoint_interval: ", "--checkpoint.interval_s?"),
    ("--env=gym:CartPole-v1", "--env=gym:CartPole-v1: ", " gymnasium:CartPole-v1?"),
    ("--env=mujoco:Ant-v4", "--env=mujoco:Ant-v4: ", " gymnasium:Ant-v4?"),
    ("--env=atari:Pong-v5", "--env=atari:Pong-v5: ", " envpool:Pong-v5?"),
    ("--env=gymnasum:CartPole-v1", "--env=gymnasum:CartPole-v1: ", " gymnasium"),
    ("--agent.discount=2", "--agent.discount=2: ", ">= 0", "<= 1"),
    ("--agent.discount=-0.1", "--agent.discount=-0.1: ", ">= 0", "<= 1"),
    ("--agent.discount=nan", "--agent.discount=nan: ", ">= 0", "<= 1"),
    ("--agent.discount=high", "--agent.discount=high: ", ">= 0", "<= 1"),
    ("--agent.discount=", "--agent.discount=: ", ">= 0", "<= 1"),
    ("--agent.clip_epsilon=-1", "--agent.clip_epsilon=-1: ", ">= 0"),
    ("--agent.normalise_advantage=minibach", "=minibach: ", "none, batch, minibatch", " minibatch?"),
    ("--agent.scale_rewards=maybe", "--agent.scale_rewards=maybe: ", "true", "false"),
    ("--agent.scale_rewards true", "'true'", "--flag=value"),
    ("--noagent.discount", "--noagent.discount: "),
    ("--noagent.scale_rewards=1", "scale_rewards"),
    ("--learner.learning_rate=0", "--learner.learning_rate=0: ", "> 0"),
    ("--learner.learning_rate=inf", "--learner.learning_rate=inf: ", "> 0"),
    ("--learner.optimizer=adan", "--learner.optimizer=adan: ", " adam?"),
    ("--learner.decay=1", "--learner.decay=1: ", ">= 0", "< 1"),
    ("--learner.momentum=1", "--learner.momentum=1: ", ">= 0", "< 1"),
    ("--learner.minibatches=four", "--learner.minibatches=four: ", ">= 1"),
    ("--learner.epochs=1.5", "--learner.epochs=1.5: ", ">= 1"),
    ("--steps=0", "--steps=0: ", ">= 1"),
    ("--steps=1e400000000", "--steps=1e400000000: ", "<= 999999999999999999"),
    ("--steps", "--steps: ", "--steps=VALUE", "--help"),
    ("--seed=1 --learner.learning_rate", "--learner.learning_rate: ", "--learner.learning_rate=VALUE"),
    ("--system", "--system: ", "--system=VALUE"),
    ("-x", "--x: ", "--help"),
    ("--foo=1", "--foo: ", "--help"),
    ("--seed=-1", "--seed=-1: ", ">= 0"),
    ("--seed=5e9", "--seed=5e9: ", ">= 0", "<= 2147483647"),
    ("--num_seeds=0", "--num_seeds=0: ", ">= 1"),
    ("--env.num_envs=0", "--env.num_envs=0: ", ">= 1"),
    ("--env.params.=3", "--env.params.: "),
    ("--layout.unroll_length=0", "--layout.unroll_length=0: ", ">= 1"),
    ("--network.core=lstn", "=lstn: ", "identity, lstm, gru, mingru, gtrxl, frame_stack, frame_stack_lstm", " lstm?"),
    ("--network=nature_cn", "--network=nature_cn: ", " nature_cnn?"),
    ("--network=my_module", "--network=my_module: ", "module:Class"),
    ("--network=mlp --network.torso=mlp", "--network ", "--network.torso"),
    ("--network.hidden_sizes=64,0", "--network.hidden_sizes=64,0: ", ">= 1"),
    ("--network.hidden_sizes=64;64", "--network.hidden_sizes=64;64: ", ">= 1"),
    ("--precision=float8", "--precision=float8: "),
    ("--replay.capacity=100", "--replay.capacity: ", "dqn, ", "r2d2", " have it"),
    ("--env=gymnasium", "--env=gymnasium: ", "suite:name", " gymnasium:NAME?"),
    ("--system=dqn --agent.clip_epsilon=0.2", "--agent.clip_epsilon: ", "dqn "),
    ("--system=dqn --replay.batch_size=0", "--replay.batch_size=0: ", ">= 1"),
    ("--system=dqn --agent.epsilon_start=1.5", "--agent.epsilon_start=1.5: ", ">= 0", "<= 1"),
    ("--init_from=/no/such/run", "--init_from=/no/such/run "),
    ("train", "'train'", "--flag=value"),
    ("--flagfile=/no/such/file", "--flagfile=/no/such/file ", os.strerror(errno.ENOENT)),
    ("--flagfile=/", "--flagfile=/ ", os.strerror(errno.EISDIR)),
    (f"--flagfile={sys.executable}", f"--flagfile={sys.executable} "),
    ("--undefok=nonsense --nonsense=1", "--undefok: "),
    ("--out --steps=1000", "--out: ", "--out=VALUE"),
    ("--steps=1000 --out", "--out: ", "--out=VALUE"),
    ("--network.hidden_sizes=64,,64", "--network.hidden_sizes=64,,64: "),
    ("--network.hidden_sizes=,64", "--network.hidden_sizes=,64: "),
]
IN_A_FILE = [
    (study, ["--out=x"], "--trials=3", "--trials=3: give --search"),
    (study, ["--out=x", "--"], "--seed=7", "--seed is chosen by the study"),
    (study, ["--out=x", "--"], "-num_seeds=3", "--num_seeds is chosen by the study"),
    (launch, ["--", "train"], "--processes=2", "--processes is given to each process"),
    (evaluate, ["--run=."], "--video_steps=3", "--video_steps=3: give --video"),
    # A flag of the environment, which is read; the folder then holds no run.
    (evaluate, ["--run=."], "--env.params.max_steps=5", "config.json"),
]


@pytest.mark.parametrize(("command", "arguments", "line", "message"), IN_A_FILE, ids=[case[2] for case in IN_A_FILE])
def test_flags_of_a_file_are_checked_as_typed_ones(
    command: Any,
    arguments: list[str],
    line: str,
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "flags.txt").write_text(f"# Mine.\n{line}\n")
    name = command.__name__.rpartition(".")[2]
    for given in ([line], ["--flagfile=flags.txt"], ["--flagfile", "flags.txt"]):
        assert commands.run(command.main, name, [*arguments, *" ".join(given).split()]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "named"), [(command, named) for command, *named in WRONG], ids=[command for command, *_ in WRONG]
)
def test_a_wrong_command_is_refused_in_one_line(command: str, named: list[str]) -> None:
    with conftest.refused(*named):
        training_flags.parse(command.split())


# Of other libraries, and of none: nothing here is like them.
STRANGE = ("layers", "num_layers", "render", "horizon", "action_repeat", "normalize", "logdir", "layout.order", "foo")


@pytest.mark.parametrize("name", STRANGE)
def test_a_flag_that_none_is_like_is_refused_without_a_hint(name: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        training_flags.parse([f"--{name}=1"])
    assert "?" not in errors.as_typed(caught.value)


def test_flags_are_read_in_every_form(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "flags.txt"
    file.write_text("--env.params.max_steps_in_episode=200\n--seed=3\n")
    command = training_flags.parse(
        ["--system", "ppo", "--env=gymnax:CartPole-v1", "--agent.scale_rewards", "--nolearner.anneal", "--steps", "1e4"]
        + ["--network=my_module:MyNet", f"--flagfile={file}", "--seed=4"]
    )
    assert command.flags == {
        "system": "ppo",
        "env": "gymnax:CartPole-v1",
        "agent.scale_rewards": True,
        "learner.anneal": False,
        "steps": 10_000,
        "network.torso": "my_module:MyNet",
        "env.params.max_steps_in_episode": "200",
        "seed": 4,
    }
    assert command.settings is not None
    assert command.settings["agent.scale_rewards"] is True and command.settings["learner.anneal"] is False
    assert command.settings["steps"] == 10_000


@pytest.mark.parametrize("system", ["ppo", "a2c", "dqn"])
def test_help_lists_every_flag_with_its_origin(system: str) -> None:
    text = training_flags.parse([f"--system={system}", "--help", "--nonsense"]).text
    settings = catalogue.resolved({"system": system})
    for name in settings.fields:
        assert f"\n  --{name}=" in text
    assert "--env.params.NAME=VALUE" in text
    assert "Mnih et al. 2015" in text and "PureJaxRL" in text


def test_versions_and_names_are_listed() -> None:
    assert re.search(r"^jax \d", training_flags.parse(["--version"]).text, re.MULTILINE)
    listed = training_flags.parse(["--list"]).text
    assert "ppo:" in listed and "dqn:" in listed and "CartPole-v1" in listed


def command_of(folder: pathlib.Path, *more: str) -> training_flags.Command:
    """A valid command that writes to a folder."""
    return training_flags.parse(["--env=gymnax:CartPole-v1", f"--out={folder}", *more])


def test_the_default_folder_is_named_after_the_run() -> None:
    settings = training_flags.parse(["--system=dqn", "--env=gymnax:Catch-bsuite", "--seed=3"]).settings
    assert settings is not None
    assert folders.of(settings) == pathlib.Path("runs/dqn-gymnax-Catch-bsuite-seed3")


def open_folder(command: training_flags.Command) -> contextlib.AbstractContextManager[pathlib.Path]:
    """Opens the run folder of a command."""
    assert command.settings is not None
    return resume.open_folder(command.flags, command.settings)


def opened(command: training_flags.Command) -> pathlib.Path:
    """Opens the run folder of a command, and leaves it at once."""
    with open_folder(command) as folder:
        assert folder.is_dir()
    return folder


def hold(folder: pathlib.Path, contents: str) -> None:
    """Makes a folder look like one of a run that has saved something."""
    (folder / "config.json").write_text(contents)
    (folder / "checkpoints" / "step_000000000128").mkdir(parents=True)


def test_a_new_folder_is_made_and_goes_again_unless_something_is_written_to_it(tmp_path: pathlib.Path) -> None:
    with open_folder(command_of(tmp_path / "a" / "b")) as folder:
        assert folder.is_dir() and not list(folder.iterdir())
    assert not (tmp_path / "a").exists()
    with pytest.raises(errors.UsageError), open_folder(command_of(folder)):
        raise errors.UsageError("found late")
    assert not (tmp_path / "a").exists()
    with open_folder(command_of(folder)):
        (folder / "config.json").touch()
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_a_folder_of_the_users_own_stays(tmp_path: pathlib.Path) -> None:
    assert opened(command_of(tmp_path)).is_dir() and not list(tmp_path.iterdir())


def test_folders_that_cannot_be_written_are_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "run", pathlib.Path("/proc/run")):
        with conftest.refused(f"--out={folder}"):
            opened(command_of(folder))


def test_a_folder_of_another_configuration_is_refused_with_the_difference(tmp_path: pathlib.Path) -> None:
    earlier = command_of(tmp_path, "--agent.discount=0.9", "--steps=1e4")
    contents = catalogue.resolved(earlier.flags, "classic").as_json()
    hold(tmp_path, json.dumps(contents))
    opened(earlier)
    opened(command_of(tmp_path, "--agent.discount=0.9", "--steps=2e4"))
    with conftest.refused(f"--out={tmp_path}", "(seed 0 -> 1, agent.discount 0.9 -> 0.99)"):
        opened(command_of(tmp_path, "--steps=1e4", "--seed=1"))
    with conftest.refused(f"--out={tmp_path}", "system ppo -> dqn"):
        opened(command_of(tmp_path, "--system=dqn"))


@pytest.mark.parametrize("left", ["{", "valid"])
def test_a_start_that_failed_leaves_the_folder_to_any_other(tmp_path: pathlib.Path, left: str) -> None:
    contents = catalogue.resolved(command_of(tmp_path).flags, "classic").as_json()
    (tmp_path / "config.json").write_text(json.dumps(contents) if left == "valid" else left)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    opened(command_of(tmp_path, "--seed=1"))
    # One that was killed before its first checkpoint has recorded something.
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "env_steps": 128}\n')
    with conftest.refused("seed 0 -> 1" if left == "valid" else "config.json"):
        opened(command_of(tmp_path, "--seed=1"))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"family": "classic"}', '{"family": null, "settings": 3}'])
def test_a_folder_with_a_broken_config_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    hold(tmp_path, text)
    with conftest.refused("config.json"):
        opened(command_of(tmp_path))


def test_a_folder_in_use_is_refused(tmp_path: pathlib.Path) -> None:
    with folders.lock(tmp_path), conftest.refused(f"--out={tmp_path}", f"process {os.getpid()} "):
        opened(command_of(tmp_path))
    opened(command_of(tmp_path))


FAILS_FAST = """
import sys
sys.argv = [{script!r}, *{arguments!r}]
import runpy
try:
    runpy.run_path({script!r}, run_name="__main__")
except SystemExit as end:
    from jax._src import xla_bridge
    print(end.code, xla_bridge.backends_are_initialized(), *sys.modules)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--env=gymnax:CartPole-v1", "--agent.discont=0.9"], marks=pytest.mark.slow),
        ["--env=gymnax:CartPol-v1"],
        pytest.param(["--env=gymnax:CartPole-v1", "--learner.epochs=0"], marks=pytest.mark.slow),
        ["--env=gymnax:CartPole-v1", "--out=/proc/run"],
        pytest.param(["--system=dqn", "--help"], marks=pytest.mark.slow),
    ],
)
def test_the_script_answers_before_a_device_or_a_slow_library_is_touched(
    arguments: list[str], tmp_path: pathlib.Path
) -> None:
    code = FAILS_FAST.format(script=str(SCRIPT), arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=conftest.SOON_S, cwd=tmp_path, check=True
    )
    answer, *modules = done.stdout.splitlines()[-1].split()[1:]
    assert answer == "False" and not list(tmp_path.iterdir())
    assert "jaxrl_dist.systems.catalogue" in modules
    slow = {"orbax", "matplotlib", "jinja2", "tensorboardX", *envs.registry()}
    assert not {name for name in modules if name.split(".")[0] in slow}
    if "--help" not in arguments:
        assert done.stdout.startswith("2 ")
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("train.py: --")


def test_finished_runs_are_read_without_jax() -> None:
    """Plots, reports and comparisons begin at once."""
    code = (
        "import sys; from jaxrl_dist.commands import compare, plot, report; "
        "from jaxrl_dist import errors, settings; from jaxrl_dist.runs import folder; "
        "slow = ('jax', 'jaxlib', 'orbax', 'matplotlib', 'jinja2', 'markupsafe'); "
        "print([name for name in sys.modules if name.split('.')[0] in slow])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("out", [[], ["--out=there"]], ids=["new folder", "folder that is there"])
def test_a_command_that_is_refused_late_leaves_nothing(out: list[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "there").mkdir()
    wrong = ["--env=gymnax:CartPole-v1", "--learner.minibatches=7", *out]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *wrong], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("train.py: --learner.minibatches=7")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def _altered(name: str, field: fields.Field, value: Any) -> Any:
    """Returns another valid value of a setting."""
    if field.choices:
        return next(choice for choice in field.choices if choice != value and ":" not in str(choice))
    if field.kind == "bool":
        return not value
    if field.kind == "int":
        return value - 1 if value == field.high else value + 1
    if field.kind == "float":
        return value / 2 if value else 0.5
    if isinstance(value, tuple):
        return (*value, "x" if "str" in field.kind else 3)
    return f"{value}x"


@pytest.mark.parametrize("system", ["ppo", "dqn"])
def test_each_setting_that_changes_is_refused_or_accepted_by_its_tag(system: str, tmp_path: pathlib.Path) -> None:
    base = {"system": system, "env": "gymnax:CartPole-v1", "out": str(tmp_path)}
    settings = catalogue.resolved(base, "classic")
    hold(tmp_path, json.dumps(settings.as_json()))
    tags: dict[str, str] = {}
    for name, field in settings.fields.items():
        # A population needs a sweep, which is refused here first.
        if name in ("system", "env", "out", "layout", "preset", "population"):
            continue
        changed = {**base, name: _altered(name, field, settings[name])}
        try:
            with resume.open_folder(changed, catalogue.resolved(changed)):
                pass
            tags[name] = "tunable"
        except errors.UsageError as error:
            assert f"another configuration ({name} " in str(error) and "\n" not in str(error)
            tags[name] = "identity"
        assert tags[name] == field.tag, name
    assert {"steps", "checkpoint.keep", "stop_at_return"} <= {name for name, tag in tags.items() if tag == "tunable"}
    assert {"seed", "agent.discount", "env.num_envs"} <= {name for name, tag in tags.items() if tag == "identity"}
