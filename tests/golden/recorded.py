"""Reads what a training run left in its folder, without the package, since that differs from commit to commit."""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

# As in the package: larger arrays are stored by index, all others in one.
_PACKED_BYTES = 2**20


class Recorded(NamedTuple):
    """Holds what a run recorded.

    Attributes:
        arrays: by path: all of the newest checkpoint below "state", parameters below "latest" and "best".
        records: lines of `metrics.jsonl`.
        numbers: by name: "progress/..." as saved beside the state, "summary.json/..." its evaluation returns.
    """

    arrays: Mapping[str, np.ndarray]
    records: list[Mapping[str, Any]]
    numbers: Mapping[str, Any]


def read(folder: pathlib.Path) -> Recorded:
    """Reads the folder of a run that is finished."""
    checkpoints = folder / "checkpoints"
    newest = max(checkpoints.glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    state, progress = read_checkpoint(newest)
    # What the command says; checkpoints did not always have it.
    progress.pop("config", None)
    slots = {"state": state, **{name: read_checkpoint(checkpoints / name)[0] for name in ("latest", "best")}}
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return Recorded(
        arrays={f"{slot}/{path}": array for slot, arrays in slots.items() for path, array in arrays.items()},
        records=[json.loads(line) for line in lines],
        numbers={
            **{f"progress/{name}": value for name, value in flat(progress)},
            **{f"summary.json/{name}": value for name, value in flat(_returns(summary))},
        },
    )


def read_checkpoint(path: pathlib.Path) -> tuple[dict[str, np.ndarray], Any]:
    """Reads the arrays of a checkpoint by path, and what is saved beside them."""
    import orbax.checkpoint as orbax

    contents = json.loads((path / "contents.json").read_text(encoding="utf-8"))
    leaves = contents["leaves"]
    large = {index for index, leaf in enumerate(leaves) if _data_bytes(leaf) > _PACKED_BYTES}
    names = ["packed", *map(str, large)]
    arguments = {name: orbax.RestoreArgs(restore_type=np.ndarray) for name in names}
    with orbax.PyTreeCheckpointer() as checkpointer:
        stored = checkpointer.restore(
            (path / "arrays").absolute(), item=dict.fromkeys(names, 0), restore_args=arguments
        )
    arrays, packed, offset = {}, stored["packed"].tobytes(), 0
    for index, leaf in enumerate(leaves):
        name, _, _, _, shape, dtype = leaf
        if index in large:
            array = stored[str(index)]
        else:
            array = np.frombuffer(packed[offset : offset + _data_bytes(leaf)], dtype)
            offset += _data_bytes(leaf)
        arrays[name] = array.reshape(shape)
    return arrays, contents["meta"]


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of what JSON holds under their names; a list without records is one leaf."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{name}/{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from flat(item, f"{name}/{index}")
    else:
        yield name, value


def _returns(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the evaluation returns of a summary, those of each combination of a sweep too."""
    own = {name: value for name, value in summary.items() if name.startswith(("eval_", "best_"))}
    combinations = [_returns(combination) for combination in summary.get("sweep", ())]
    return own | ({"sweep": combinations} if combinations else {})


def _data_bytes(leaf: list[Any]) -> int:
    """Returns the size of a stored array."""
    return int(np.prod(leaf[4], dtype=np.int64)) * np.dtype(leaf[5]).itemsize
