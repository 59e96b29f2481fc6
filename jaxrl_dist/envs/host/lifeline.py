"""Ends a child process when this process is gone, even if it was killed and no handler of its own could run."""

import contextlib
import fcntl
import os
from collections.abc import Iterator


@contextlib.contextmanager
def pipe() -> Iterator[int]:
    """Yields the reading end of a pipe, whose other end closes when the context or this process ends."""
    ends = os.pipe()
    try:
        yield ends[0]
    finally:
        for end in ends:
            os.close(end)


def tie(pipe: int, process: int, number: int) -> None:
    """Makes the kernel signal a process when the writing end of a pipe closes, which its parent alone holds.

    The process need not run any code for it, so it ends even if it never returns to its interpreter.
    `PR_SET_PDEATHSIG` would fire when the thread that made the process ends.

    Args:
        pipe: reading end of the pipe, which the process has inherited; nothing is ever written to the pipe.
        process: number of the process, or the negative number of a process group.
        number: number of the signal.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, process)
    fcntl.fcntl(pipe, fcntl.F_SETSIG, number)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
