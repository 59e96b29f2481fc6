"""Describes a run before it begins, `--dry_run`: memory, placement, schedules, compilation, speed.

Everything is compiled and trained for some seconds, and the run folder is not touched.
"""

import contextlib
import math
import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import memory_use, mesh
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import resolve, sweep
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import assemble, auto_layout, exchanges, probe, records, resume, session

_PROBE_S = 5.0
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEARNER = {"parameters": "params", "target network": "target_network", "optimiser": "opt_state"}
_OTHERS = {
    "replay": ("replay",),
    "environments and acting state": ("actors",),
    "unrolls that wait": ("pending",),
    "parameter server": ("server", "kept", "versions"),
}


class Compiled(NamedTuple):
    """A program: its name, the seconds to compile it, and the bytes per device that it needs beside its arguments."""

    name: str
    seconds: float
    temporaries: int


def describe(
    flags: Mapping[str, Any],
    settings: resolve.Resolved,
    devices: Sequence[jax.Device],
    probe_s: float = _PROBE_S,
    num_processes: int = 1,
) -> Any:
    """Yields the lines that describe a run, each as soon as it is known.

    Args:
        flags: flags of the run, name -> text or value.
        settings: the settings that these give before the environment is known.
        devices: devices to choose from.
        probe_s: seconds to train.
        num_processes: number of processes of the run; all of it is tried in this one.

    Raises:
        UsageError: settings are not valid, or do not go together.
    """
    folder = resume.check_folder(flags, settings)
    settings, environment = assemble.resolve(flags)
    training_flags.check_processes(flags, settings, num_processes)
    errors.check_divided("env.num_envs", settings["env.num_envs"], num_processes)
    held = ", which holds a run that goes on from there" if folders.held(folder) else ""
    yield f"dry run of {settings['system']} on {settings['env']}; nothing is written to {folder}{held}"
    with memory_use.named(), session.matmul_precision(settings):
        notes: list[str] = []
        settings, environment = auto_layout.settle(flags, settings, environment, folder, devices, notes.append)
        yield from notes
        chosen = assemble.choose_devices(settings, devices)
        with contextlib.closing(probe.Probe(settings, environment, chosen, available=devices)) as probed:
            yield from _placement(probed)
            template = probed.parts.layout.template(probed.keys)
            memory_use.check(settings, template.replay, environment.spec.num_agents)
            programs = [_compile_training(probed, template)]
            yield from _memory(template, programs[0], chosen)
            programs += _compile_rest(probed)
            yield from _schedules(settings, probed.parts, probed.state.learner.params)
            yield "compilation"
            yield from (f"  {one.name}: {one.seconds:.1f} s" for one in programs)
            probed.run(probe_s)
            yield from _speed(settings, probed)
            if num_processes > 1:
                exchanged = exchanges.of_iteration(flags, probed.updates_per_iteration)
                yield from exchanges.describe(exchanged, num_processes, probed.seconds / probed.iterations)


def _placement(probed: probe.Probe) -> list[str]:
    """Says what runs where."""
    layout, settings = probed.parts.layout, probed.parts.settings
    lines = [
        f"placement: {settings['layout']}, {mesh.describe(layout.mesh)}",
        *(f"  {line}" for line in layout.placement),
    ]
    return [*lines, f"  {probed.parts.protocol}"] if probed.parts.protocol else lines


def parts(template: Any) -> dict[str, dict[str, int]]:
    """Returns the bytes of each part of a run's state by place, without empty parts.

    Args:
        template: from `Layout.template`.
    """
    trees = {name: getattr(template.learner, field) for name, field in _LEARNER.items()}
    trees |= {name: [getattr(template, field, ()) for field in fields] for name, fields in _OTHERS.items()}
    sizes = {name: memory_use.places(tree) for name, tree in trees.items()}
    return {name: by_place for name, by_place in sizes.items() if any(by_place.values())}


def _memory(template: Any, training: Compiled, devices: Sequence[jax.Device]) -> list[str]:
    """Lists the bytes of each part by device, in one line for equal devices, and the free memory."""
    table = parts(template)
    learners = [f"{device.platform}:{device.id}" for device in devices]
    table["program's own, in training"] = dict.fromkeys(learners, training.temporaries)
    places = list(dict.fromkeys(place for sizes in table.values() for place in sizes))
    lines = []
    for place in places:
        own = {name: sizes[place] for name, sizes in table.items() if sizes.get(place)}
        listed = ", ".join(f"{name} {memory_use.readable(size)}" for name, size in own.items())
        lines.append(f"{memory_use.readable(sum(own.values()))} ({listed})")
    free = f"free: {memory_use.readable(memory_use.free_on_one(devices))} on each of the learner's devices"
    alike = {line: [place for place, other in zip(places, lines, strict=True) if other == line] for line in lines}
    return ["memory", *(f"  {', '.join(names)}: {line}" for line, names in alike.items()), f"  {free}"]


def _compile_training(probed: probe.Probe, template: Any) -> Compiled:
    layout, started_s = probed.parts.layout, time.perf_counter()
    compiled = layout.program.lower(*layout.run_arguments(template, 0, 1, 1)).compile()
    analysis = compiled.memory_analysis()
    return Compiled("training", time.perf_counter() - started_s, analysis.temp_size_in_bytes if analysis else 0)


def _compile_rest(probed: probe.Probe) -> list[Compiled]:
    """Compiles the other programs of a run, by running them."""
    started_s = time.perf_counter()
    probed.warm_up()
    trained_s = time.perf_counter()
    probed.parts.evaluate(probed.state.learner.params, probed.keys, 0, limit=0)
    rest = Compiled("the rest of it, until the first update", trained_s - started_s, 0)
    return [rest, Compiled("evaluation", time.perf_counter() - trained_s, 0)]


def schedules(settings: resolve.Resolved, parts: assemble.Assembly, params: types.Params) -> dict[str, list[str]]:
    """Returns the scheduled settings of a run by name, each with its value after 0, 25, 50, 75 and 100 % of it.

    A value is the largest and the smallest one if members of a sweep, or environments, differ.

    Args:
        settings: settings of the run.
        parts: parts of the run.
        params: parameters of its seeds, leaves [S, ...].
    """
    members = [settings.replaced(values) for values in sweep.combinations(settings)]
    rules = [member.group("learner", learner.Config) for member in members]
    num_envs = settings["env.num_envs"] * parts.environment.spec.num_agents
    sizes = [np.array([learner.learning_rate(one, jnp.float32(share)) for one in rules]) for share in _SHARES]
    rows = {"step size": [_range(values) for values in sizes]}
    explore = jax.vmap(parts.agent.exploration, in_axes=(0, None, None, None))
    exploring = [explore(params, np.arange(num_envs), num_envs, np.float32(share)) for share in _SHARES]
    # Of one number for each environment; noise on parameters is a tree.
    if not types.is_tree(exploring[0]) and any(np.asarray(values).any() for values in exploring):
        rows["ε"] = [_range(np.asarray(values)) for values in exploring]
    ends = [settings.settings.get(f"replay.importance_exponent{end}") for end in ("", "_end")]
    if ends[0] is not None:
        rows["β of the importance weights"] = [f"{ends[0] + share * (ends[1] - ends[0]):.3g}" for share in _SHARES]
    return rows


def _schedules(settings: resolve.Resolved, parts: assemble.Assembly, params: types.Params) -> list[str]:
    rows = parts.layout.rows_per_iteration
    total = -(-settings["steps"] // rows)
    lines = [
        f"schedules, at {', '.join(f'{share:.0%}' for share in _SHARES)} of {total:,} iterations of {rows:,} steps"
    ]
    lines += [f"  {name}: {', '.join(values)}" for name, values in schedules(settings, parts, params).items()]
    if "replay.min_size" in settings.settings:
        begins = -(-settings["replay.min_size"] // parts.environment.spec.num_agents)
        lines.append(f"  learning begins after {begins:,} steps")
    log, evaluation = (every * parts.layout.rows_per_iteration for every in session.intervals(parts))
    return [*lines, f"  a log line every {log:,} steps, an evaluation every {evaluation:,}"]


def _range(values: np.ndarray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if math.isclose(low, high) else f"{high:.3g} to {low:.3g}"


def bottleneck(probed: probe.Probe) -> str:
    """Says what takes most of a probe's time; the probe's state must not be used again."""
    report = probed.report()
    if "bottleneck" in report:
        return _of_threads(report)
    if probed.parts.settings["layout"] == "anakin" and isinstance(probed.parts.environment, envs.Environment):
        whole = probed.seconds / probed.iterations
        share = min(probe.acting_seconds(probed, max(1, probed.iterations // 4)) / whole, 1.0)
        name = "environments and acting" if share > 0.5 else "learning"
        return f"{name} (environments and acting {share:.0%} of the time, learning {1 - share:.0%})"
    return "not told apart, since workers play and learn in one program"


def _of_threads(report: Mapping[str, Any]) -> str:
    acting = ", ".join(f"{name} {report[f'share_{name}']:.0%}" for name in ("environment", "inference", "transfer"))
    return f"{report['bottleneck']} (actors: {acting}; the learner learns {report['share_learning']:.0%} of its time)"


def _speed(settings: resolve.Resolved, probed: probe.Probe) -> list[str]:
    speed, total = probed.steps_per_second, records.env_steps(probed.parts, 1)
    iterations = -(-settings["steps"] // total)
    minutes = iterations * total * sweep.num_members(settings) / speed / 60
    updates = f"{probed.updates_per_iteration * iterations:,.0f} updates" if probed.learns else "no update seen yet"
    busiest = bottleneck(probed)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
    return [
        f"speed, of {probed.iterations:,} iterations in {probed.seconds:.1f} s",
        f"  {speed:,.0f} steps/s: {settings['steps']:,} steps take {_duration(minutes)}, without "
        f"evaluations; {updates} per seed",
        f"  bottleneck: {busiest}",
        f"  memory of this process: {memory_use.readable(most)} at most",
    ]


def _duration(minutes: float) -> str:
    if minutes < 1:
        return f"{minutes * 60:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
