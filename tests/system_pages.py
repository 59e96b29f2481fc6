"""Writes the parts of docs/systems/NAME.md that the code, the presets, docs/results.md and the reference curves know.

`test_docs.py` holds the pages to it; run as a program, that file writes them.
"""

import functools
import importlib
import importlib.util
import pathlib
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl_dist import envs, systems
from jaxrl_dist.settings import OURS, Cited, fields
from jaxrl_dist.systems import catalogue, families

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "systems"
START, END = "<!-- {}: written by `python tests/test_docs.py` -->", "<!-- end of {} -->"
# Systems of the same agent and loss, whose pages tell what differs from another's.
BESIDE = {
    **dict.fromkeys(("a3c", "ga3c"), "a2c"),
    **dict.fromkeys(("dppo", "gpu_sim"), "ppo"),
    **dict.fromkeys(("impala_replay", "seed_impala"), "impala"),
    "gorila": "dqn",
    "ippo": "mappo",
    "seed_r2d2": "r2d2",
}
# Of systems whose networks are no torso with a head.
_OWN_NETWORKS = {"dreamer": "jaxrl_dist.networks.world_model"}
# Names in docs/results.md of systems with a switch on.
SWITCHED = {"M-DQN": "dqn", "M-IQN": "iqn"}
# The title of each page, as which docs/results.md calls the system, in either case.
TITLES = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0][2:] for path in sorted(FOLDER.glob("*.md"))}
SECTIONS = ["Idea", "Code", "Settings", "Results", "When to use it, and when not", "Source"]
# Shown of each system, whoever gives them.
_ALWAYS = ("learner.optimizer", "learner.learning_rate", "learner.anneal", "learner.epsilon", "learner.max_grad_norm")
_ALWAYS += ("layout.unroll_length", "env.num_envs")
# Studies of other libraries.
PEERS = "`peer_"
_TASK = re.compile(
    r"(?:CartPole-v1|Catch|DeepSea|MemoryChain|CartPole's positions alone|MinAtar Breakout|Brax|HalfCheetah-v4|"
    r"Pendulum-v1|CartpoleSwingup-v1|three agents|simple_spread|overcooked|HeuristicEnemySMAX|tic-tac-toe|"
    r"Connect Four|9×9 Go).*"
)


class Value(NamedTuple):
    """A value of a setting and where it holds: "" for everywhere, or a family, a layout or a preset."""

    place: str
    flag: str
    value: str
    source: str


class Result(NamedTuple):
    """A row of docs/results.md, as text."""

    study: str
    task: str
    seeds: str
    steps: str
    scored: str
    lowest: str
    remark: str
    minutes: str


def page(name: str) -> pathlib.Path:
    """Returns the page of a system."""
    return FOLDER / f"{name}.md"


def with_part(text: str, name: str, written: str) -> str:
    """Puts a written part of a document between its markers."""
    start, end = START.format(name), END.format(name)
    before, rest = text.split(start)
    return f"{before}{start}\n{written}\n{end}{rest.split(end)[1]}"


def with_parts(text: str, name: str) -> str:
    """Puts all written parts of a system's page between their markers."""
    for part, write in PARTS.items():
        text = with_part(text, part, write(name))
    return text


def facts(name: str) -> str:
    """Returns what the table of systems says of one, its presets, and the files of its code."""
    row = systems.SYSTEMS[name]
    own, *others = row.layout_names
    presets = [one for one in catalogue.preset_names() if one.startswith(f"{name}/")]
    # One that the pinned packages can train, if possible in minutes.
    tasks = {one: catalogue.find_preset(one).settings.get("env") for one in presets}
    free = [one for one, env in tasks.items() if env is not None and not _needs_more(str(env.value))]
    small = [one for one in free if one.endswith(("cartpole", "pendulum"))] or free or presets
    files = {
        "agent": row.agent.__module__,
        "settings": next(module for module, rows in _modules().items() if row in rows),
        "replay": row.replay.make.__module__,
        "network": _OWN_NETWORKS.get(name, "jaxrl_dist.networks"),
        **{layout.name: layout.config.__module__ for layout in row.layouts},
    }
    code = [f"{about} [`{_path(module)}`](../../jaxrl_dist/{_path(module)})" for about, module in files.items()]
    told = {
        "Actions": ", ".join(row.actions).replace("_", " "),
        "Layouts": ", ".join([f"{own} (its own)", *others]),
        "Presets": ", ".join(f"`{one}`" for one in presets),
        "Try it": f"`python scripts/train.py --preset={small[0]}`",
        "Files": ", ".join(code),
    }
    return "\n".join(f"- **{about}**: {text}" for about, text in told.items())


@functools.cache
def _extras() -> Collection[str]:
    """Returns the names of the extras, of which suites have theirs, without those that `make setup` installs."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names: Mapping[str, object] = told["project"]["optional-dependencies"]
    pinned = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return [name for name in names if f"\n{name}==" not in f"\n{pinned}"]


def _needs_more(env: str) -> bool:
    """Says whether an environment is of a suite whose library is an extra."""
    return envs.find_suite(env).name in _extras()


def is_defined(name: str) -> bool:
    """Says whether `module.function`, by the last part of the module's name, is defined in the package."""
    module, _, function = name.rpartition(".")
    paths = (ROOT / "jaxrl_dist").glob(f"**/{module.replace('.', '/')}*")
    files = [path / "__init__.py" if path.is_dir() else path for path in paths if path.stem == module.split(".")[-1]]
    defined = re.compile(rf"^ *(?:def {function}\(|class {function}\b|{function}[:=\s])", re.MULTILINE)
    return any(file.is_file() and defined.search(file.read_text(encoding="utf-8")) for file in files)


def _path(module: str) -> str:
    """Returns the file of a module, below the package."""
    path = ROOT / "jaxrl_dist" / pathlib.Path(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.relative_to(ROOT / "jaxrl_dist").as_posix()


def _modules() -> Mapping[str, Sequence[systems.System]]:
    """Returns the systems of each file of the room."""
    names = {path.stem for path in (ROOT / "jaxrl_dist" / "systems").glob("*.py")} - {"__init__"}
    found = {name: importlib.import_module(f"jaxrl_dist.systems.{name}") for name in sorted(names)}
    return {module.__name__: getattr(module, "SYSTEMS", ()) for module in found.values()}


def settings(name: str) -> str:
    """Returns the tables of a system's settings; of one beside another, of those that differ."""
    row, beside = systems.SYSTEMS[name], BESIDE.get(name)
    known = set(_own(systems.SYSTEMS[beside])) | set(_elsewhere(systems.SYSTEMS[beside])) if beside else set()
    own = [one for one in _own(row) if one not in known]
    # A value that a family shares with the other system is not new, but for where this system has its own.
    elsewhere = [one for one in _elsewhere(row) if one not in known or one.flag in {own_one.flag for own_one in own}]
    others = f"Those that differ from [{TITLES[beside]}'s]({beside}.md#settings)" if beside else "The system's own"
    first = [f"{others}; a task's family, a preset and a flag come above them. Where a value leaves a part out (`0`,"]
    first += [
        "`false`, `none`, one critic, a period of 1), the source is that of the part. [All flags](../flags.md).",
        "",
    ]
    first += ["| flag | value | source |", "|---|---|---|"]
    first += [f"| `--{one.flag}` | `{one.value}` | {_cell(one.source)} |" for one in own]
    if not elsewhere:
        return "\n".join(first)
    second = ["<details><summary>Values of families of tasks, other layouts and presets</summary>", ""]
    starts = [f"`{family}` from `{beneath}`" for family, beneath in families.BENEATH.items()]
    second += [f"A family may start from the values of another: {', '.join(starts)}.", ""]
    second += ["| flag | value | for | source |", "|---|---|---|---|", *_grouped(elsewhere), "", "</details>"]
    return "\n".join([*first, "", *second])


def _own(row: systems.System) -> list[Value]:
    """Lists the settings of agent and replay, those that every system has, and those that its row sets."""
    declared, given = catalogue.declared(row, row.layout_names[0]), _given(row)
    names = [name for name in declared if name.startswith(("agent.", "replay.")) or name in {*given, *_ALWAYS}]
    values = {name: given.get(name, Cited(declared[name].default, declared[name].source)) for name in names}
    return [Value("", name, fields.shown(one.value), one.source or OURS) for name, one in values.items()]


def _given(row: systems.System) -> Mapping[str, Cited]:
    return {**row.settings, **row.settings_in(row.layout_names[0], None)}


def _elsewhere(row: systems.System) -> list[Value]:
    """Lists the values that differ from those: of families of tasks, of layouts, and of presets."""
    own = {one.flag: one.value for one in _own(row)}
    found = []
    for family, values in row.families.items():
        both = {**values, **row.settings_in(row.layout_names[0], family)}
        found += [Value(family, *_shown(flag, one)) for flag, one in both.items()]
    for layout in row.layout_names[1:]:
        for family, values in row.by_layout.get(layout, {}).items():
            place = f"{family} in {layout}" if family else layout
            found += [Value(place, *_shown(flag, one)) for flag, one in values.items()]
    found = [one for one in found if own.get(one.flag) != one.value]
    for name in catalogue.preset_names():
        if name.startswith(f"{row.name}/"):
            given = catalogue.find_preset(name).settings.items()
            found += [Value(f"`{name}`", *_shown(flag, one)) for flag, one in given if flag != "system"]
    return found


def _shown(flag: str, one: Cited) -> tuple[str, str, str]:
    return flag, fields.shown(one.value), one.source


def _grouped(values: Sequence[Value]) -> Iterator[str]:
    """Yields a row for each value of each flag, with all places that have it."""
    for flag in sorted({one.flag for one in values}, key=lambda flag: (_owner(flag), flag)):
        alike: dict[tuple[str, str], list[str]] = {}
        for one in values:
            if one.flag == flag:
                alike.setdefault((one.value, one.source), []).append(one.place)
        for (value, source), places in alike.items():
            yield f"| `--{flag}` | `{value}` | {', '.join(places)} | {_cell(source)} |"


def _owner(flag: str) -> int:
    owners = ("agent", "replay", "learner", "network", "layout", "env")
    owner = flag.partition(".")[0]
    return owners.index(owner) if owner in owners and "." in flag else len(owners)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def results(name: str) -> str:
    """Returns the rows of docs/results.md about a system."""
    found = [*_studies(name), *_canon(name), *_real_actions(name), *_zoo(name)]
    if not found:
        return "\n".join(_held(name)).strip() or "Nothing was measured yet."
    lines = [_SCORED, ""]
    names = ["task", "steps", "seeds", "return, IQM [95 %]", "lowest seed", "study", "minutes", "remarks"]
    lines += [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for one in found:
        cells = one.task, one.steps, one.seeds, one.scored, one.lowest, one.study, one.minutes, one.remark
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_held(name)])


_HELD = """\
[Who keeps what it has learned](../results.md#who-keeps-what-it-has-learned), by the defaults of a commit, after twice
the steps of a result or more: how many seeds end with the task solved (**short**: fewer than 19 of 20), and which share
of the evaluations after a seed's first solved one is below nine tenths of the way from random play:"""
_HELD_TASKS = {"cartpole": "CartPole-v1", "catch": "Catch", "pendulum": "Pendulum-v1"}
_SCORED = """\
Interquartile means over seeds at the end of training, on two CPU cores unless the minutes name another device; of two
or three seeds the plain mean, with the lowest and the highest in brackets.
`benchmarks/learn.sh NAME` repeats all studies whose names begin so, and `python benchmarks/zoo.py` those called `zoo`;
for `games` train the preset, and then run `benchmarks/games.py`. Published results are those that [the
zoo](../results.md#a-zoo) names.
[The results](../results.md) say at which commit, and what else ran on the cores."""


def rows(heading: str) -> list[list[str]]:
    """Returns the cells of the first table below a heading of docs/results.md, without its head."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2]
    lines = re.search(r"(?:^\|.*\n)+", text.partition("\n### ")[0], re.MULTILINE)
    assert lines, heading
    return [[cell.strip() for cell in line[1:-2].split(" | ")] for line in lines[0].splitlines()[2:]]


def _studies(name: str) -> Iterator[Result]:
    """Yields the rows of the studies; "the same" is the task of the row before it."""
    task, named = "", ""
    for study, what, seeds, steps, _, scored, lowest, remark, minutes in rows("Studies"):
        if study.startswith(PEERS):
            continue
        found = _TASK.search(what)
        system = what[: found.start()] if found else what
        told = found[0] if found else what.replace("the same", task)
        task = found[0] if found else task
        named = system if _named(system) else named
        if name in _named(named):
            rest = _without_names(system).strip(" ,:") if found else ""
            about = f"{told} ({rest})" if rest and rest != "on" else _without_names(told).strip(" ,")
            about = about if _TASK.search(about) or not study.startswith("`cartpole") else f"CartPole-v1, {about}"
            yield Result(study, about, seeds, steps, scored, lowest, remark, minutes)


def _without_names(text: str) -> str:
    for title in sorted(TITLES.values(), key=len, reverse=True):
        text = _pattern(title).sub("", text)
    return text


def _named(text: str) -> set[str]:
    """Returns the systems that a text names; a longer name is not the shorter one within it."""
    names = {**{title: name for name, title in TITLES.items()}, **SWITCHED}
    found = set()
    for title in sorted(names, key=len, reverse=True):
        if _pattern(title).search(text):
            found.add(names[title])
            text = _pattern(title).sub("", text)
    return found


def _pattern(title: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(title)}(?![\w-])", re.IGNORECASE)


def _canon(name: str) -> Iterator[Result]:
    for system, layout, scored, lowest, _, reached, minutes in rows("The canon on one task"):
        # A later sample names its commit.
        if system.partition(" (at ")[0].removesuffix("*") == TITLES[name]:
            remark = f"≥ 475 at {reached} steps"
            yield Result("`canon_cartpole`", f"CartPole-v1, {layout}", "5", "500k", scored, lowest, remark, minutes)


def _real_actions(name: str) -> Iterator[Result]:
    if any(one.study == "`canon_pendulum`" for one in _studies(name)):
        return
    for system, scored, lowest, reached in rows("Real actions"):
        if system.partition(",")[0] == TITLES[name]:
            yield Result("`canon_pendulum`", "Pendulum-v1", "5", "15k", scored, lowest, f"≥ −200 from {reached}", "–")


def _zoo(name: str) -> Iterator[Result]:
    """Yields the rows of the zoo, whose table is there only once a row was run."""
    section = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").partition("\n### A zoo\n")[2]
    if "| preset |" not in section.partition("\n### ")[0]:
        return
    for preset, task, steps, scored, lowest, seeds, minutes, published, _ in rows("A zoo"):
        if preset.strip("`").partition("/")[0] == name:
            remark = f"preset {preset}" if published == "–" else f"preset {preset}; published: {published}"
            yield Result("`zoo`", task, seeds, steps, scored, lowest, remark, minutes)


def _held(name: str) -> list[str]:
    """Returns a table of the system's rows of `make holding`, if there are any."""
    names = ["task", "steps", "solved at the end", "later evaluations below", "lowest seed", "minutes", "commit"]
    lines = []
    for system, task, *cells in rows("Who keeps what it has learned"):
        if system in (name, f"{name}/paper"):
            preset = "" if system == name else f", `--preset={system}`"
            lines.append(f"| {' | '.join([_HELD_TASKS[task] + preset, *cells])} |")
    return ["", _HELD, "", f"| {' | '.join(names)} |", "|" + "---|" * len(names), *lines] if lines else []


def drawing() -> Any:
    """Returns the script that draws the reference curves."""
    path = ROOT / "docs" / "figures" / "curves.py"
    spec = importlib.util.spec_from_file_location("curves_of_systems", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_DRAWN = """\
Thick: the interquartile mean; the area: its 95 % interval; thin: each seed. These are the curves that
`scripts/compare.py` [compares with](../../benchmarks/reference/README.md), some of earlier commits than those rows."""


def curves(name: str) -> str:
    """Returns the pictures of a system's reference curves."""
    drawn = [one for one in drawing().pictures() if one.system == name]
    if not drawn:
        return "There is no reference curve of it yet."
    return "\n".join([_DRAWN, "", *(f"![{one.description}](../figures/{one.file})" for one in drawn)])


PARTS: Mapping[str, Callable[[str], str]] = {
    "facts": facts,
    "settings": settings,
    "results": results,
    "curves": curves,
}
