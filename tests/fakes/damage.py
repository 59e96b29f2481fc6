"""Damages a run folder as disks, full file systems and strangers do."""

import json
import os
import pathlib
import random
import shutil
from collections.abc import Iterator
from typing import Any

_MANY = ",".join(map(str, range(100)))
# Instead of what a run writes somewhere in its JSON; raw text, since some of it is no valid JSON.
VALUES = (
    *("null", "true", "-1", "1.5", "1e308", "9e99", "-9e99", "NaN", "Infinity", "-Infinity", "1e999", "9" * 4000),
    *("9" * 18, '"zz"', '""', '"\\u001b[2J\\n"', "[]", "{}", "[null]", '["zz"]', "[[1], 2]", '{"value": {"value": 1}}'),
    *("[" * 900 + "]" * 900, "[" * 200_000, "[" + "1," * 50_000 + "1]", f'"a={_MANY};b={_MANY}"', '"a=1;=;b"'),
    '"' + ";".join(f"a{i}={_MANY}" for i in range(40)) + '"',
)
_HOLE = "a hole of the JSON"
# Settings that pages and pictures compute with.
_FIRST = ("sweep", "steps", "num_seeds", "seed", "system", "env", "layout", "settings")
FILES = ("config.json", "metrics.jsonl", "summary.json", "train.log", "videos/a.png")


def special(path: pathlib.Path, secret: pathlib.Path, rng: random.Random) -> None:
    """Puts what is no plain file of the run in the place of one."""
    path.unlink(missing_ok=True)
    rng.choice([
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: path.symlink_to(secret),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to("nowhere"),
        lambda: None,
        lambda: path.touch(),
        lambda: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 3 << 30),
    ])()  # fmt: skip


def binary(path: pathlib.Path, secret: pathlib.Path, rng: random.Random) -> None:
    """Overwrites bytes, or all of them."""
    data = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        data = bytearray(rng.randbytes(rng.randrange(1, 5000)))
    for _ in range(rng.randrange(1, 20)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def cut(path: pathlib.Path, secret: pathlib.Path, rng: random.Random) -> None:
    """Leaves the first part alone."""
    os.truncate(path, rng.randrange(path.stat().st_size))


def values(path: pathlib.Path, secret: pathlib.Path, rng: random.Random) -> None:
    """Puts another value in the place of one, or takes it away, in some lines of JSON; those that matter more often."""
    if path.suffix not in (".json", ".jsonl"):
        binary(path, secret, rng)
        return
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    for i in rng.sample(range(len(lines)), rng.randrange(1, min(len(lines), 4) + 1)):
        contents = [json.loads(lines[i])]
        places = list(_places(contents))
        first = [(parent, at) for parent, at in places if at in _FIRST]
        parent, at = rng.choice(first if first and rng.random() < 0.5 else places)
        if isinstance(parent[at], dict) and "value" in parent[at] and rng.random() < 0.8:
            parent, at = parent[at], "value"
        parent[at] = _HOLE
        if rng.random() < 0.15 and parent is not contents:
            del parent[at]
        lines[i] = json.dumps(contents[0]).replace(json.dumps(_HOLE), rng.choice(VALUES), 1)
    path.write_text("\n".join(lines) + "\n")


def _places(container: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every place in a tree of JSON, as its container and the name or index there."""
    for at, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
        yield container, at
        if isinstance(value, dict | list):
            yield from _places(value)


KINDS = (special, binary, cut, values, values, values)


def copy(run: pathlib.Path, to: pathlib.Path, secret: pathlib.Path, seed: int) -> str:
    """Copies a run folder with one or two of its files damaged; returns what was done.

    Args:
        run: folder of a run that has all `FILES`.
        to: new folder.
        secret: file outside of the run that links may lead to.
        seed: of the choices.
    """
    rng = random.Random(seed)
    shutil.copytree(run, to)
    done = []
    for name in rng.sample(FILES, rng.choice((1, 1, 2))):
        kind = rng.choice(KINDS)
        kind(to / name, secret, rng)
        done.append(f"{kind.__name__} {name}")
    return ", ".join(done)
