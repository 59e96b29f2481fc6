"""Whether a command may write to its run folder: a new one, one of the user's, or that of the same run."""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl_dist import errors, faults
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import resolve
from jaxrl_dist.settings.resolve import Resolved
from jaxrl_dist.systems import catalogue


def check_folder(flags: Mapping[str, Any], settings: Resolved) -> pathlib.Path:
    """Returns the run folder, which may be missing, unless it holds another run.

    Args:
        flags: flag name -> text or value, as given.
        settings: that these give before the environment is known.

    Raises:
        UsageError: it holds a run of another configuration.
    """
    folder = folders.of(settings)
    held = folders.held(folder)
    if held is None:
        return folder
    changes = catalogue.resolved_as_in(held, flags, settings).difference(held).identity
    if changes:
        raise errors.UsageError(
            f"--out={folder} holds a run of another configuration ({resolve.describe(changes)}); "
            "give its settings to resume it, or another --out"
        )
    return folder


@contextlib.contextmanager
def open_folder(flags: Mapping[str, Any], settings: Resolved) -> Iterator[pathlib.Path]:
    """Makes the run folder where it is missing, and checks that this run may write to it; arguments as `check_folder`.

    A run that is refused within the context leaves no folder that was not there before.

    Raises:
        UsageError: the folder cannot be written, holds a run of another configuration, or is in use.
    """
    folder = check_folder(flags, settings)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(faults.made(folder))
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            with faults.lock(folder):
                pass
        except errors.LockError as error:
            raise errors.UsageError(f"--out={folder} is in use by a running trainer: {error}") from None
        except OSError as error:
            raise errors.UsageError(f"--out={folder} cannot be written: {error.strerror or error}") from None
        yield folder
