"""A learning curve in a notebook that grows while a run trains."""

import importlib
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from jaxrl_dist import errors
from jaxrl_dist.analysis import plots


class LiveCurve:
    """A callback of `train` that draws the evaluations of the call into one picture of a notebook, as they come.

    Args:
        title: above the picture.

    Raises:
        UsageError: IPython is not installed, so this is no notebook.

    Example:
        >>> import jaxrl_dist
        >>> curve = jaxrl_dist.LiveCurve("PPO walks")  # for train(..., callbacks=[curve])
        >>> curve({"kind": "train", "env_steps": 512})  # not an evaluation
    """

    def __init__(self, title: str = "") -> None:
        try:
            self._notebook = importlib.import_module("IPython.display")
        except ModuleNotFoundError:
            raise errors.UsageError(
                "LiveCurve() draws in a notebook, and IPython is not installed; learning_curve.png in the run's folder "
                "shows the same at the end"
            ) from None
        self._title = title
        self._records: list[Mapping[str, Any]] = []
        self._shown: Any = None

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Draws the curve anew if the record is of an evaluation."""
        if record["kind"] != "eval":
            return
        self._records.append(record)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "curve.png"
            plots.learning_curve({"evaluations": self._records}, path, self._title)
            picture = self._notebook.Image(data=path.read_bytes())
        if self._shown is None:
            self._shown = self._notebook.display(picture, display_id=True)
        else:
            self._shown.update(picture)
