"""Counts the lines of code of each room, and of two walks through it: without blank lines, comments and docstrings.

With `--write`, the tables go into docs/architecture.md.
"""

import argparse
import ast
import io
import pathlib
import tokenize
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- lines: written by `python benchmarks/code_lines.py --write` -->", "<!-- end of lines -->"
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)

# What a reader goes through, by file and qualified name of the functions.
WALKS = {
    "PPO: estimate, prepare, epoch, loss, and the learner's update": {
        "agents/ppo.py": ["_prepare", "_epoch", "_loss"],
        "agents/shared/actor_critic.py": ["estimate"],
        "learning/learner.py": [
            *("_update", "_epochs", "_step", "_gradients", "_apply", "_moved", "_advance", "_prepare"),
            *("learning_rate", "item_weights"),
        ],
        "numeric/returns.py": ["gae"],
    },
    "an actor: run, play, and the unroll on the host": {
        "parallel/sebulba/actor.py": ["Actor._run"],
        "parallel/sebulba/in_step.py": ["InStep.play"],
        "parallel/unroll.py": [
            *("HostUnroll.__init__", "HostUnroll.run", "HostUnroll.warm_up", "HostUnroll._begun", "HostUnroll._acted"),
            *("Rows.__init__", "Rows.allocate", "Rows.write", "Rows.tree", "finished"),
        ],
    },
}


def code_lines(source: str) -> set[int]:
    """Returns the numbers of the lines that hold a token of code, without those of docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_documented and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def lines_of(source: str, names: Sequence[str]) -> int:
    """Counts the lines of code of functions by their qualified names.

    Raises:
        ValueError: one of them is not there.
    """
    code, total = code_lines(source), 0
    there = dict(_functions(ast.parse(source), ""))
    for name in names:
        if name not in there:
            raise ValueError(f"no function {name}")
        total += len(code & set(range(there[name].lineno, (there[name].end_lineno or 0) + 1)))
    return total


def _functions(parent: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef):
            yield owner + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{node.name}.")


def table() -> str:
    """Returns the tables of rooms and of walks in Markdown: files and lines of code."""
    package = ROOT / "jaxrl_dist"
    rooms: dict[str, list[int]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        rooms.setdefault(parts[0] if len(parts) > 1 else "at the root", []).append(
            len(code_lines(path.read_text(encoding="utf-8")))
        )
    rows = [(room, len(counts), sum(counts)) for room, counts in rooms.items()]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    lines = ["| room | files | lines of code |", "|---|---|---|"]
    lines += [f"| {room} | {files} | {count:,} |" for room, files, count in rows]
    lines += ["", "| walk | files | lines of code |", "|---|---|---|"]
    for walk, files in WALKS.items():
        count = sum(lines_of((package / file).read_text(encoding="utf-8"), names) for file, names in files.items())
        lines.append(f"| {walk} | {len(files)} | {count} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put it into docs/architecture.md")
    if not parser.parse_args().write:
        print(table())
        return
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
