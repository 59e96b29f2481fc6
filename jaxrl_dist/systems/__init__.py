"""The systems: the agent, replay and layouts of each one, and its published settings with their sources.

Each file of this room has a tuple `SYSTEMS` of `System` records; a user's own system, `--system=my_module:SYSTEM`, is
the same record.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping

from jaxrl_dist import agents, parallel
from jaxrl_dist import replay as replays
from jaxrl_dist.settings import Cited
from jaxrl_dist.systems.families import ANY, FAMILIES, Families, lineage

__all__ = ["ANY", "FAMILIES", "SYSTEMS", "Families", "System"]


@dataclasses.dataclass(frozen=True)
class System:
    """One row of the table.

    Attributes:
        name: as in `--system`.
        agent: (config, `types.EnvironmentSpec`, `networks.Config`) -> `agents.Agent`; with `model` it takes
            `envs.Environment.step` too.
        config: dataclass of the agent's settings, `--agent.*`.
        replay: kind of its replay.
        layouts: layouts that it can run in, its own first.
        actions: kinds of actions that the agent takes: `discrete`, vectors of choices (`multi_discrete`), and `bounded`
            or `unbounded` real vectors.
        settings: flag name -> `settings.Cited`, a value of the system's paper and its source (`settings.cited` makes
            them), above the defaults of the Config classes.
        families: task family -> flag name -> `settings.Cited`, above `settings`.
        by_layout: name of a layout -> task family, or `ANY` of them -> flag name -> `settings.Cited`, a value that only
            this layout has or needs, above `families`.
        summary: one line for `--help`.
        sequences: whether a minibatch is of whole columns of an unroll even without a memory.
        model: whether the agent steps environments in thought, from `types.ActInputs.state`; for layouts that step
            them on the device.
        self_play: whether the agent can play both sides of a game in turn (`types.EnvironmentSpec.players` of 2).

    Example:
        >>> from jaxrl_dist import systems
        >>> row = systems.SYSTEMS["dqn"]
        >>> row.layout_names, row.replay.name, row.actions
        (('anakin', 'sebulba', 'async_gradient'), 'uniform', ('discrete',))
        >>> row.families["classic"]["learner.learning_rate"]
        Cited(value=0.0001, source='Stable-Baselines3 dqn.py (Raffin et al. 2021)')
    """

    name: str
    agent: Callable[..., agents.Agent]
    config: type
    replay: replays.Kind
    layouts: tuple[parallel.LayoutSpec, ...]
    actions: tuple[str, ...]
    settings: Mapping[str, Cited] = dataclasses.field(default_factory=dict)
    families: Families = dataclasses.field(default_factory=dict)
    by_layout: Mapping[str, Families] = dataclasses.field(default_factory=dict)
    summary: str = ""
    sequences: bool = False
    model: bool = False
    self_play: bool = False

    def __repr__(self) -> str:
        layouts, actions = ", ".join(self.layout_names), ", ".join(self.actions)
        return f"System({self.name}: replay {self.replay.name}; layouts {layouts}; actions {actions})"

    def settings_in(self, layout: str, family: str | None) -> Mapping[str, Cited]:
        """Returns the values of `by_layout` for this layout, and for tasks of a family (None while it is unknown)."""
        own, named = self.by_layout.get(layout, {}), (ANY, *lineage(family or ANY))
        return {name: value for one in named for name, value in own.get(one, {}).items()}

    @property
    def layout_names(self) -> tuple[str, ...]:
        """The names of its layouts, its own first."""
        return tuple(one.name for one in self.layouts)

    def layout(self, name: str) -> parallel.LayoutSpec:
        """Returns one of its layouts by name."""
        return next(one for one in self.layouts if one.name == name)


def _rows() -> dict[str, System]:
    """Collects the rows of all files of this room."""
    files = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {row.name: row for file in files for row in getattr(file, "SYSTEMS", ())}


SYSTEMS: Mapping[str, System] = _rows()
