"""Eight virtual CPU devices for every test, quick compilation, and ready-made parts of small runs."""

import contextlib
import functools
import gc
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Small programs spend their time in the compiler, not in the code that it optimises. The second flag ends a process of
# jaxlib 0.11, which no longer knows it.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false" * importlib.metadata.version("jaxlib").startswith("0.10.")
)

import jax
import numpy as np
import pytest
from fakes import host
from jax._src.interpreters import mlir

import jaxrl_dist
from jaxrl_dist import envs, errors
from jaxrl_dist.numeric import moments
from jaxrl_dist.runs import checkpoint
from jaxrl_dist.training import assemble, runner, session
from jaxrl_dist.training import stop as stopping

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

# What one test compiled, the next loads. Each process has its own folder: JAX's writes to it are not atomic.
_PROGRAMS = tempfile.TemporaryDirectory(prefix="jaxrl_dist-tests-", ignore_cleanup_errors=True)
jax.config.update("jax_compilation_cache_dir", _PROGRAMS.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

PACKAGE = pathlib.Path(jaxrl_dist.__file__).resolve().parent
# Longest wait of a test: anything that ends by itself ends sooner, even on a busy machine.
SOON_S = 45.0

# JAX makes a context of the compiler's for each program that it lowers, in 3 ms: an eighth of the tests' time. Here
# each thread makes one for a file.
_CONTEXTS = threading.local()
_make_context = mlir.make_ir_context


def _context_of_thread() -> Any:
    if not hasattr(_CONTEXTS, "one"):
        _CONTEXTS.one = _make_context()
    return _CONTEXTS.one


mlir.make_ir_context = _context_of_thread

# Mappings of memory above which a process forgets its compiled programs, which have one or more each; the kernel allows
# 65,530, and XLA ends a process that has no more.
_MOST_MAPPINGS = 25_000

SMALL = {
    "ppo": {
        "env.num_envs": 8,
        "layout.unroll_length": 16,
        "learner.minibatches": 2,
        "learner.epochs": 2,
        "network.hidden_sizes": (16,),
        "network.torso": "mlp",
        "steps": 1280,
    },
    "dqn": {
        "env.num_envs": 8,
        "layout.unroll_length": 4,
        "replay.capacity": 1024,
        "replay.min_size": 64,
        "replay.batch_size": 32,
        "replay.samples_per_insert": 2.0,
        "learner.target_period": 2,
        "network.hidden_sizes": (16,),
        "network.torso": "mlp",
        "steps": 320,
    },
}
SMALL["a2c"] = {
    "env.num_envs": 8,
    "layout.unroll_length": 16,
    "network.hidden_sizes": (16,),
    "network.torso": "mlp",
    "steps": 1280,
}
SMALL["es"] = SMALL["a2c"]
SMALL["ga3c"] = SMALL["a3c"] = SMALL["a2c"]
SMALL["dppo"] = SMALL["ippo"] = SMALL["mappo"] = SMALL["gpu_sim"] = SMALL["ppo"]
SMALL["rnd"] = SMALL["ppo"] | {"agent.feature_size": 8}
SMALL["pqn"] = SMALL["ppo"]
SMALL["impala"] = SMALL["a2c"]
SMALL["seed_impala"] = SMALL["impala"]
SMALL["impala_replay"] = SMALL["impala"] | {"replay.capacity": 512}
SMALL["gorila"] = SMALL["dqn"] | {"replay.samples_per_insert": 4.0}
SMALL["rainbow"] = SMALL["dqn"] | {"agent.num_atoms": 11, "network.head_size": 8}
SMALL["qr_dqn"] = SMALL["dqn"] | {"agent.num_atoms": 7}
SMALL["apex_dqn"] = SMALL["dqn"] | {"layout": "anakin", "network.head_size": 8}
SMALL["r2d2"] = SMALL["dqn"] | {
    "layout": "anakin",
    "agent.burn_in": 3,
    "agent.taught": 6,
    "agent.n_step": 2,
    "network.core_size": 8,
    "network.head_size": 8,
    "replay.batch_size": 8,
}
SMALL["dreamer"] = {
    "env.num_envs": 8,
    "layout.unroll_length": 4,
    "replay.capacity": 1024,
    "replay.min_size": 64,
    "replay.batch_size": 8,
    "replay.samples_per_insert": 2.0,
    "agent.length": 8,
    "agent.horizon": 3,
    "agent.units": 8,
    "agent.layers": 1,
    "agent.recurrent_units": 8,
    "agent.blocks": 2,
    "agent.latents": 3,
    "agent.classes": 4,
    "agent.channels": 1,
    "agent.num_bins": 15,
    "steps": 320,
}
SMALL["seed_r2d2"] = SMALL["r2d2"] | {"layout": "sebulba"}
SMALL["iqn"] = SMALL["dqn"] | {"agent.num_levels": 5, "agent.num_target_levels": 4, "agent.num_policy_levels": 3}
SMALL["discrete_sac"] = SMALL["dqn"]
SMALL["alphazero"] = SMALL["dqn"] | {
    "agent.n_step": 2,
    "agent.num_atoms": 11,
    "agent.value_bound": 10.0,
    "agent.simulations": 3,
}
SMALL["muzero"] = SMALL["alphazero"] | {"agent.unroll_steps": 2, "agent.latent_size": 8, "agent.model_size": 8}
SMALL["ddpg"] = SMALL["dqn"] | {"learner.target_period": 1, "learner.target_rate": 0.1}
SMALL["sac"] = SMALL["ddpg"]
SMALL["crossq"] = SMALL["ddpg"]
SMALL["mpo"] = SMALL["ddpg"] | {"agent.num_samples": 4}
SMALL["vmpo"] = SMALL["ppo"]
SMALL["td3"] = SMALL["ddpg"]
SMALL["d4pg"] = SMALL["dqn"] | {"layout": "anakin", "agent.num_atoms": 11}
SMALL["apex_dpg"] = SMALL["dqn"] | {"layout": "anakin"}


class Small:
    """A small assembled run with its state."""

    def __init__(self, system: str, env: str, num_devices: int, settings: dict[str, Any]) -> None:
        flags = {"system": system, "env": env, **SMALL[system], **settings}
        resolved, environment = assemble.resolve(flags)
        self.parts = assemble.assemble(resolved, environment, jax.devices()[:num_devices])
        self.layout = self.parts.layout
        self.keys = assemble.seed_keys(resolved)
        self.total = 20
        self.iteration = 0
        self.metrics: Any = None

    @functools.cached_property
    def state(self) -> Any:
        return self.parts.init(self.keys)

    def run(self, count: int) -> "Small":
        self.state, self.metrics = self.layout.run(self.state, self.iteration, count, self.total)
        self.iteration += count
        return self

    def handed_to(self, other: "Small", folder: pathlib.Path) -> "Small":
        """Saves this run and closes it; returns the other one, which goes on from what was saved."""
        path = checkpoint.save(folder, self.iteration, self.layout.snapshot(self.state), {})
        self.layout.close()
        other.state, _ = checkpoint.restore(path, other.layout.template(other.keys))
        other.iteration = self.iteration
        return other

    @property
    def params(self) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.state.learner.params)]


def without_rounding(state: Any) -> Any:
    """Leaves out what moments keep of sums that were rounded, which is nothing but rounding."""

    def whole(x: Any) -> Any:
        return x._replace(lost=()) if isinstance(x, moments.Moments) else x

    return jax.tree.map(whole, state, is_leaf=lambda x: isinstance(x, moments.Moments))


Train = Callable[..., runner.Run]


def train_in(
    root: pathlib.Path,
    system: str = "ppo",
    env: str = "toy:walk",
    *,
    folder: str | pathlib.Path = ".",
    devices: Sequence[jax.Device] | None = None,
    stop: stopping.StopToken | None = None,
    callbacks: Sequence[session.Callback] = (),
    **settings: Any,
) -> runner.Run:
    """Trains a small run, or goes on with one, as a library does; as a script does where a token may stop it.

    Args:
        root: the folder of the test.
        system: row of the table of systems; its sizes are those in `SMALL`.
        env: environment as suite:name.
        folder: of the run, in `root`.
        devices: to choose from; by default the first.
        stop: ends the run where it is requested.
        callbacks: as `jaxrl_dist.train` takes them.
        **settings: by flag name, above those in `SMALL`.
    """
    out, devices = str(root / folder), devices or jax.devices()[:1]
    named = {**SMALL[system], **settings}
    if stop is None:
        return jaxrl_dist.train(system, env, devices=devices, settings=named, callbacks=callbacks, out=out)
    named |= {"system": system, "env": env, "out": out}
    return runner.drive(named, devices, stop, display=False, callbacks=callbacks)


@pytest.fixture
def train(tmp_path: pathlib.Path) -> Train:
    """The function `train(system, env, folder=, devices=, stop=, callbacks=, **settings)`, in the test's folder."""
    return functools.partial(train_in, tmp_path)


@contextlib.contextmanager
def refused(*words: str) -> Iterator[None]:
    """Checks that a usage error of one line is raised which has these words: flags and values, as "--seed=-1"."""
    with pytest.raises(errors.UsageError) as error:
        yield
    text = errors.as_typed(error.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.fixture(scope="module", autouse=True)
def few_programs() -> Iterator[None]:
    """Forgets compiled programs between modules, where there are many."""
    yield
    # A context keeps the constants of its programs.
    _CONTEXTS.__dict__.clear()
    with open("/proc/self/maps", "rb") as mappings:
        count = sum(1 for _ in mappings)
    if count > _MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def small() -> type[Small]:
    """The class `Small(system, env, num_devices, settings)`."""
    return Small


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every environment one whose steps are preceded by a function's call; returns those that are made."""

    def use(before_step: Any) -> list[host.Walk]:
        made: list[host.Walk] = []
        monkeypatch.setattr(envs, "make", lambda name, params=None: host.task(before_step, made))
        return made

    return use


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The site, made as `make docs` makes it: a warning ends it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "-c", "docs", ".", str(folder)]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


# Of a module: while it is open, Playwright's event loop runs in this thread, and others need one of their own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's Chromium, without a window, as Playwright drives it."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs the package playwright: pip install playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()
