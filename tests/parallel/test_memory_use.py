"""The memory of a replay is known beforehand, by part, and a replay that does not fit is refused."""

import json
import math
import os
import pathlib
import subprocess
import sys
import time

import conftest
import jax
import numpy as np
import pytest

from jaxrl_dist.parallel import memory_use
from jaxrl_dist.processes import cgroups

CARTPOLE = "gymnax:CartPole-v1"

# Fills a replay of some 400 MB, and prints the estimate and what the process really gained.
FILL = """
import jax, sys
import numpy as np
sys.path[:0] = [{tests!r}, {root!r}]
import conftest
from jaxrl_dist.parallel import memory_use as memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

run = conftest.Small("r2d2", "gymnax:Breakout-MinAtar", 1, {{"replay.capacity": 2**20, "network.torso": "minatar_cnn"}})
estimate = sum(memory.replay_parts(run.layout.template(run.keys).replay).values())
gained = []
for _ in range(2):
    before, state = resident(), run.layout.init(run.keys)
    # Pages of zeros are there once they are touched; the first round also compiles.
    for leaf in jax.tree.leaves(state.replay):
        np.asarray(leaf).view(np.uint8).reshape(-1)[::1024].sum()
    gained.append((resident() - before, state))
print(estimate, gained[1][0])
"""


@pytest.mark.slow
def test_parts_are_those_of_the_arrays(small):
    for num_devices in (1, 2):
        run = small("r2d2", CARTPOLE, num_devices, {})
        parts = memory_use.replay_parts(run.layout.template(run.keys).replay)
        arrays = jax.tree.leaves(run.state.replay)
        assert sum(parts.values()) * num_devices == sum(leaf.nbytes for leaf in arrays)
        # 1024 rows of four f32.
        assert parts["observations"] * num_devices == 1024 * 16
        # A state of 2 × 8 f32 and an action for each of 1024 / 4 unrolls.
        assert parts["recurrent states"] * num_devices == 256 * (2 * 8 * 4 + 4)
        assert set(parts) == {"observations", "other rows", "recurrent states", "priorities"}
    assert memory_use.replay_parts(small("ppo", CARTPOLE, 1, {}).state.replay) == {}


@pytest.mark.slow
def test_the_estimate_is_what_the_process_gains(tmp_path: pathlib.Path) -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    code = FILL.format(tests=str(root / "tests"), root=str(root))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    estimate, gained = map(int, result.stdout.split())
    assert estimate > 3e8
    assert abs(gained - estimate) < 0.05 * estimate


def test_a_million_frames_take_seven_gigabytes():
    """Frames are stored once, unstacked: 84 × 84 bytes a row."""
    from jaxrl_dist import types
    from jaxrl_dist.replay import ring

    rows = 10**6
    frames = jax.ShapeDtypeStruct(
        (1, 1, rows, 84, 84, 1), "uint8", sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
    timestep = types.TimeStep((), (), (), frames, ())
    state = ring.RingState(types.Step(timestep, (), (), ()), (), (), (), ())
    assert memory_use.replay_parts(state) == {"observations": 7_056_000_000}


@pytest.mark.slow
def test_replays_of_workers_count_on_their_devices(small):
    shared, apart = (
        small("gorila", CARTPOLE, 1, {"layout.worker_devices": devices}) for devices in ("cpu:0", "cpu:0,cpu:1")
    )
    one, both = (memory_use.replay_parts(run.layout.template(run.keys).replay) for run in (apart, shared))
    assert set(one) == {"observations", "other rows"} and both == {name: 2 * size for name, size in one.items()}
    # 512 rows of four numbers for two of the four workers.
    assert one["observations"] == 512 * 16
    assert memory_use.replay_parts(shared.state.replay) == both
    found = [memory_use.devices_of(run.layout.template(run.keys).replay) for run in (apart, shared)]
    assert found == [jax.devices()[:2], jax.devices()[:1]]


def test_what_does_not_fit_is_refused_with_the_bytes_and_the_capacity_that_does(small, monkeypatch):
    run = small("dqn", CARTPOLE, 2, {})
    settings, state = run.parts.settings, run.layout.template(run.keys).replay
    needed = sum(memory_use.replay_parts(state).values())
    assert memory_use.devices_of(state) == run.layout.mesh.local_devices
    monkeypatch.setattr(memory_use, "free_of_host", lambda: 2 * needed)
    memory_use.check(settings, state)
    monkeypatch.setattr(memory_use, "free_of_host", lambda: 2 * needed - 1)
    # 1024 rows; 992 is the next multiple of 8 environments × 4 rows.
    with conftest.refused("--replay.capacity=1024 ", " 16.5 KiB ", " 992 "):
        memory_use.check(settings, state)
    # A multiple of 8 environments of three agents × 4 rows.
    with conftest.refused("--replay.capacity=1024 ", " 960 "):
        memory_use.check(settings, state, 3)
    monkeypatch.setattr(memory_use, "free_of_host", lambda: 10)
    with conftest.refused("--replay.capacity=1024 ", " 0.0 KiB "):
        memory_use.check(settings, state)


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        # Version 2: 100 - 70 + 10 of its own group, more of the one above.
        (
            "0::/a/b\n",
            {"a/b/memory.max": "100", "a/b/memory.current": "70", "a/b/memory.stat": "x 5\ninactive_file 10"},
            40,
        ),
        # The group above has less left.
        (
            "0::/a/b\n",
            {
                **{"a/b/memory.max": "100", "a/b/memory.current": "70", "a/b/memory.stat": "inactive_file 10"},
                **{"a/memory.max": "200", "a/memory.current": "190", "a/memory.stat": "inactive_file 1"},
            },
            11,
        ),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": "70", "a/memory.stat": "inactive_file 1"}, 1000 * 1024),
        ("0::/a\n", {"a/memory.max": "10", "a/memory.current": "70", "a/memory.stat": "inactive_file 1"}, 0),
        # Version 1 in a container, which sees its own group at the root, under the path of the machine outside.
        (
            "9:name=systemd:/\n4:cpu,memory:/docker/x\n0::/\n",
            {
                "memory/memory.limit_in_bytes": "100",
                **{"memory/memory.usage_in_bytes": "70", "memory/memory.stat": "total_inactive_file 2"},
            },
            32,
        ),
        # A controller of another name is none of memory.
        (
            "4:cpu:/\n",
            {
                "memory/memory.limit_in_bytes": "100",
                **{"memory/memory.usage_in_bytes": "70", "memory/memory.stat": "total_inactive_file 2"},
            },
            1000 * 1024,
        ),
    ],
)
def test_a_container_s_limit_is_heeded(membership, files, expected, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    (tmp_path / "cgroup").write_text(membership)
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "groups")
    monkeypatch.setattr(memory_use, "_MEMORY", tmp_path / "meminfo")
    assert memory_use.free_of_host() == expected
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "none")
    assert memory_use.free_of_host() == 1000 * 1024
    monkeypatch.setattr(memory_use, "_MEMORY", tmp_path / "none")
    assert memory_use.free_of_host() == math.inf


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "20000 100000"}, 1),
        ("0::/outside\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/a\n", {"a/cpu.max": "9900000 100000"}, 8),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "50000"}, 3),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "50000"}, 8),
        ("3:memory:/a\n", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "50000"}, 8),
    ],
)
def test_a_container_s_quota_of_cores_is_heeded(membership, files, expected, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    (tmp_path / "cgroup").write_text(membership)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert cgroups.num_cores() == expected
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "none")
    assert cgroups.num_cores() == 8


def _resident(pid: int) -> int:
    """Returns the bytes of a process; 0 once it is gone."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError):
        return 0


@pytest.mark.slow
def test_a_run_with_a_slow_learner_stays_flat(tmp_path: pathlib.Path) -> None:
    """Unrolls of 3 MB pass from an actor to a learner that takes longer than playing them."""
    root = pathlib.Path(__file__).resolve().parents[2]
    flags = ["--system=ppo", "--env=gymnax:Breakout-MinAtar", "--layout=sebulba", "--steps=300_000"]
    flags += ["--env.num_envs=16", "--learner.epochs=8", "--network.hidden_sizes=64", "--evaluation.episodes=1"]
    flags += ["--evaluation.interval_steps=10_000_000", "--log.progress=false", f"--out={tmp_path / 'run'}"]
    command = [sys.executable, str(root / "scripts" / "train.py"), *flags]
    sizes = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            sizes.append(_resident(process.pid))
            time.sleep(0.1)
    assert process.returncode == 0
    shares = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert np.mean([row["share_learning"] for row in shares if "share_learning" in row]) > 0.5
    # Least size in each tenth of the run; the first ones compile, the last ones evaluate.
    tenths = [part.min() for part in np.array_split(np.asarray(sizes, float), 10)]
    assert max(tenths[5:8]) < 1.01 * max(tenths[3:5]), [f"{x / 2**20:.1f}" for x in tenths]


FREED = """
import pathlib, resource
from jaxrl_dist.parallel import memory_use

assert memory_use.keep_flat()

def pages():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1])

def faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        block = b"x" * size
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = pages()
print(faults(12 * 2**20), pages() - before)
before = pages()
print(faults(20 * 2**20), pages() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library has other parameters")
def test_the_c_library_keeps_blocks_of_temporaries_and_gives_unrolls_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True)
    kept, given_back = (tuple(map(int, line.split())) for line in done.stdout.splitlines())
    pages = 2**20 // os.sysconf("SC_PAGESIZE")
    # Got once from the system, and 20 times.
    assert kept[0] < 2 * 12 * pages and kept[1] < 2 * 12 * pages
    assert given_back[0] > 19 * 20 * pages and given_back[1] < 20 * pages
