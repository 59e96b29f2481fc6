"""Sends the records of a run to Weights & Biases and to MLflow, in threads of their own, so that the run never waits.

The tracker's id of the run is kept in the run folder, in `wandb_run.json` or `mlflow_run.json`: a resumed run goes on
under this id, and repeated records are not sent twice. A run that begins anew in its folder gets another id.
"""

import json
import os
import pathlib
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl_dist import errors
from jaxrl_dist.runs import files, folder, metrics, software

# Records that may wait for a tracker; a run has a few hundred.
_LONGEST_QUEUE = 1000
_CLOSE_TIMEOUT_S = 30.0
# MLflow takes at most so many settings in one call, and texts of so many characters.
# Limits of one of its calls: settings, characters of one of their values, and numbers.
_MLFLOW_BATCH, _MLFLOW_LONGEST, _MLFLOW_MOST_NUMBERS = 100, 500, 1_000


class Session(NamedTuple):
    """Facts about the run that a tracker gets when a session begins.

    Attributes:
        destination: project or experiment.
        folder: run folder.
        title: title of the run.
        settings: flag name -> value.
    """

    destination: str
    folder: pathlib.Path
    title: str
    settings: Mapping[str, Any]


class Tracker:
    """Takes the records of one session, and sends them from its thread."""

    can_recover = False
    consequence = f"without further records there; {metrics.FILE_NAME} has them all"

    def __init__(self, name: str, session: Session) -> None:
        """Begins to connect to `wandb` or `mlflow`; a failure is raised at a later record, or at the end."""
        self._records: queue.Queue[metrics.Record] = queue.Queue(_LONGEST_QUEUE)
        self._error: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(name, session), name=name, daemon=True)
        self._thread.start()

    def write(self, record: metrics.Record) -> None:
        """Hands a record to the thread.

        Raises:
            Exception: the tracker raised it in its thread.
            TimeoutError: too many records wait.
        """
        if self._error is not None:
            raise self._error
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._error = TimeoutError(f"{_LONGEST_QUEUE} records wait for it")
            raise self._error from None

    def close(self) -> None:
        """Waits until all records are sent, but not for ever.

        Raises:
            Exception: the tracker raised it in its thread.
            TimeoutError: it does not answer.
        """
        self._is_over.set()
        if self._error is None:
            self._thread.join(_CLOSE_TIMEOUT_S)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise TimeoutError(f"no answer for {_CLOSE_TIMEOUT_S:.0f} s, {self._records.qsize()} records not sent")

    def _work(self, name: str, session: Session) -> None:
        try:
            self._send_all(name, session)
        except Exception as error:
            self._error = error

    def _send_all(self, name: str, session: Session) -> None:
        path = _file(session.folder, name)
        kept = _kept(path, session.destination)
        connection = _CONNECT[name](session, kept.get("id"))
        sent = dict(kept.get("sent", {}))
        while True:
            try:
                record = self._records.get(timeout=0.1)
            except queue.Empty:
                if self._is_over.is_set():
                    break
                continue
            if record["env_steps"] > sent.get(record["kind"], -1):
                connection.send(record)
                sent[record["kind"]] = record["env_steps"]
                contents = {"destination": session.destination, "id": connection.id, "sent": sent}
                folder.write_text(path, json.dumps(contents) + "\n")
        connection.finish()


def forget(directory: pathlib.Path) -> None:
    """Removes the trackers' ids from a run folder, so that its next session is a new run there.

    Raises:
        OSError: one cannot be removed.
    """
    for name in software.TRACKERS:
        path = _file(directory, name)
        with folder.named(path):
            path.unlink(missing_ok=True)


class _Connection(NamedTuple):
    """An open run of a tracker: its id there, a function that sends a record, and one that ends the run."""

    id: str
    send: Callable[[metrics.Record], None]
    finish: Callable[[], object]


def _wandb(session: Session, known_id: str | None) -> _Connection:
    """Opens a run of Weights & Biases; `WANDB_MODE=offline` keeps it in the run folder."""
    import wandb

    mode = os.environ.get("WANDB_MODE", "online")
    if mode == "online" and not wandb.login(prompt=False):
        raise RuntimeError("not logged in: run `wandb login`, or set WANDB_MODE=offline")
    run_id = known_id or uuid.uuid4().hex
    run = wandb.init(
        project=session.destination,
        id=run_id,
        name=session.title,
        resume="allow",
        reinit="create_new",
        dir=str(session.folder),
        config=dict(session.settings),
        settings=wandb.Settings(silent=True, console="off"),
    )
    run.define_metric("*", step_metric="env_steps")

    def send(record: metrics.Record) -> None:
        run.log({"env_steps": record["env_steps"], **dict(metrics.scalars(record))})

    return _Connection(run_id, send, run.finish)


def _mlflow(session: Session, known_id: str | None) -> _Connection:
    """Opens a run of MLflow, at the place of its own `MLFLOW_TRACKING_URI`."""
    from mlflow import entities, tracking

    client = tracking.MlflowClient()
    run_id = known_id
    if run_id is None:
        experiment = client.get_experiment_by_name(session.destination)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(session.destination)
        run_id = client.create_run(experiment_id, run_name=session.title).info.run_id
        values = [entities.Param(name, str(value)[:_MLFLOW_LONGEST]) for name, value in session.settings.items()]
        for start in range(0, len(values), _MLFLOW_BATCH):
            client.log_batch(run_id, params=values[start : start + _MLFLOW_BATCH])
    else:
        client.update_run(run_id, status="RUNNING")

    def send(record: metrics.Record) -> None:
        now_ms, step = time.time_ns() // 10**6, record["env_steps"]
        numbers = [entities.Metric(name, value, now_ms, step) for name, value in metrics.scalars(record)]
        for start in range(0, len(numbers), _MLFLOW_MOST_NUMBERS):
            client.log_batch(run_id, metrics=numbers[start : start + _MLFLOW_MOST_NUMBERS])

    return _Connection(run_id, send, lambda: client.set_terminated(run_id))


_CONNECT: Mapping[str, Callable[[Session, str | None], _Connection]] = {"wandb": _wandb, "mlflow": _mlflow}


def _file(directory: pathlib.Path, name: str) -> pathlib.Path:
    return directory / f"{name}_run.json"


def _kept(path: pathlib.Path, destination: str) -> dict[str, Any]:
    """Reads the file of an earlier session; empty if there is none, or its records went elsewhere."""
    try:
        kept = files.read_json(path)
    except errors.UsageError:
        return {}
    return kept if kept.get("destination") == destination else {}
