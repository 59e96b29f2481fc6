"""Counts the lines of code of each room: without blank lines, comments and docstrings.

With `--write`, the table goes into docs/architecture.md.
"""

import argparse
import ast
import io
import pathlib
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- lines: written by `python benchmarks/code_lines.py --write` -->", "<!-- end of lines -->"
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(source: str) -> int:
    """Counts the lines that hold a token of code, without those of docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_documented and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def table() -> str:
    """Returns the table of rooms in Markdown: files and lines of code."""
    package = ROOT / "jaxrl_dist"
    rooms: dict[str, list[int]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        rooms.setdefault(parts[0] if len(parts) > 1 else "at the root", []).append(
            code_lines(path.read_text(encoding="utf-8"))
        )
    rows = [(room, len(counts), sum(counts)) for room, counts in rooms.items()]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    lines = ["| room | files | lines of code |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {room} | {files} | {count:,} |" for room, files, count in rows)])


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
