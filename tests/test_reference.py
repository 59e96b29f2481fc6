"""Every public name of the reference tells shapes, errors and fields, and all examples run as they are printed."""

import ast
import doctest
import importlib
import inspect
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import conftest
import pytest
import test_docs
from marks import some

from jaxrl_dist.settings import fields

# Modules whose examples take a second or more.
SLOW = {".agents", ".envs", ".envs.check", ".networks", ".parallel.unroll"}
SLOW |= {
    f".agents.{name}" for name in ("crossq", "discrete_sac", "dpg", "dreamer", "es", "iqn", "mpo", "muzero", "sac")
}
SLOW |= {".agents.shared.action_values", ".agents.shared.actor_critic", ".agents.shared.own_parameters"}
SLOW |= {".agents.shared.search", ".agents.shared.soft_values", ".agents.shared.transitions"}
SLOW |= {".learning.learner", ".learning.members", ".learning.step", ".training.policy", ".training.runner"}
SLOW |= {".numeric.distributions", ".numeric.returns", ".numeric.values", ".replay.ring", ".replay.sum_tree"}
# A shape, or a tree whose shapes depend on the network or the environment.
SHAPE = re.compile(r"\[|\b(tree|parameters|state)\b")


NAMED = {
    f"{module}.{name}": value for module in test_docs.REFERENCE for name, value in test_docs.public(module).items()
}
NAMED |= {
    name: getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
    for name in test_docs.LISTED
}
WITH_EXAMPLES = [
    ".".join(file.relative_to(test_docs.ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(conftest.PACKAGE.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]
FUNCTIONS = {name: value for name, value in NAMED.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in NAMED.items() if inspect.isclass(value)}


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties that a class defines itself."""
    for name, value in vars(owner).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            yield name, value


def sections(value: Any) -> dict[str, str]:
    """Returns the sections of a docstring by their heading; what comes before them is ""."""
    found, heading = {"": ""}, ""
    for line in (inspect.getdoc(value) or "").splitlines():
        if match := re.fullmatch(r"(\w+):(| .*)", line):
            heading = match[1]
            found[heading] = match[2]
        else:
            found[heading] += f"\n{line}"
    return found


def entries(section: str) -> dict[str, str]:
    """Returns the names and texts of a section of Args, Attributes or Raises."""
    parts = re.split(r"^    ([*\w.]+): ", section, flags=re.MULTILINE)
    return {name.lstrip("*"): text for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def body(function: Any) -> list[ast.stmt]:
    """Returns the statements of a function, without its docstring, its checks and what it only deletes."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return [one for one in tree.body if not isinstance(one, ast.Expr | ast.Delete)]


def is_trivial(function: Any) -> bool:
    """Says whether a function is one statement, which its summary tells whole."""
    return len(body(function)) <= 1 and "\n\n" not in (inspect.getdoc(function) or "")


def takes_arrays(annotation: Any) -> bool:
    """Says whether an argument or a field is an array or a tree or record of arrays."""
    return "Callable" not in str(annotation) and bool(
        re.search(r"\bArray\b|ndarray|types\.(TimeStep|Unroll|Step|Sample)\b", str(annotation))
    )


def raised(function: Any) -> set[str]:
    """Returns the names of the exceptions that a function itself raises, not those that it raises again."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    names = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
    return {name for name in names if name[0].isupper()}


@pytest.mark.parametrize("name", NAMED)
def test_every_public_name_is_described(name: str) -> None:
    value = NAMED[name]
    assert (inspect.getdoc(value) or "").split("\n")[0].endswith((".", "?"))
    listed = entries(sections(value).get("Attributes", ""))
    parts = methods(value) if inspect.isclass(value) else ()
    assert not [part for part, one in parts if not inspect.getdoc(one) and part not in listed]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_have_shapes(name: str) -> None:
    function = FUNCTIONS[name]
    told = entries(sections(function).get("Args", ""))
    arguments = inspect.signature(function).parameters
    if told:
        assert list(told) == list(arguments)
    elif not is_trivial(function):
        assert not [one for one in arguments.values() if takes_arrays(one.annotation)]
    for argument, text in told.items():
        assert not takes_arrays(arguments[argument].annotation) or SHAPE.search(text), argument


@pytest.mark.parametrize("name", NAMED)
def test_errors_are_told(name: str) -> None:
    value = NAMED[name]
    calls = [one for _, one in methods(value)] if inspect.isclass(value) else [value]
    for call in filter(inspect.isfunction, calls):
        told = entries(sections(call).get("Raises", ""))
        assert raised(call) <= {error.rpartition(".")[2] for error in told}


@pytest.mark.parametrize("name", [name for name, value in CLASSES.items() if hasattr(value, "_fields")])
def test_fields_of_records_are_told(name: str) -> None:
    record = CLASSES[name]
    told = entries(sections(record).get("Attributes", ""))
    assert list(told) == list(record._fields)
    for field, text in told.items():
        assert not takes_arrays(record.__annotations__[field]) or SHAPE.search(text), field


@pytest.mark.parametrize("name", [name for name, value in CLASSES.items() if value.__name__.endswith("Config")])
def test_settings_are_declared_with_their_help(name: str) -> None:
    assert all(field.help and fields.valid_values(field) for field in fields.of(CLASSES[name]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_an_example(name: str) -> None:
    assert is_trivial(FUNCTIONS[name]) or ">>> " in sections(FUNCTIONS[name]).get("Example", "")


@pytest.mark.parametrize("module", some(WITH_EXAMPLES, slow={f"jaxrl_dist{name}" for name in SLOW}))
def test_examples_print_what_they_show(module: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    # Each example begins with nothing.
    for test in finder.find(importlib.import_module(module), module, globs={}):
        out: list[str] = []
        assert not runner.run(test, out=out.append).failed, "".join(out)
    assert runner.summarize(verbose=False).attempted
