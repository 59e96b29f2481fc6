"""The parts of the page about settings: differences, all values with their origins, commands and versions."""

import shlex
from collections.abc import Sequence

from jaxrl_dist.analysis.report.markup import Markup, details, element, joined, table
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.settings import fields, resolve

# Settings that are no difference between runs.
_PLACES = {"out"}


def section(lines: Sequence[run_view.View], views: Sequence[run_view.View]) -> Markup:
    """Shows the differences between runs, or between the combinations of one, and all settings in parts that open."""
    names = list(dict.fromkeys(name for line in lines for name in line.settings))
    different = [name for name in names if name not in _PLACES and len({_text(line, name) for line in lines}) > 1]
    of_all = [name for name in different if all(name in line.settings for line in lines)]
    of_some = [name for name in different if name not in of_all]
    parts: list[str] = []
    if len(lines) > 1 and not different:
        parts.append(element("p", "No setting differs but the folder."))
    if of_all:
        parts.append(_differences("Settings that differ, with the origin of each value", of_all, lines))
    if of_some:
        body = _differences("Settings that some of the runs do not have", of_some, lines)
        parts.append(details(f"{len(of_some)} settings that only some of the runs have", body))
    for view in views:
        given = sum(origin == "flag" for origin in view.origins.values())
        rows = [(_named(name), *_row(view, name)) for name in view.settings]
        parts.append(details(
            f"All {len(rows)} settings of {view.label}, {given} given by flags",
            table(f"Settings of {view.label}", ("setting", "value", "origin"), rows),
        ))  # fmt: skip
    return joined(parts)


def origins(views: Sequence[run_view.View]) -> Markup:
    """Shows the command that repeats each run, with its commit and versions."""
    parts = []
    for view in views:
        parts += [element("h3", view.label), element("pre", element("code", command(view)))]
        for number, session in enumerate(view.software):
            versions = ", ".join(session.get("versions", ())) or "versions unknown"
            which = f"session {number + 1}: " if len(view.software) > 1 else ""
            parts.append(
                element("p", element("small", f"{which}commit {session.get('commit', 'unknown')}; {versions}"))
            )
    return joined(parts)


def command(view: run_view.View) -> str:
    """Returns the command that trains the run."""
    # The choices of --layout=auto are given, too, so that the command repeats this run.
    named = [name for name, origin in view.origins.items() if origin == "flag" or origin.startswith(resolve.AUTO)]
    words = [f"--{name}={fields.shown(view.settings[name])}" for name in named]
    return shlex.join(["python", "scripts/train.py", *words])


def _differences(caption: str, names: Sequence[str], views: Sequence[run_view.View]) -> Markup:
    """Makes a table of settings × runs."""
    rows = [(_named(name), *(_cell(view, name) for view in views)) for name in names]
    return table(caption, ("setting", *(view.label for view in views)), rows)


def _named(name: str) -> Markup:
    """Writes the name of a setting, which a narrow column may break after its owner."""
    owner, dot, rest = name.rpartition(".")
    return element("code", owner + dot, element("wbr"), rest)


def _row(view: run_view.View, name: str) -> tuple[str, str]:
    origin = view.origins[name]
    value = element("code", _text(view, name))
    return (element("strong", value), element("strong", origin)) if origin == "flag" else (value, origin)


def _cell(view: run_view.View, name: str) -> Markup:
    """Returns a value with its origin below it."""
    if name not in view.settings:
        return element("span", "–", class_="soft")
    return element("span", element("code", _text(view, name)), element("small", view.origins[name]))


def _text(view: run_view.View, name: str) -> str:
    return fields.shown(view.settings[name]) if name in view.settings else "–"
