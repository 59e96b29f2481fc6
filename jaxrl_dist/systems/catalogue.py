"""Lists the settings of a system, their values and origins, and writes the texts of `--help` and `--list`.

The value of a setting comes from, in rising order: the default of its Config class, its system's paper, the task
family, the needs of its layout, a preset, the choices of `--layout=auto`, a flag. Then sizes without a flag are fitted.
"""

import dataclasses
import functools
import hashlib
import importlib.resources
import itertools
import math
import pathlib
import sys
import textwrap
from collections.abc import Container, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from jaxrl_dist import envs, errors, networks, systems
from jaxrl_dist.learning import learner
from jaxrl_dist.runs import checkpoint, loggers
from jaxrl_dist.settings import Cited, Field, fields, presets, resolve, setting, synonyms, user_code
from jaxrl_dist.settings.resolve import AUTO, FLAG, PARAMS, Resolved
from jaxrl_dist.systems import families, fitting

# An installed package adds `--system=NAME` by `NAME = "module:SYSTEM"` under this entry point.
ENTRY_POINTS = "jaxrl_dist.systems"
ALIASES = {"network": "network.torso"}
PRESETS = pathlib.Path(str(importlib.resources.files("jaxrl_dist.systems"))) / "presets"

# Rows are counted and permuted in 32 bits.
_MOST_ROWS = 2**31
# Settings that `--layout=auto` may choose for any run, since they do not change what is learned.
_FOR_SPEED = (
    *("layout", "layout.num_devices", "layout.learner_devices", "layout.actor_devices"),
    *("layout.num_actors", "layout.ready_envs"),
)
# Other settings that it may choose together with a layout; a run folder that claims more choices is not believed.
_CHOSEN = ("layout.policy_lag", "layout.unroll_length", f"{PARAMS}num_threads", f"{PARAMS}workers")
_WIDTH = 110
_NO_SUCH = errors.Worded("no such setting", "no such flag")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Settings of a run as a whole; their flags have no prefix."""

    system: str = setting("ppo", "System to train; --list names them, module:SYSTEM is your own.")
    env: str = setting("gymnax:CartPole-v1", "Environment as suite:name.")
    layout: str = setting(
        "",
        "How data moves between environments and learners; empty takes anakin for an environment in JAX and sebulba "
        "for one on the CPU, or else the system's first one that can play it; auto measures which layout is fastest, "
        "among those with equal results.",
    )
    preset: str = setting(
        "",
        "A file of settings, over which flags have precedence: SYSTEM/TASK, or SYSTEM/paper for what the paper "
        "published, on any task; --list names them.",
        tag="tunable",
    )
    steps: int = setting(
        1_000_000,
        "Environment steps per seed; a larger number extends a finished run.",
        low=1,
        high=fields.MANY,
        tag="tunable",
    )
    seed: int = setting(
        0, "First seed; several are seed, seed + 1 and so on, each as if trained alone.", low=0, high=2_147_483_647
    )
    num_seeds: int = setting(1, "Independent runs in one program.", low=1, high=1_000_000)
    sweep: str = setting(
        "",
        "Several values for numbers of agent and learner; every combination trains with every seed in one program. "
        "Such as learner.learning_rate=1e-4,1e-3;agent.entropy_cost=0,0.01, four combinations.",
    )
    population: bool = setting(
        False,
        "Train the members of the sweep that have the same seed as a population: after each evaluation the worst fifth "
        "take over parameters and optimiser of members of the best fifth, with values that are multiplied by 0.8 or "
        "1.2 (of a discount, its distance from 1), or drawn anew between the smallest and the largest of the sweep.",
        source="Jaderberg et al. 2017, section 4.1.1 (truncation selection, perturb and resample)",
    )
    stop_at_return: float = setting(
        1e38,
        "Stop once the mean evaluation return of all seeds reaches this; the default stops nowhere.",
        tag="tunable",
    )
    out: str = setting("", "Run folder; empty names it after system, environment and seed, under runs.", tag="tunable")
    init_from: str = setting("", "Run folder whose final parameters this run starts from.")
    precision: str = setting(
        "default",
        "Precision of matrix products; default is the platform's own. CPUs have only float32.",
        choices=("default", "bfloat16", "tensorfloat32", "float32"),
    )
    profile: bool = setting(False, "Write a profiler trace of one interval into the run folder.", tag="tunable")


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Settings of the evaluations during training."""

    episodes: int = setting(32, "Whole episodes per evaluation and seed, one environment each.", low=1, tag="tunable")
    interval_steps: int = setting(
        0,
        "Environment steps between evaluations, rounded down to whole iterations; 0 is a twentieth of the run.",
        low=0,
        high=fields.MANY,
        tag="tunable",
    )
    max_steps: int = setting(
        27_000,
        "Longest evaluated episode if the environment has no time limit of its own.",
        low=1,
        tag="tunable",
        source="Mnih et al. 2015, methods (5 minutes at 18,000 frames; 30 minutes since Wang et al. 2016)",
    )


class Choice(NamedTuple):
    """The choices that the other settings depend on: system, environment, and name of the layout."""

    system: systems.System
    env: str
    layout: str


def declared(system: systems.System, layout: str) -> dict[str, Field]:
    """Returns the settings of a system in a layout: flag name (`owner.name`, or `name` of the run's own) -> `Field`."""
    owners = {
        "": RunConfig,
        "agent.": system.config,
        "learner.": learner.Config,
        "replay.": system.replay.config,
        "layout.": system.layout(layout).config,
        "network.": networks.Config,
        "env.": envs.Config,
        "evaluation.": EvaluationConfig,
        "checkpoint.": checkpoint.Config,
        "log.": loggers.Config,
    }
    return {prefix + field.name: field for prefix, config in owners.items() for field in fields.of(config)}


def choose(flags: Mapping[str, Any], preset: presets.Preset, own: systems.System | None = None) -> Choice:
    """Returns the choices of the flags, or else those of a preset, or else the defaults.

    Args:
        flags: settings by flag name.
        preset: preset below the flags.
        own: system that a program has made, which replaces the named one.

    Raises:
        UsageError: there is no such system or layout, or the preset is for another system.
    """
    named = {name: str(flags.get(name) or "") for name in ("system", "env", "layout")}
    beneath = {name: str(preset.settings[name].value) for name in named if name in preset.settings}
    if beneath and named["system"] not in ("", beneath["system"]):
        raise errors.UsageError(
            errors.given("system", named["system"]),
            ": ",
            errors.given("preset", preset.name),
            f" is of {beneath['system']}; leave out one of them",
        )
    system, _, layout = (named[name] or beneath.get(name, "") for name in named)
    row = own or find_system(system or RunConfig.system)
    # An empty --env is refused where environments are checked.
    env = named["env"] if "env" in flags else beneath.get("env", RunConfig.env)
    return Choice(row, env, choose_layout(row, "" if layout == AUTO else layout, env))


def find_preset(name: str) -> presets.Preset:
    """Returns the preset of a name; for an empty name, a preset without settings.

    Raises:
        UsageError: there is no such preset.
    """
    try:
        return presets.load(name, PRESETS)
    except ValueError as error:
        raise errors.UsageError(errors.given("preset", name), f": {error}") from None


def choose_layout(system: systems.System, name: str, env: str) -> str:
    """Returns the named layout, or else the system's first that serves such environments natively.

    Args:
        system: the system.
        name: name of the layout, or empty.
        env: suite:name.

    Raises:
        UsageError: the system does not run in it, or it cannot serve the environment.
    """
    names = system.layout_names
    if name and name not in names:
        hint = errors.nearest(name, (*names, AUTO))
        raise errors.UsageError(
            errors.given("layout", name), f": {system.name} runs in {', '.join(names)} or {AUTO}{hint}"
        )
    suite = envs.registry().get(env.partition(":")[0])
    if suite is None:
        return name or names[0]
    able = [one.name for one in system.layouts if suite.runs_on in one.serves]
    if name and name not in able:
        raise errors.UsageError(
            errors.given("layout", name),
            f": {env} runs on the {'CPU' if suite.runs_on == 'host' else suite.runs_on} only; valid: "
            f"{', '.join(able) or 'none'}",
        )
    natively = [one.name for one in system.layouts if one.serves[0] == suite.runs_on]
    return name or (natively or able or names)[0]


def find_system(name: str) -> systems.System:
    """Returns a system of the table, of a user (`module:SYSTEM`), or of an installed package.

    Raises:
        UsageError: there is no such system, or its module is not trusted.
    """
    if name in systems.SYSTEMS:
        return systems.SYSTEMS[name]
    if "#" in name:
        raise errors.UsageError(
            errors.given("system", name),
            ": a program made it, and no module has it; give that program's own record, as in train(system=SYSTEM) "
            "or load(folder, system=SYSTEM)",
        )
    offered = user_code.installed(ENTRY_POINTS)
    if name not in offered and ":" not in name:
        valid = (*systems.SYSTEMS, *offered)
        raise errors.UsageError(
            errors.given("system", name),
            f": expected one of {', '.join(valid)}, or module:SYSTEM{errors.nearest(name, valid)}",
        )
    if name not in offered:
        # Checked before the cache is read, which may hold the module since another call has trusted it.
        user_code.check_trusted(errors.given("system", name), name.rpartition(":")[0])
    return _own_system(name, offered.get(name, name))


@functools.cache
def _own_system(name: str, text: str) -> systems.System:
    """Imports a user's system, and names it as `--system` does, for messages and run folders."""
    flag = errors.given("system", name)
    row: systems.System = user_code.load(
        flag, text, "System", lambda value: isinstance(value, systems.System), is_offered=text != name
    )
    try:
        fields.of(row.config)
    except (TypeError, NameError) as error:
        raise errors.UsageError(flag, f": {error}") from error
    return dataclasses.replace(row, name=name)


def named_row(system: systems.System) -> systems.System:
    """Returns a system under a name that finds it again: its own, `module:NAME`, or one with a digest of its settings.

    Args:
        system: a system of the table, or one that a program has made.
    """
    if systems.SYSTEMS.get(system.name) is system or ":" in system.name or "#" in system.name:
        return system
    for module_name, module in list(sys.modules.items()):
        # Objects of a program or notebook lie in __main__, which spawned processes call by another name.
        if isinstance(module, ModuleType) and module.__name__ != "__main__":
            found = [key for key, value in vars(module).items() if value is system]
            if found:
                return dataclasses.replace(system, name=f"{module_name}:{found[0]}")
    declared_here = [(field.name, field.kind, field.default) for field in fields.of(system.config)]
    layouts = [layout.name for layout in system.layouts]
    parts = declared_here, system.replay.name, layouts, system.settings, system.families, system.by_layout
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return dataclasses.replace(system, name=f"{system.name}#{digest[:8]}")


def systems_for(actions: str) -> str:
    """Names the systems whose agents take such actions: `discrete`, or `bounded` or `unbounded` real vectors."""
    return ", ".join(row.name for row in systems.SYSTEMS.values() if actions in row.actions)


def canonical(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces short flag names by the full ones.

    Raises:
        UsageError: both the short and the full name are given.
    """
    for short, full in ALIASES.items():
        if short in flags and full in flags:
            raise errors.UsageError(errors.given(short), " is short for ", errors.given(full), ": give one of them")
    return {ALIASES.get(name, name): value for name, value in flags.items()}


def unknown_flag(system: systems.System, catalogue: Mapping[str, Field], name: str) -> errors.UsageError:
    """Returns an error for a flag that a system does not have, which names the nearest one."""
    if resolve.RENAMED.get(name) in catalogue:
        return errors.UsageError(errors.given(name), ": renamed to ", errors.given(resolve.RENAMED[name]), " in 0.2.0")
    others = [one for one in system.layout_names if name in declared(system, one) and name not in catalogue]
    if others:
        return errors.UsageError(
            errors.given(name),
            errors.Worded(": a setting of ", ": a flag of "),
            errors.given("layout", ", ".join(others)),
            "; this run has another one",
        )
    owners = [row.name for row in systems.SYSTEMS.values() if name in declared(row, row.layout_names[0])]
    if owners:
        return errors.UsageError(
            errors.given(name),
            f": {system.name} has ",
            _NO_SUCH,
            f"; {', '.join(owners)} {'have' if len(owners) > 1 else 'has'} it",
        )
    candidates = (*catalogue, *ALIASES)
    bare = name.rpartition(".")[2]
    # A setting without its owner, or with the wrong one, is nearest to a setting of the same name.
    same = [flag for flag in candidates if flag.rpartition(".")[2] == bare]
    longer = [flag for flag in candidates if _lengthens(flag.rpartition(".")[2], bare)]
    if same:
        hint = errors.meant(same + longer)
    else:
        hint = _translated(name, catalogue) or errors.meant(longer) or errors.nearest_flag(name, candidates)
    return errors.UsageError(errors.given(name), f": {system.name} has ", _NO_SUCH, *hint, errors.LISTED)


def _lengthens(longer: str, name: str) -> bool:
    """Says whether a name goes on, as epsilon in epsilon_end, or is counted, as seeds in num_seeds."""
    return longer.startswith(f"{name}_") or longer == f"num_{name}"


def _translated(name: str, catalogue: Container[str]) -> tuple[str | errors.Worded, ...]:
    """Returns the parts of a message that translate a name of another library; none if no library has the name."""
    found = synonyms.find(name, catalogue)
    if found is None:
        return ()
    synonym, library = found
    parts: list[str | errors.Worded] = [f"; {library}'s {synonym.theirs}"]
    for word, flag in zip((" is ", *len(synonym.ours) * (" or ",)), synonym.ours, strict=False):
        rows = systems.SYSTEMS.values()
        having = [row.name for row in rows if any(flag in declared(row, one) for one in row.layout_names)]
        parts += [word, errors.given(flag), "" if flag in catalogue else f" of {', '.join(having)}"]
    return (*parts, f"{'; ' if synonym.ours else ': '}{synonym.remark}" * bool(synonym.remark))


def resolved(
    flags: Mapping[str, Any],
    family: str | None = None,
    preset: presets.Preset | None = None,
    measured: resolve.Layer = MappingProxyType({}),
) -> Resolved:
    """Gives every setting its value: default < paper < family < layout < preset < measured < flag; then fits sizes.

    Args:
        flags: flag name -> text or value, as the user gave them; `system`, `layout` and `preset` among them decide
            which others there are.
        family: task family of the environment; None before its spec is known (to check flags only).
        preset: replaces the one that the flags name.
        measured: flag name -> value and origin of a choice of `--layout=auto`; without choices, the layout is the
            system's own.

    Raises:
        UsageError: a flag is unknown, or a value is not valid.
    """
    flags, own = canonical(flags), None
    if isinstance(flags.get("system"), systems.System):
        own = named_row(flags["system"])
        flags = {**flags, "system": own.name}
    preset = find_preset(str(flags.get("preset") or "")) if preset is None else preset
    is_auto = flags.get("layout") == AUTO
    named = {**flags, "layout": measured["layout"][0]} if is_auto and "layout" in measured else flags
    system, _, layout = choose(named, preset, own)
    catalogue = declared(system, layout)
    needed = resolve.from_row(system.settings_in(layout, family))
    # A preset's layout is compared by name alone: it may be one in which this environment cannot be played.
    beneath = preset.settings.get("layout")
    is_elsewhere = layout != (beneath.value if beneath else choose({**flags, "layout": ""}, preset, own).layout)
    above = _of_task(_in_layout(preset, layout, catalogue, needed if is_elsewhere else ()), str(flags.get("env") or ""))

    def parse(name: str, value: Any) -> Any:
        return _value(system, catalogue, name, value)

    layers: tuple[resolve.Layer, ...] = (
        {name: (field.default, resolve.origin_of(field.source)) for name, field in catalogue.items()},
        {"layout": (layout, f"system {system.name}")},
        resolve.from_row(system.settings),
        *(resolve.published(f"family {one}", system.families.get(one, {})) for one in families.lineage(family or "")),
        needed,
        resolve.published(f"{resolve.PRESET}{preset.name}", above),
        measured if is_auto else {},
        {name: (value, FLAG) for name, value in flags.items() if name != "layout" or value not in ("", AUTO)},
    )
    found = fitting.fit(dataclasses.replace(resolve.layered(layers, parse, catalogue, family), row=system))
    _check_seeds(found, system.layout(layout).seeds_together)
    _check_population(found)
    _check_rows(found.settings)
    _check_dtypes(found.settings)
    return found


def restored(contents: Mapping[str, Any], own: systems.System | None = None) -> Resolved:
    """Rebuilds the settings of a run, with their origins, from its `config.json`.

    Args:
        contents: contents of the file.
        own: system of the run, if a program made it.

    Raises:
        UsageError: the contents are not those of a `config.json` that this version can read.
    """
    named = {name: entry["value"] for name, entry in resolve.entries(contents).items()}
    if own is not None:
        own = named_row(own)
        if own.name != named.get("system"):
            raise errors.UsageError(f"system={own.name}: the run is of {named.get('system')}")
    row, _, layout = choose(named, presets.NONE, own)
    entries = resolve.entries(contents, declared(row, layout))
    values = {name: entry["value"] for name, entry in entries.items()}
    found = resolved({**values, "system": own or row.name}, contents.get("family"), presets.NONE)
    origins = {**found.origins, **{name: str(entry.get("origin")) for name, entry in entries.items()}}
    return dataclasses.replace(found, origins=origins)


def measured_in(contents: Any, asked: Resolved) -> dict[str, tuple[Any, str]]:
    """Returns the choices of `--layout=auto` in an earlier session: flag name -> value and origin.

    If the run was begun without auto, these are its own layout and devices.

    Args:
        contents: contents of a `config.json`, which may be damaged.
        asked: the present settings; a run of another system or environment has no choices for them.
    """
    try:
        read = resolve.entries(contents)
    except errors.UsageError:
        return {}
    entries = {name: (entry["value"], str(entry.get("origin"))) for name, entry in read.items()}
    if any(entries.get(name, ("", ""))[0] != asked[name] for name in ("system", "env")):
        return {}
    return {
        name: entry
        for name, entry in entries.items()
        if name in _FOR_SPEED or (name in _CHOSEN and entry[1].startswith(AUTO))
    }


def resolved_as_in(contents: Mapping[str, Any], flags: Mapping[str, Any], asked: Resolved) -> Resolved:
    """Gives every setting its value as in a run: for its environment's family and rewards, with its choices of auto.

    Args:
        contents: contents of the run's `config.json`.
        flags: flag name -> text or value.
        asked: the settings that these give before the environment is known.

    Raises:
        UsageError: a flag is not valid in that family.
    """
    found = resolved(flags, contents["family"], measured=measured_in(contents, asked))
    return fitting.fit_as_in(found, contents)


def preset_names() -> tuple[str, ...]:
    """Returns the names of all presets."""
    return presets.names(PRESETS)


def help_text(
    system: systems.System,
    layout: str,
    usage: str,
    preset: presets.Preset = presets.NONE,
    actions: Mapping[str, Field] = MappingProxyType({}),
) -> str:
    """Describes every flag of a system in a layout: default, range and origin, the values of families and preset.

    Args:
        system: the system.
        layout: name of one of its layouts.
        usage: how the command is called.
        preset: a preset whose values are shown, too.
        actions: other flags of the command, by name.
    """
    catalogue = declared(system, layout)
    lines = [
        f"usage: {usage} --system={system.name} --env=suite:name [--flag=value ...]",
        f"{system.name}: {system.summary} Layouts: {', '.join(system.layout_names)}.",
        "A value comes from, in rising order: default, paper, family of the environment, needs of the layout, preset, "
        "flag.",
        f"`python -m jaxrl_dist.envs.check suite:name` names an environment's family; {_started_from()}.",
        "Sizes without a flag, such as a replay's capacity, are fitted to the number of environments.",
        *preset.head,
        "The same command on the same folder resumes. --flagfile=FILE reads flags from a file.",
    ]
    for owner, names in itertools.groupby(catalogue, key=lambda name: name.rpartition(".")[0]):
        lines += ["", f"{owner or 'run'}:"]
        lines += [line for name in names for line in _flag_lines(system, layout, name, catalogue[name], preset)]
        if owner == "env":
            lines += [f"  --{PARAMS}NAME=VALUE", "      Parameter NAME of the environment's own."]
    lines += ["", "other:"]
    for action in actions.values():
        lines += [f"  --{action.name}", _wrapped(f"{action.help} ({fields.valid_values(action)})")]
    return "\n".join(lines)


def _started_from() -> str:
    """Says which families start from the values of which others."""
    return ", ".join(f"{family} starts from {beneath}" for family, beneath in families.BENEATH.items())


def list_text() -> str:
    """Lists the systems, the environments of each suite, the layouts, and the presets."""
    by_name = systems.SYSTEMS.values()
    rows = [f"{row.name}: {row.summary} Layouts: {', '.join(row.layout_names)}." for row in by_name]
    rows += [f"{name}: {text}, of an installed package." for name, text in user_code.installed(ENTRY_POINTS).items()]
    names = [f"{suite.name}: {', '.join(suite.environments) or 'any name'}" for suite in envs.registry().values()]
    layouts = {one.name: f"{one.name}: {one.summary}" for row in by_name for one in row.layouts}
    ways = [*layouts.values(), f"{AUTO}: The fastest of those above that learn the same, measured when the run begins."]
    ready = [f"{name}: {find_preset(name).head[0]}" for name in preset_names()]
    groups = {"systems": rows, "environments": names, "layouts": ways, "presets": ready}
    return "\n".join(line for title, items in groups.items() for line in (f"{title}:", *map(_wrapped, items)))


def _check_seeds(found: Resolved, seeds_together: bool) -> None:
    """Refuses several seeds, or a sweep, in a layout that trains one seed at a time."""
    if found["num_seeds"] > 1 and not seeds_together:
        raise errors.UsageError(
            errors.given("num_seeds", found["num_seeds"]),
            f": {found['layout']} trains one seed at a time; valid: 1 (the command study runs several, one after the "
            "other)",
        )
    if found["sweep"] and not seeds_together:
        raise errors.UsageError(
            errors.given("sweep", found["sweep"]),
            f": {found['layout']} trains one seed at a time; valid: ",
            errors.given("layout", "anakin"),
            ", or the command study with --search",
        )


def _check_population(found: Resolved) -> None:
    """Refuses a population whose members have the same settings."""
    if found["population"] and "," not in found["sweep"]:
        raise errors.UsageError(
            errors.given("population", "true"),
            ": its members differ in the values of a sweep; give two or more to ",
            errors.given("sweep"),
        )


def _check_dtypes(settings: Mapping[str, Any]) -> None:
    """Refuses two ways at once to compute with fewer bits."""
    if settings["precision"] != "default" and settings.get("network.compute", "float32") != "float32":
        raise errors.UsageError(
            errors.given("precision", settings["precision"]),
            " rounds the products of float32, and ",
            errors.given("network.compute", settings["network.compute"]),
            " makes them of another dtype: give one of them",
        )


def _check_rows(settings: Mapping[str, Any]) -> None:
    """Refuses iterations of more rows than an int32 counts."""
    names = [name for name in ("env.num_envs", "layout.unroll_length") if name in settings]
    if math.prod(settings[name] for name in names) >= _MOST_ROWS:
        factors = [part for name in names for part in (" × ", errors.given(name, settings[name]))]
        raise errors.UsageError(*factors[1:], f": expected fewer than {_MOST_ROWS} rows per iteration")


def _in_layout(
    preset: presets.Preset, layout: str, catalogue: Container[str], needed: Container[str]
) -> dict[str, Cited]:
    """Returns the settings of a preset; in another layout, without those of the preset's layout or set by this one."""
    kept = {
        name: value
        for name, value in preset.settings.items()
        if name not in needed and (name in catalogue or not name.startswith("layout."))
    }
    if "layout" in kept and kept["layout"].value != layout:
        del kept["layout"]
    return kept


def _of_task(settings: Mapping[str, Cited], env: str) -> dict[str, Cited]:
    """Returns the settings of a preset without parameters of its environment that say nothing of another one.

    Those of a suite's environments, as of Atari's games or of bodies, hold for the others; those of another suite do
    not, nor does which components of the observation are seen.
    """
    own = str(settings["env"].value) if "env" in settings else ""
    if not own or env in ("", own):
        return dict(settings)
    dropped = f"{PARAMS}observe" if env.partition(":")[0] == own.partition(":")[0] else PARAMS
    return {name: value for name, value in settings.items() if not name.startswith(dropped)}


def _value(system: systems.System, catalogue: Mapping[str, Field], name: str, value: Any) -> Any:
    """Checks one value; the environment's own parameters stay text."""
    if name.startswith(PARAMS) and name[len(PARAMS) :].isidentifier():
        return str(value)
    if name not in catalogue:
        raise unknown_flag(system, catalogue, name)
    try:
        return fields.parse(catalogue[name], value)
    except ValueError as error:
        raise errors.UsageError(errors.given(name, value), f": {error}") from None


def _flag_lines(system: systems.System, layout: str, name: str, field: Field, preset: presets.Preset) -> list[str]:
    """Describes one flag: its value where no family or flag sets it, then the families' values and the preset's."""
    known = {**system.settings, **system.settings_in(layout, None)}
    paper = known.get(name, Cited(field.default, field.source))
    lines = [
        f"  --{name}={fields.shown(paper.value)}",
        _wrapped(f"{field.help} ({fields.valid_values(field)}; {resolve.origin_of(paper.source)})"),
    ]
    for family, settings in system.families.items():
        below = system.families.get(families.lineage(family)[0], {})
        own = {**below, **settings, **system.settings_in(layout, family)}.get(name, paper)
        if own != paper:
            lines.append(_wrapped(f"{family}: {fields.shown(own.value)} ({own.source})"))
    if name in preset.settings:
        own = preset.settings[name]
        lines.append(_wrapped(f"preset {preset.name}: {fields.shown(own.value)} ({own.source})"))
    return lines


def _wrapped(text: str) -> str:
    """Wraps text to indented lines."""
    indent = " " * 6
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
