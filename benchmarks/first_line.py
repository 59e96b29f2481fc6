"""Time from the start of a training command to its first line of metrics, with a cold and with a warm compile cache."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import pairs

ROOT = pathlib.Path(__file__).resolve().parents[1]


class FirstLine(NamedTuple):
    """Seconds from the launch of the process: to the end of imports, to the first line cold, and warm."""

    import_s: float
    cold_s: float
    warm_s: float


def measure(python: str, flags: tuple[str, ...], timeout_s: float = 180.0) -> FirstLine:
    """Measures once: imports alone, then the same training command twice with one fresh cache.

    Args:
        python: interpreter of the project.
        flags: of `scripts/train.py`, without `--out`.

    Raises:
        pairs.WorkerError: the command ended or was silent for `timeout_s`.
    """
    started = time.perf_counter()
    imports = "import gymnax; from jaxrl_dist.training import runner; import jaxrl_dist.envs.suites.gymnax"
    process = subprocess.run(
        [python, "-c", imports], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if process.returncode:
        raise pairs.WorkerError(f"importing the project fails: {process.stderr.strip().splitlines()[-1]}")
    import_s = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as scratch:
        cold_s = seconds_to_first_line(python, flags, pathlib.Path(scratch), "cold", timeout_s)
        warm_s = seconds_to_first_line(python, flags, pathlib.Path(scratch), "warm", timeout_s)
    return FirstLine(import_s, cold_s, warm_s)


def seconds_to_first_line(
    python: str, flags: tuple[str, ...], scratch: pathlib.Path, name: str, timeout_s: float
) -> float:
    """Runs the training script and watches its `metrics.jsonl`.

    The run is then stopped; a run that ends by itself in time counts too. The compile cache lies in `scratch`.

    Raises:
        pairs.WorkerError: no line came.
    """
    out = scratch / name
    cache = str(scratch / "cache")
    environ = {**os.environ, "XDG_CACHE_HOME": cache, "JAX_COMPILATION_CACHE_DIR": cache}
    command = [python, str(ROOT / "scripts" / "train.py"), *flags, f"--out={out}"]
    with (scratch / f"{name}.log").open("w+b") as log:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)
        try:
            while not _has_line(out / "metrics.jsonl"):
                if process.poll() is not None:
                    log.seek(0)
                    tail = log.read().decode(errors="replace").strip().splitlines()[-3:]
                    raise pairs.WorkerError(f"train.py ended with code {process.returncode}: {' / '.join(tail)}")
                if time.perf_counter() - started > timeout_s:
                    raise pairs.WorkerError(f"train.py wrote no line of metrics for {timeout_s:g} s")
                time.sleep(0.01)
            return time.perf_counter() - started
        finally:
            _stop(process)


def _has_line(path: pathlib.Path) -> bool:
    try:
        return b"\n" in path.read_bytes()
    except FileNotFoundError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Lets a run save and end, so that its compile cache is whole; kills it after a minute."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(60.0)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    print(measure(sys.executable, tuple(sys.argv[1:])))
