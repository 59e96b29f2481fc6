"""Tests of the folder lock, of the stop token with real signals, and that nothing here can run what it reads."""

import ast
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import conftest
import pytest

from jaxrl_dist import errors
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.training import stop

ROOT = pathlib.Path(__file__).resolve().parents[2]


def start(code: str, *args: object) -> subprocess.Popen[str]:
    """Starts a Python process that can import the package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_import_is_light() -> None:
    process = start("import sys, jaxrl_dist.training.stop; print(sorted({'jax', 'numpy', 'orbax'} & set(sys.modules)))")
    assert process.communicate(timeout=conftest.SOON_S)[0].strip() == "[]"


def test_lock_is_exclusive_within_a_process_and_released(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "made" / "here"
    with run_folder.lock(folder):
        with pytest.raises(errors.LockError, match=rf"process {os.getpid()}\b"), run_folder.lock(folder):
            pass
        with run_folder.lock(tmp_path / "other"):
            pass
    with run_folder.lock(folder):
        pass


def test_lock_is_released_by_an_exception(tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeyError), run_folder.lock(tmp_path):
        raise KeyError
    with run_folder.lock(tmp_path):
        pass


def test_a_lock_leaves_no_file_and_takes_none_of_another_owner(tmp_path: pathlib.Path) -> None:
    path = tmp_path / run_folder.LOCK_NAME
    with run_folder.lock(tmp_path):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    assert not path.exists()
    with run_folder.lock(tmp_path):
        # Somebody deletes the folder's files, and another trainer begins in it.
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock, calls = tmp_path / run_folder.LOCK_NAME, fcntl.flock, []

    def flock_once_it_is_gone(handle: object, operation: int) -> None:
        if not calls:
            path.unlink()
        calls.append(operation)
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock_once_it_is_gone)
    with run_folder.lock(tmp_path):
        assert len(calls) == 2 and path.exists()
        with pytest.raises(errors.LockError), run_folder.lock(tmp_path):
            pass


def test_what_is_made_goes_again_where_it_is_empty(tmp_path: pathlib.Path) -> None:
    with run_folder.made(tmp_path / "a" / "b" / "c"):
        (tmp_path / "a" / "kept").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kept"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyError), run_folder.made(tmp_path / "mine"):
        raise KeyError
    assert (tmp_path / "mine").is_dir()
    with pytest.raises(OSError), run_folder.made(tmp_path / "new" / ("x" * 300)):
        pass
    assert not (tmp_path / "new").exists()


def test_exactly_one_of_twenty_gets_the_lock(tmp_path: pathlib.Path) -> None:
    code = """
        import os, sys, time
        from jaxrl_dist.runs import folder as run_folder
        from jaxrl_dist import errors
        folder, go = sys.argv[1:]
        while not os.path.exists(go):
            time.sleep(0.01)
        try:
            with run_folder.lock(folder):
                print("won", os.getpid(), flush=True)
                time.sleep(600)
        except errors.LockError as error:
            print("lost", error, flush=True)
    """
    go = tmp_path / "go"
    processes = [start(code, tmp_path / "run", go) for _ in range(20)]
    try:
        time.sleep(1.0)
        go.touch()
        lines = [process.stdout.readline() for process in processes if process.stdout]
        winners = [line.split()[1] for line in lines if line.startswith("won")]
        assert len(winners) == 1
        losers = [line for line in lines if line.startswith("lost")]
        assert len(losers) == 19
        assert all(f"process {winners[0]} on" in line for line in losers)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    with run_folder.lock(tmp_path / "run"):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_does_not_keep_the_lock(tmp_path: pathlib.Path) -> None:
    code = """
        import os, sys, time
        from jaxrl_dist.runs import folder
        reader, writer = os.pipe()
        with folder.lock(sys.argv[1]):
            worker = os.fork()
            if worker == 0:
                os.write(writer, b"started")
                time.sleep(600)
            # Only a worker that has begun to run has let go of the lock.
            os.read(reader, 7)
            print(worker, flush=True)
            os.kill(os.getpid(), 9)
    """
    process = start(code, tmp_path)
    assert process.stdout
    worker = int(process.stdout.readline())
    try:
        process.wait(timeout=conftest.SOON_S)
        with run_folder.lock(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        process.communicate()


def test_a_plain_token_needs_no_signals() -> None:
    token = stop.StopToken()
    assert (token.requested, token.exit_code) == (False, 0)
    token.request()
    assert (token.requested, token.exit_code) == (True, 143)
    token.request(signal.SIGINT)
    assert token.exit_code == 143


def test_install_restores_what_was_set() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    threads = threading.active_count()
    token = stop.StopToken()
    with token.install() as installed:
        assert installed is token
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads
    assert not token.requested


def test_install_outside_the_main_thread_sets_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with stop.StopToken().install() as token:
            seen.append((token.requested, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=conftest.SOON_S)
    assert seen == [(False, before)]


POLLING = """
    import sys, time
    from jaxrl_dist.training import stop
    token = stop.StopToken()
    with token.install():
        print("ready", flush=True)
        while not token.requested:
            time.sleep(0.01)
        print("requested", flush=True)
        time.sleep(float(sys.argv[1]))
    print("saved", flush=True)
    sys.exit(token.exit_code)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_asks_and_the_run_leaves_with_its_code(number: int, code: int) -> None:
    process = start(POLLING, 0.0)
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, error = process.communicate(timeout=conftest.SOON_S)
    assert (out, error, process.returncode) == ("requested\nsaved\n", "", code)


def test_a_second_sigterm_does_not_cut_the_save_short() -> None:
    process = start(POLLING, 0.5)
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "requested\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=conftest.SOON_S)
    assert (out, error, process.returncode) == ("saved\n", "", 143)


def test_a_second_interrupt_ends_at_once_even_inside_native_code() -> None:
    code = """
        import hashlib
        from jaxrl_dist.training import stop
        with stop.StopToken().install():
            print("ready", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**30)
    """
    process = start(code)
    assert process.stdout and process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=conftest.SOON_S)
    assert (process.returncode, error) == (130, "")


def test_a_second_interrupt_leaves_a_terminal_with_its_cursor() -> None:
    code = """
        import os, signal, time
        from jaxrl_dist.training import stop
        with stop.StopToken().install():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
    """
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, stdout=theirs, timeout=conftest.SOON_S, check=False, cwd=ROOT)
    os.close(theirs)
    assert (done.returncode, os.read(ours, 100)) == (130, b"\x1b[?25h\r\n")
    os.close(ours)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_dies_of_signals_and_does_not_tell_the_parent() -> None:
    code = """
        import os, signal, time, warnings
        from jaxrl_dist.training import stop
        # Python 3.12 warns of every fork beside a thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        token = stop.StopToken()
        with token.install():
            reader, writer = os.pipe()
            worker = os.fork()
            if worker == 0:
                os.write(writer, b"started")
                time.sleep(600)
            os.read(reader, 7)
            os.kill(worker, signal.SIGTERM)
            status = os.waitpid(worker, 0)[1]
            time.sleep(0.2)
            print(os.WTERMSIG(status), token.requested)
    """
    out, error = start(code).communicate(timeout=conftest.SOON_S)
    assert (out.split(), error) == (["15", "False"], "")


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def forbidden(source: str) -> list[str]:
    """Lists what could run code that was read from a file: unpickling, unsafe yaml, eval and exec."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append("allow_pickle")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_CALLS or called.startswith(("yaml.load", "yaml.unsafe_load", "yaml.full_load")):
                found.append(called)
    return found


def test_no_code_of_the_package_runs_what_it_reads() -> None:
    files = sorted(path for folder in ("jaxrl_dist", "scripts") for path in (ROOT / folder).rglob("*.py"))
    assert len(files) > 5
    found = {str(path.relative_to(ROOT)): names for path in files if (names := forbidden(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "numpy.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "yaml.load_all(text)",
        "yaml.unsafe_load(text)",
        "eval(text)",
        "exec(text)",
    ],
)
def test_the_search_finds_each_forbidden_thing(source: str) -> None:
    assert forbidden(source)
    assert not forbidden("ast.literal_eval(text); model.eval(); re.compile(text)")
