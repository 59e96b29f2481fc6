"""Rows that are kept on the host: their types, and the account of their episodes."""

from typing import Any

import numpy as np
import pytest
from fakes import host

from jaxrl_dist import envs
from jaxrl_dist.parallel import unroll


def test_rows_keep_the_types_of_the_first_and_reals_become_f32() -> None:
    rows = unroll.Rows(2)
    rows.allocate((np.ones(3, np.float64), np.ones((3, 2), np.uint8)), 3)
    for t in range(3):
        rows.write(t, (np.full(3, t + 0.1), np.full((3, 2), t, np.uint8)))
    rows.write((np.array([1, 2]), np.array([0, 2])), (np.array([5.0, 6.0]), np.zeros((2, 2), np.uint8)))
    numbers, pictures = rows.tree()
    assert numbers.dtype == np.float32 and pictures.shape == (3, 3, 2)
    np.testing.assert_array_equal(numbers, np.float32([[0.1] * 3, [5.0, 1.1, 1.1], [2.1, 2.1, 6.0]]))
    with pytest.raises(TypeError, match=r"float32\[3, 2\].*uint8"):
        rows.write(1, (np.zeros(3), np.zeros((3, 2), np.float32)))


def test_columns_of_one_environment_are_accounted_for_in_order() -> None:
    environment = host.Walk(np.arange(2), 60.0, lambda walk: None)
    environment.reset()
    walked = [environment._row(environment._all)]
    for _ in range(8):
        walked.append(environment.raw_recv()[0])
    # Rows 0 to 4 and 4 to 8 of environment 1, which ends with row 7 and begins anew with row 8.
    columns: Any = [[walked[first + t] for t in range(5)] for first in (0, 4)]

    def stacked(field: str) -> np.ndarray:
        return np.stack([[getattr(row, field)[1] for row in column] for column in columns], 1)

    raw = envs.RawStep(*map(stacked, envs.RawStep._fields))
    acted = np.zeros((5, 2), np.int32), ()
    steps, sums = unroll.finished(environment, (raw, acted), np.full((5, 2), 3, np.int32), np.array([1, 1]))
    assert [x.item() for x in sums] == [1, host.LENGTH, host.LENGTH, 7, 0]
    assert (steps.version == 3).all() and steps.timestep.step_type[:, 1].tolist() == [1, 1, 1, 2, 0]
