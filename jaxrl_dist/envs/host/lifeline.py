"""Ends a process that this one has started when this one is gone, however it died: no handler of ours runs then."""

import fcntl
import os


def tie(pipe: int, process: int, number: int) -> None:
    """Makes the kernel send a signal when the writing end of a pipe is closed, which this process alone holds.

    It needs no code of the process that gets it, so one that never returns to its interpreter ends as well.
    `PR_SET_PDEATHSIG` would fire when the thread that made the process ends.

    Args:
        pipe: descriptor to read from, which the other process has inherited; nothing is ever written to it.
        process: number of that process, or less than 0 for its process group.
        number: of the signal.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, process)
    fcntl.fcntl(pipe, fcntl.F_SETSIG, number)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
