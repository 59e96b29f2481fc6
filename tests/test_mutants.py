"""The maker of mutants: what it changes and leaves alone, how they are chosen, and that its tables fit the source."""

import ast
import itertools

import pytest
from mutants import aimed, make, run

SOURCE = '''
"""A text with 1 < 2."""
import dataclasses

TABLE = (1, 2)

@dataclasses.dataclass
class Config:
    rate: float = 0.5

    def grown(self, x):
        """Grows x by 1."""
        if x > 3:
            raise ValueError(f"{x + 1} is too large")
        return x * self.rate - 1


def loss(key, x, ε):
    first, second = jax.random.split(key)
    assert x == 1
    bounded = jnp.minimum(x[1:], -ε)
    return jnp.where(x < 0, bounded, jax.lax.stop_gradient(x)) and not first
'''


def _changed(function: str) -> dict[str, str]:
    """Each change of a function, and the line that it gives."""
    found = [one for one in make.mutants(SOURCE) if one.function == function]
    return {one.name: one.applied(SOURCE).splitlines()[one.line - 1].strip() for one in found}


def test_a_judgement_holds_while_the_code_stays_whatever_its_docstring_says() -> None:
    digests = [
        make.mutants(source)[0].digest
        for source in (
            SOURCE,
            SOURCE.replace('"""Grows x by 1."""', '"""Returns more."""'),
            SOURCE.replace("x > 3", "x > 4"),
        )
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_method_is_changed_but_not_its_messages_and_not_the_class() -> None:
    assert _changed("Config.grown") == {
        "x > 3, >= #0": "if x >= 3:",
        "3, 4 #0": "if x > 4:",
        "x * self.rate - 1, + #0": "return x * self.rate + 1",
        "x * self.rate, / #0": "return x / self.rate - 1",
        "1, 2 #0": "return x * self.rate - 2",
    }


def test_each_kind_of_change_gives_its_line() -> None:
    lines = set(_changed("loss").values())
    assert lines == {
        "first, second = jax.random.split(key)[jax.numpy.zeros(2, int)]",
        "bounded = jnp.maximum(x[1:], -ε)",
        "bounded = jnp.minimum(x[:-1], -ε)",
        "bounded = jnp.minimum(x[2:], -ε)",
        "bounded = jnp.minimum(x[1:], ε)",
        "return jnp.where(x <= 0, bounded, jax.lax.stop_gradient(x)) and not first",
        "return jnp.where(x < 1, bounded, jax.lax.stop_gradient(x)) and not first",
        "return jnp.where(x < 0, jax.lax.stop_gradient(x), bounded) and not first",
        "return jnp.where(x < 0, bounded, (x)) and not first",
        "return jnp.where(x < 0, bounded, jax.lax.stop_gradient(x)) or not first",
        "return jnp.where(x < 0, bounded, jax.lax.stop_gradient(x)) and first",
    }


def test_mutants_are_valid_differ_from_the_source_and_have_names_of_their_own() -> None:
    for path in sorted((run.ROOT / "jaxrl_dist/numeric").glob("*.py")):
        source = path.read_text()
        before, found = ast.dump(ast.parse(source)), make.mutants(source)
        assert len({(one.function, one.name) for one in found}) == len(found)
        assert all(ast.dump(ast.parse(one.applied(source))) != before for one in found)


def test_a_longer_choice_begins_with_the_shorter_and_another_seed_chooses_others() -> None:
    ten, twenty, other = (
        [patch.key for patch in run.random_patches(count, seed)] for count, seed in ((10, 0), (20, 0), (10, 1))
    )
    assert twenty[:10] == ten
    assert len(set(twenty)) == 20
    assert ten != other


def test_every_aimed_mutant_is_of_the_source_as_it_is() -> None:
    patches = run.aimed_patches()
    assert len({patch.key for patch in patches}) == len(aimed.MUTANTS)
    for patch in patches:
        ast.parse(patch.source)


def test_only_survivors_are_called_equivalent_and_each_for_a_reason() -> None:
    judged = run.read_judged()
    for key, reason in run.read_equivalent().items():
        assert judged[key].verdict == "survived", key
        assert len(reason.split()) >= 4, key


def test_tests_run_first_that_are_quick() -> None:
    seconds = {"a": 20.0, "b": 1.0, "c": 20.0, "d": 2.0}
    first, rest = run._parts(sorted(seconds, key=seconds.__getitem__), seconds)
    assert (first, rest) == (["b", "d", "a"], ["c"])
    assert run._parts([], seconds) == []
    assert list(itertools.chain(*run._parts(["a"], seconds))) == ["a"]


@pytest.mark.parametrize(("line", "tests"), [(3, ["q", "p"]), (5, ["q", "p"]), (7, ["p"]), (1, [])])
def test_the_tests_of_a_line_are_those_of_its_statement(line: int, tests: list[str]) -> None:
    coverage = run.Coverage({"a.py": {3: ["p", "q"], 7: ["p"]}}, {"p": 2.0, "q": 1.0})
    patch = run._Patch(run.Key("a.py", "f", "x"), line, "", "")
    assert run._tests_of(coverage, patch) == tests


def test_what_a_fixture_runs_is_for_all_tests_of_its_file() -> None:
    tests = ["a.py::p", "a.py::q[1|2]", "b.py::r"]
    assert run._ran_by("a.py::p|setup", tests) == tests[:2]
    assert run._ran_by("a.py::p|run", tests) == ["a.py::p"]
    assert run._ran_by("", tests) == []
