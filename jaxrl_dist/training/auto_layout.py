"""Chooses settings that only change the speed, by trying them for about ten seconds: `--layout=auto`.

It may choose the layout, the devices, the number of actors, the simulator's threads, and, where actors take the newest
parameters anyway, the number of environments that act together. It does not touch settings that change what is learned
(environments and rows per update, replay, policy lag, optimiser), nor those that a flag or a preset names.
"""

import contextlib
import functools
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxrl_dist import envs, errors
from jaxrl_dist.processes import cgroups
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import resolve
from jaxrl_dist.systems import catalogue
from jaxrl_dist.training import assemble, probe

Measured = Mapping[str, tuple[Any, str]]
Option = dict[str, Any]

_SLICE_S = 0.5
_ROUNDS = 3
# A smaller gain may be due to chance; then the first option, the usual one, is kept.
_CLEARLY = 1.03
_REPLAY_ROWS = 2**16
_THREADS = {"envpool": "num_threads", "gymnasium": "workers"}


def settle(
    named: Mapping[str, Any],
    settings: resolve.Resolved,
    environment: envs.Environment | envs.HostTask,
    folder: pathlib.Path,
    devices: Sequence[jax.Device],
    say: Callable[[str], None],
) -> tuple[resolve.Resolved, envs.Environment | envs.HostTask]:
    """Returns settings and environment; under `--layout=auto` with the choices of an earlier session, or new ones.

    Args:
        named: settings by flag name, as the user gave them.
        settings: the resolved settings.
        environment: the environment that they name.
        folder: run folder, which may hold an earlier session.
        devices: devices to choose from.
        say: prints a line.

    Raises:
        UsageError: simulators connect by themselves, or settings are not valid.
    """
    if named.get("layout") != resolve.AUTO:
        return settings, environment
    contents = folders.held(folder)
    earlier = {} if contents is None else catalogue.measured_in(contents, settings)
    measured = earlier or Trials(named, devices, say).choose(settings)
    return assemble.resolve(named, measured)


class Trials(NamedTuple):
    """Tries the choices that a run has.

    Attributes:
        named: settings by flag name, as the user gave them.
        devices: devices to choose from.
        say: prints a line.
    """

    named: Mapping[str, Any]
    devices: Sequence[jax.Device]
    say: Callable[[str], None]

    def choose(self, settings: resolve.Resolved) -> Measured:
        """Makes one choice after the other, each with the best options of the choices before.

        Args:
            settings: the resolved settings.

        Returns:
            The chosen values by flag name, each with its origin.

        Raises:
            UsageError: simulators connect by themselves.
        """
        if settings["env"].startswith("external:"):
            raise errors.UsageError(
                errors.given("layout", resolve.AUTO),
                f": simulators of {settings['env']} connect by themselves, so no layout can be tried",
            )
        measured: dict[str, tuple[Any, str]] = {"layout": (settings["layout"], f"{resolve.AUTO}: the only one")}
        for options in (_layouts, functools.partial(_devices, self.devices), _actors, _threads, _together):
            resolved = assemble.resolve(self.named, measured)[0]
            tried = [one for one in options(resolved) if not _is_fixed(resolved, one)]
            if len(tried) < 2:
                continue
            speeds = self.speeds(measured, tried)
            for option, speed in zip(tried, speeds, strict=True):
                if speed:
                    self.say(f"{resolve.AUTO}: {_text(option)}: {speed:,.0f} steps/s")
            if not any(speeds):
                # No option is possible: the run itself reports the error.
                return measured
            best = max(range(len(tried)), key=lambda i: speeds[i])
            if speeds[best] < speeds[0] * _CLEARLY:
                best = 0
            origin = f"{resolve.AUTO}: {speeds[best]:,.0f} steps/s, the best of {sum(map(bool, speeds))} tried"
            measured |= {name: (value, origin) for name, value in tried[best].items()}
        return measured

    def speeds(self, measured: Measured, options: Sequence[Option]) -> list[float]:
        """Returns the steps per second of each option, measured in turns; 0 for one that is not possible."""
        with contextlib.ExitStack() as stack:
            probes = [self._probe(measured, option, stack) for option in options]
            for _ in range(_ROUNDS):
                for i, one in enumerate(probes):
                    # One round is enough where an iteration takes long.
                    if one is not None and one.seconds < _ROUNDS * _SLICE_S:
                        probes[i] = self._tried(options[i], one, functools.partial(one.run, _SLICE_S))
            return [statistics.median(one.rates) if one else 0.0 for one in probes]

    def _probe(self, measured: Measured, option: Option, stack: contextlib.ExitStack) -> probe.Probe | None:
        """Returns the warm probe of an option, which the stack closes; says why and returns None if it is refused."""
        entries = {name: (value, resolve.AUTO) for name, value in option.items()}
        try:
            settings, environment = assemble.resolve(self.named, {**measured, **entries})
            chosen = assemble.choose_devices(settings, self.devices)
            made = probe.Probe(settings, environment, chosen, _REPLAY_ROWS, self.devices)
        except errors.UsageError as error:
            self._refuse(option, errors.as_typed(error))
            return None
        stack.callback(made.close)
        return self._tried(option, made, made.warm_up)

    def _tried(self, option: Option, made: probe.Probe, run: Callable[[], object]) -> probe.Probe | None:
        """Runs a probe and returns it, None if it fails where another option may not, as by the memory of a device."""
        try:
            run()
        except (errors.EnvironmentFault, MemoryError, jax.errors.JaxRuntimeError) as error:
            made.close()
            self._refuse(option, str(error).partition("\n")[0])
            return None
        return made

    def _refuse(self, option: Option, reason: str) -> None:
        self.say(f"{resolve.AUTO}: {_text(option)} is not possible: {reason}")


def _layouts(settings: resolve.Resolved) -> list[Option]:
    """Returns the layouts with equal results: Anakin, and Sebulba with actors that wait for the learner."""
    options: list[Option] = [{"layout": settings["layout"]}]
    row = settings.row
    if settings["layout"] == "anakin" and "sebulba" in row.layout_names and settings["num_seeds"] == 1:
        same = {"layout.policy_lag": "0", "layout.unroll_length": settings["layout.unroll_length"]}
        options.append({"layout": "sebulba", **same})
    return options


def _devices(devices: Sequence[jax.Device], settings: resolve.Resolved) -> list[Option]:
    """Returns numbers of devices that learn; under Sebulba on several accelerators, also one half that learns alone."""
    chosen, count = len(assemble.choose_devices(settings, devices)), len(devices)
    counts = list(dict.fromkeys([chosen, *(2**i for i in range(count.bit_length()) if 2**i <= count), count]))
    if settings["layout"] == "anakin":
        return [{"layout.num_devices": n} for n in counts]
    if settings["layout"] != "sebulba":
        return []
    names = [f"{device.platform}:{device.id}" for device in devices]
    options: list[Option] = [{"layout.learner_devices": ",".join(names[:n])} for n in counts]
    if devices[0].platform != "cpu" and count > 1 and settings["layout.inference"] == "per_actor":
        half = {"layout.learner_devices": ",".join(names[count // 2 :])}
        options.append({**half, "layout.actor_devices": ",".join(names[: count // 2])})
    return options


def _actors(settings: resolve.Resolved) -> list[Option]:
    """Returns numbers of actors, up to one per core; the learner takes the unrolls of all, so results are equal."""
    if settings["layout"] != "sebulba" or settings["layout.quorum"] or settings["layout.inference"] == "central":
        return []
    cores, envs_in_all = cgroups.num_cores(), settings["env.num_envs"]
    counts = [settings["layout.num_actors"], *(2**i for i in range(4) if 2**i <= cores and envs_in_all % 2**i == 0)]
    return [{"layout.num_actors": n} for n in dict.fromkeys(counts)]


def _threads(settings: resolve.Resolved) -> list[Option]:
    """Returns numbers of threads or processes in which a suite steps its environments; 0 is its own choice."""
    name = _THREADS.get(settings["env"].partition(":")[0], "")
    cores = cgroups.num_cores()
    counts = dict.fromkeys([0, *(n for n in (cores // 2, 2 * cores) if n)])
    return [{f"{resolve.PARAMS}{name}": str(n)} for n in counts] if name else []


def _together(settings: resolve.Resolved) -> list[Option]:
    """Returns numbers of environments that act together, for runs whose results depend on timing anyway."""
    if settings["layout"] != "sebulba" or settings["layout.policy_lag"] != "free" or settings["layout.quorum"]:
        return []
    width = settings["env.num_envs"] // settings["layout.num_actors"]
    counts = [settings["layout.ready_envs"], *(width // n for n in (2, 4) if width % n == 0)]
    return [{"layout.ready_envs": n} for n in dict.fromkeys(counts)]


def _is_fixed(settings: resolve.Resolved, option: Option) -> bool:
    """Says whether an option would change a setting that a flag or a preset has named."""
    changed = [name for name, value in option.items() if settings.settings.get(name) != value]
    return any(resolve.is_given(settings.origins.get(name, "")) for name in changed)


def _text(option: Option) -> str:
    return " ".join(f"--{name}={value}" for name, value in option.items())
