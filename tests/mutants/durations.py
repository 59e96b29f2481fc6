"""A pytest plugin: writes how long each test took, set-up included, into the file that `MUTANTS_DURATIONS` names."""

import json
import os
import pathlib
from typing import Any

_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Adds a phase of a test."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session: Any) -> None:
    """Writes the file, in the process that all reports reach."""
    if not hasattr(session.config, "workerinput"):
        pathlib.Path(os.environ["MUTANTS_DURATIONS"]).write_text(json.dumps(_seconds))
