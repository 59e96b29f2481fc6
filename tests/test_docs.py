"""The documents tell the truth: their flags, commands and links exist. Run as a program, it writes their tables."""

import ast
import importlib
import importlib.util
import inspect
import itertools
import pathlib
import re
import shlex
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import conftest
import pytest
import system_pages
from mdit_py_plugins.anchors import index

import jaxrl_dist
from jaxrl_dist import envs, networks, systems
from jaxrl_dist.learning import learner
from jaxrl_dist.runs import checkpoint, loggers
from jaxrl_dist.settings import fields, resolve, synonyms
from jaxrl_dist.systems import catalogue, training_flags
from jaxrl_dist.training import search
from jaxrl_dist.training import study as studies

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = sorted(system_pages.FOLDER.glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *PAGES]
_API = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.md")))
# Modules that the reference lists whole, and names that it lists of others.
REFERENCE = re.findall(r"automodule:: (\S+)", _API)
LISTED = re.findall(r"auto(?:function|class):: (\S+)", _API)
ASKING = {"What", "Where", "Whether", "How", "When", "Which"}
COMING_FROM = ROOT / "docs" / "coming_from.md"
# Variables that launchers set, with a value that they could have.
IN_CLUSTER = {"$SKYPILOT_NUM_NODES": "4", "$SKYPILOT_NODE_RANK": "3", "$JOB_COMPLETION_INDEX": "3", "HEAD": "10.0.0.1"}


def public(module: str) -> dict[str, Any]:
    """Returns the functions and classes that a module defines for others, by name."""
    return {
        name: value
        for name, value in vars(importlib.import_module(module)).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module and callable(value)
    }


# Kinds of actions, of which some systems take all.
_ACTIONS = ("discrete", "multi_discrete", "bounded", "unbounded")


def table() -> str:
    """Returns the table of systems × layouts in Markdown."""
    rows = systems.SYSTEMS.values()
    layouts = list(dict.fromkeys(layout for row in rows for layout in row.layout_names))
    lines = [["system", "agent", "actions", "replay", *layouts, "what it is"]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        own, *others = row.layout_names
        marks = ["own" if name == own else "yes" if name in others else "–" for name in layouts]
        agent = row.agent.__module__.rpartition(".")[2]
        actions = "all" if len(row.actions) == len(_ACTIONS) else ", ".join(row.actions)
        lines.append([f"[`{row.name}`](systems/{row.name}.md)", agent, actions, row.replay.name, *marks, row.summary])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def brief_table() -> str:
    """Returns the table of agents and their systems in Markdown."""
    found: dict[str, list[str]] = {}
    for row in systems.SYSTEMS.values():
        named = f"[`{row.name}`](docs/systems/{row.name}.md)"
        found.setdefault(row.agent.__module__.rpartition(".")[2], []).append(named)
    return "\n".join(["| agent | systems |", "| --- | --- |", *(f"| {a} | {', '.join(b)} |" for a, b in found.items())])


# Document -> function that writes its table of systems.
WITH_SYSTEMS = {ROOT / "README.md": brief_table, ROOT / "docs" / "systems.md": table}


def as_code(text: str) -> str:
    """Puts the flags of a sentence between backquotes, as the site makes dashes of two hyphens."""
    return re.sub(r"--[\w.=]+", r"`\g<0>`", text)


def names_of(library: str) -> str:
    """Returns the table of a library's names and ours in Markdown."""
    lines = ["| there | here |", "|---|---|"]
    for theirs, ours, remark in synonyms.LIBRARIES[library]:
        flags = " or ".join(f"`--{flag}`" for flag in ours)
        lines.append(f"| `{theirs}` | {'; '.join(part for part in (flags, as_code(remark)) if part)} |")
    return "\n".join(lines)


def with_names(text: str) -> str:
    """Puts the table of each library between its markers."""
    for library in synonyms.LIBRARIES:
        text = system_pages.with_part(text, library, names_of(library))
    return text


def flags_page() -> str:
    """Returns the page of all flags."""
    lines = [
        "# Flags",
        "",
        "Written by `python tests/test_docs.py`. Every command takes `--help`; that of `scripts/train.py` shows, for",
        "the system and layout that it is given, the values of its paper, of families of tasks and of a preset, with",
        "their sources. A setting takes, in rising order: its default, its system's paper, the task family, what its",
        "layout needs, a preset, a flag.",
        "",
    ]
    owners = [(title, prefix, fields.of(config)) for title, prefix, config in _owners()]
    owners.append(("train.py, beside settings", "", tuple(training_flags.action_fields().values())))
    for title, prefix, found in owners:
        lines += [f"## {title}", "", "| flag | default | what it is | default from |", "|---|---|---|---|"]
        for field in found:
            valid = "several are taken" if field.repeats else fields.valid_values(field)
            about = as_code(f"{field.help} ({valid})".replace("|", "\\|"))
            default = fields.shown(field.default)
            source = resolve.origin_of(field.source) if field.source else ""
            lines.append(f"| `--{prefix}{field.name}` | {f'`{default}`' if default else ''} | {about} | {source} |")
        lines.append("")
    return "\n".join(lines)


def _owners() -> Iterator[tuple[str, str, type]]:
    """Yields the title, the prefix and the class of each group of settings, once."""
    rows = systems.SYSTEMS.values()
    yield "The run", "", catalogue.RunConfig
    yield "Environments", "env.", envs.Config
    yield "Networks", "network.", networks.Config
    yield "The learner", "learner.", learner.Config
    for config in dict.fromkeys(row.config for row in rows):
        named = ", ".join(row.name for row in rows if row.config is config)
        yield f"Agent of {named}", "agent.", config
    for replay in dict.fromkeys(row.replay for row in rows):
        if fields.of(replay.config):
            yield f"Replay {replay.name}", "replay.", replay.config
    for layout in {layout.name: layout for row in rows for layout in row.layouts}.values():
        yield f"Layout {layout.name}", "layout.", layout.config
    yield "Evaluation", "evaluation.", catalogue.EvaluationConfig
    yield "Checkpoints", "checkpoint.", checkpoint.Config
    yield "Logs", "log.", loggers.Config
    for path in sorted((ROOT / "scripts").glob("*.py")):
        module = importlib.import_module(f"jaxrl_dist.commands.{path.stem}")
        if hasattr(module, "Config"):
            yield f"{path.name}", "", module.Config


def commands(documents: Sequence[pathlib.Path] = DOCUMENTS) -> Iterator[list[str]]:
    """Yields the shell commands of documents, as lists of words."""
    for document in documents:
        for block in re.findall(r"```sh\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
            yield from (shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines() if line)


def commands_in_text() -> Iterator[list[str]]:
    """Yields the commands that text and tables name between backquotes, as lists of words, without those of blocks."""
    others = [ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "reference" / "README.md"]
    for document in [*DOCUMENTS, *others]:
        text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for quoted in re.findall(r"`([^`]+)`", text):
            if re.match(r"(\S+/)?(python|make|bash|[\w/]+\.sh)( |$)", quoted):
                yield shlex.split(quoted)


def launched(document: pathlib.Path) -> list[list[str]]:
    """Returns the flags of each training that any block of a document starts, be it a script, a manifest or a shell's.

    What a cluster would put into a command is put there.
    """
    found = []
    for block in re.findall(r"```\w+\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        filled = re.sub(r"\$\(.*?\)", "10.0.0.1", block.replace("\\\n", " "))
        for name, value in IN_CLUSTER.items():
            filled = filled.replace(name, value)
        for flags in re.findall(r"(?:scripts/train\.py|-- train)((?:\s+--[\w.]+(?:=[^\s\"]+)?)+)", filled):
            found.append(flags.split())
    return found


def check_make(arguments: Sequence[str]) -> None:
    """Checks the targets and the variables that a command of make names."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets, variables = (set(re.findall(form, text, re.MULTILINE)) for form in (r"^([\w-]+):", r"^(\w+) \?="))
    given = [argument.partition("=") for argument in arguments]
    assert {name for name, equals, _ in given if equals} <= variables
    assert {name for name, equals, _ in given if not equals} <= targets


def script_options(script: str | pathlib.Path) -> set[str]:
    """Returns the flags that a script defines, without the dashes."""
    if pathlib.Path(script).parent.name == "scripts":
        module = importlib.import_module(f"jaxrl_dist.commands.{pathlib.Path(script).stem}")
        return {field.name for field in fields.of(module.Config)} if hasattr(module, "Config") else set()
    source = (ROOT / script).read_text(encoding="utf-8")
    return set(re.findall(r'(?:add_argument\(\s*"--|DEFINE_\w+\(\s*")(\w+)"', source))


def check_train(arguments: list[str]) -> None:
    """Checks a command line of train.py; folders of earlier runs are made up."""
    for argument in arguments:
        if argument.startswith("--init_from="):
            folder = pathlib.Path(argument.partition("=")[2])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").touch()
    training_flags.parse(arguments)


def check_study(arguments: list[str]) -> None:
    """Checks a command line of study.py, and those of the training processes that it would start."""
    end = arguments.index("--")
    settings = [argument.partition("=")[2] for argument in arguments[:end] if argument.startswith("--setting=")]
    parsed = tuple(studies.parse_setting(text) for text in settings)
    common = tuple(arguments[end + 1 :])
    for argument in arguments[:end]:
        if argument.startswith("--search="):
            search.parse_range(argument.removeprefix("--search="), common)
    assert studies.cells(studies.Study(pathlib.Path("runs/study"), common, parsed or (studies.Setting("all", ()),)))


@pytest.mark.parametrize("document", WITH_SYSTEMS, ids=lambda path: path.name)
def test_the_table_of_systems_is_current(document: pathlib.Path) -> None:
    text = document.read_text(encoding="utf-8")
    written = WITH_SYSTEMS[document]()
    assert system_pages.with_part(text, "systems", written) == text, "python tests/test_docs.py rewrites it"


def test_each_system_has_a_page_and_each_page_a_system() -> None:
    assert {page.stem for page in PAGES} == set(systems.SYSTEMS)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_page_of_a_system_is_current_and_whole(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert system_pages.with_parts(text, page.stem) == text, "python tests/test_docs.py rewrites it"
    assert re.match(r"# \S.*\n", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == system_pages.SECTIONS
    beside = system_pages.BESIDE.get(page.stem)
    # A system of another's agent and loss does not repeat its equations.
    assert f"({beside}.md)" in text if beside else "\n$$" in text


def test_each_row_of_the_studies_is_on_a_page() -> None:
    told = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for study, what, _, steps, _, scored, *_ in system_pages.rows("Studies"):
        is_there = re.search(rf"\| {steps} \| .*{re.escape(scored)}.*{re.escape(study)}", told)
        assert is_there or study.startswith(system_pages.PEERS), what


def test_each_row_of_the_canon_and_of_the_zoo_is_on_a_page() -> None:
    told = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for _, layout, scored, lowest, _, _, minutes in system_pages.rows("The canon on one task"):
        assert f"| CartPole-v1, {layout} | 500k | 5 | {scored} | {lowest} | `canon_cartpole` | {minutes} |" in told
    for preset, task, steps, scored, lowest, seeds, minutes, published, _ in system_pages.rows("A zoo"):
        remark = f"preset {preset}" if published == "–" else f"preset {preset}; published: {published}"
        assert f"| {task} | {steps} | {seeds} | {scored} | {lowest} | `zoo` | {minutes} | {remark} |" in told


def test_a_page_says_how_many_seeds_kept_what_they_learned() -> None:
    names = {"cartpole": "CartPole-v1", "catch": "Catch", "pendulum": "Pendulum-v1"}
    for name, task, *cells in system_pages.rows("Who keeps what it has learned"):
        system, is_of_paper = name.removesuffix("/paper"), name.endswith("/paper")
        page = system_pages.page(system).read_text(encoding="utf-8")
        told = names[task] + f", `--preset={name}`" * is_of_paper
        assert f"| {told} | {' | '.join(cells)} |\n" in page.partition("#who-keeps-what-it-has-learned")[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_functions_that_a_page_names_exist(page: pathlib.Path) -> None:
    code = page.read_text(encoding="utf-8").partition("\n## Code\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`((?:\w+\.)+\w+)`", code))
    assert named and not [name for name in named if not system_pages.is_defined(name)]


def test_the_page_of_flags_is_current() -> None:
    page = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    assert page == flags_page(), "python tests/test_docs.py rewrites it"
    for row in systems.SYSTEMS.values():
        for layout in row.layouts:
            assert all(f"| `--{name}` |" in page for name in catalogue.declared(row, layout.name))


def test_the_names_of_other_libraries_are_what_messages_say() -> None:
    text = COMING_FROM.read_text(encoding="utf-8")
    assert with_names(text) == text, "python tests/test_docs.py rewrites it"


def test_names_of_other_libraries_name_settings_of_ours() -> None:
    every = {
        name for row in systems.SYSTEMS.values() for one in row.layout_names for name in catalogue.declared(row, one)
    }
    named = {flag for rows in synonyms.LIBRARIES.values() for row in rows for flag in row.ours}
    assert named and named <= every


def test_the_readme_is_short() -> None:
    assert len(DOCUMENTS[0].read_bytes()) <= 9_000


@pytest.mark.parametrize("command", [shlex.join(command) for command in commands()])
def test_commands_are_accepted(command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(command)
    if program == "make":
        check_make(arguments)
        return
    script, *arguments = arguments
    assert program == "python" and (ROOT / script).is_file()
    if script == "scripts/train.py":
        check_train(arguments)
        return
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    used = {argument[2:].partition("=")[0] for argument in own if argument.startswith("--")}
    assert {name for name in used if not name.startswith(resolve.PARAMS)} <= script_options(script)
    if script == "scripts/study.py":
        check_study(arguments)


@pytest.mark.parametrize("name", ["launching.md", "processes.md", "fleets.md"])
def test_what_launchers_start_is_accepted(name: str) -> None:
    document = ROOT / "docs" / name
    started = launched(document)
    blocks = "".join(re.findall(r"```.*?```", document.read_text(encoding="utf-8"), re.DOTALL))
    assert len(started) == blocks.count("scripts/train.py ") + blocks.count("-- train ") > 0
    for flags in started:
        command = training_flags.parse(flags)
        assert command.settings is not None
        if not command.in_processes.is_one and not command.dry_run:
            training_flags.check_processes(command.flags, command.settings, command.in_processes.processes)


@pytest.mark.parametrize("command", sorted({shlex.join(command) for command in commands_in_text()}))
def test_commands_in_the_text_are_accepted(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        check_make(arguments)
    elif program.endswith(".sh"):
        names = re.findall(
            r"^(?:PYTHONPATH=\S+ )?study (\w+)", (ROOT / program).read_text(encoding="utf-8"), re.MULTILINE
        )
        for name in set(arguments) - {"NAME"} if program == "benchmarks/learn.sh" else ():
            assert any(study.startswith(name) for study in names), f"{name} begins no study"
    elif arguments[0] == "-c":
        compile(arguments[1], "<text>", "exec")
    elif arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]) is not None
    elif arguments[0] == "scripts/train.py":
        training_flags.parse(arguments[1:])
    else:
        used = {argument[2:].partition("=")[0] for argument in arguments[1:] if argument.startswith("--")}
        assert {name for name in used if "." not in name} <= script_options(arguments[0])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_flags_in_the_text_exist(document: pathlib.Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    shown = re.findall(r"`--(no)?([\w.]+)(?:=[^`]*)?`", text)
    declared = {
        name
        for row in systems.SYSTEMS.values()
        for layout in row.layouts
        for name in catalogue.declared(row, layout.name)
    }
    # `flag` stands for any.
    actions = {"flagfile", "flag", *training_flags.ACTIONS, *catalogue.ALIASES}
    known = declared | actions | {name for path in (ROOT / "scripts").glob("*.py") for name in script_options(path)}
    for negation, name in shown:
        assert name in known or f"{negation}{name}" in known or name.startswith(resolve.PARAMS), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_point_to_files(document: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def anchors(document: pathlib.Path) -> set[str]:
    """Returns the anchors of a document's sections, as GitHub and the site name them."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {index.slugify(title.replace("`", "")) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_point_to_sections(document: pathlib.Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert anchor in anchors(document.parent / target if target else document), f"{target}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_end_with_an_empty_line(document: pathlib.Path) -> None:
    """Text right below a table would become a row of it."""
    lines = document.read_text(encoding="utf-8").splitlines()
    tails = [(line, after) for line, after in itertools.pairwise(lines) if line.startswith("|") and after.strip()]
    assert not [after for _, after in tails if not after.startswith(("|", "<!--"))]


@pytest.mark.parametrize("page", ["architecture.md", "decisions.md"])
def test_paths_of_the_design_exist(page: str) -> None:
    # The table of where each file went names those that are no more.
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("### Where each file went")[0]
    for name in set(re.findall(r"`([a-z_]+/[\w/]+\.py|\w+\.py)`", text)):
        if "NAME" not in name:
            assert (ROOT / name).exists() or (conftest.PACKAGE / name).exists(), name


@pytest.mark.slow
def test_every_page_and_notebook_is_in_the_site_and_its_search(site: pathlib.Path) -> None:
    searched = (site / "searchindex.js").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT).with_suffix("").as_posix() for page in DOCUMENTS[1:]]
    for name in (*pages, *(f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb"))):
        assert (site / f"{name}.html").exists() and f'"{name}"' in searched


@pytest.mark.slow
def test_no_page_of_the_site_fetches_anything_from_elsewhere(site: pathlib.Path) -> None:
    """A link may lead away; what a page loads by itself is its own."""
    loaded = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc="([^"]+)"|<link\b[^>]*?\bhref="([^"]+)\"""")
    found = {
        (page.name, source or link)
        for page in site.rglob("*.html")
        for source, link in loaded.findall(page.read_text(encoding="utf-8"))
    }
    assert len(found) > len(DOCUMENTS)
    assert not [one for one in found if re.match(r"(https?:)?//", one[1])]
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles)


@pytest.mark.slow
def test_the_reference_has_every_public_name(site: pathlib.Path) -> None:
    listed = (site / "objects.inv").read_bytes()
    names = {line.split(" ")[0] for line in zlib.decompress(listed.split(b"zlib.\n", 1)[1]).decode().splitlines()}
    for name in jaxrl_dist.__all__:
        value = getattr(jaxrl_dist, name)
        assert inspect.ismodule(value) or {f"jaxrl_dist.{name}", f"{value.__module__}.{name}"} & names
    for module in REFERENCE:
        full_names = {f"{module}.{name}" for name in public(module)}
        assert full_names <= names, sorted(full_names - names)
    for _, _, config in _owners():
        if config.__module__ in REFERENCE:
            full_name = f"{config.__module__}.{config.__name__}"
            assert {f"{full_name}.{field.name}" for field in fields.of(config)} <= names
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "docs" / "api").glob("*.html"))
    assert "Alias for field" not in pages and "Create new instance" not in pages
    # Every file of an agent has the equation that it minimises.
    assert pages.count("<math") >= len({row.agent for row in systems.SYSTEMS.values()})


def test_docstrings_do_not_open_with_a_question() -> None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sorted(conftest.PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, documented) and (text := ast.get_docstring(node) or "").split(" ")[0] in ASKING
    ]
    assert not found, "\n".join(found)


if __name__ == "__main__":
    for document, write in WITH_SYSTEMS.items():
        written = system_pages.with_part(document.read_text(encoding="utf-8"), "systems", write())
        document.write_text(written, encoding="utf-8")
    for page in PAGES:
        page.write_text(system_pages.with_parts(page.read_text(encoding="utf-8"), page.stem), encoding="utf-8")
    COMING_FROM.write_text(with_names(COMING_FROM.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs" / "flags.md").write_text(flags_page(), encoding="utf-8")
