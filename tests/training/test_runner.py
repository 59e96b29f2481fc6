"""The set-up of a command's process."""

import os
from typing import Any

import jax
import pytest

from jaxrl_dist.training import runner


def test_commands_use_each_core_by_the_threads_that_call(monkeypatch: pytest.MonkeyPatch) -> None:
    updated: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", updated.__setitem__)
    runner.use_cores()
    cores = len(os.sched_getaffinity(0))
    assert updated == {"jax_num_cpu_devices": cores, "jax_cpu_enable_async_dispatch": False}
