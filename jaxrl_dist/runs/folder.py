"""The run folder of a command: its name, and the configuration of the run that it holds. Imports no JAX."""

import json
import pathlib
from typing import Any

from jaxrl_dist import errors
from jaxrl_dist.settings.resolve import Resolved


def of(settings: Resolved) -> pathlib.Path:
    """Returns the folder of a run: `--out`, or one named after system, environment and seed under `runs`."""
    env = settings["env"].replace(":", "-").replace("/", "-")
    return pathlib.Path(settings["out"] or f"runs/{settings['system']}-{env}-seed{settings['seed']}")


def held(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns the `config.json` of the run that a folder holds, None where nothing was saved or recorded of one.

    Raises:
        UsageError: it cannot be read.
    """
    path, records = folder / "config.json", folder / "metrics.jsonl"
    has_begun = any(folder.glob("checkpoints/*")) or (records.is_file() and records.stat().st_size > 0)
    if not path.exists() or not has_begun:
        return None
    try:
        contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not {"family", "settings"} <= contents.keys():
            raise LookupError("not what a run writes")
    except (OSError, ValueError, LookupError, AttributeError) as error:
        raise errors.UsageError(f"{path} cannot be read ({error}): give another --out") from None
    return contents
