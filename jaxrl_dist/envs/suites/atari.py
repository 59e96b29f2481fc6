"""The named protocols under which Atari is played, in EnvPool's settings, and the line that describes one."""

from collections.abc import Mapping
from typing import Any

from jaxrl_dist.envs import parameters

# The protocol of DQN's papers (Mnih et al. 2015), and that of Machado et al. 2018 (arXiv:1709.06009).
PROTOCOLS: dict[str, dict[str, Any]] = {
    "deepmind": {
        "noop_max": 30,
        "use_fire_reset": True,
        "life_loss": True,
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "max_episode_steps": 27000,
        "frame_skip": 4,
    },
    "machado": {
        "noop_max": 1,
        "use_fire_reset": False,
        "life_loss": False,
        "repeat_action_probability": 0.25,
        "full_action_space": True,
        "max_episode_steps": 27000,
        "frame_skip": 4,
    },
}
# Defaults of the parameters that this project adds to EnvPool's own.
DEFAULTS: dict[str, Any] = {"protocol": "deepmind", "life_loss": True}
# Neither library checks these: a lower value ends the process or makes it step nothing.
_LOWEST = {"frame_skip": 1, "noop_max": 1, "max_episode_steps": 1, "num_threads": 0, "img_height": 1, "img_width": 1}
_MOST_THREADS = 1024


def choose(given: Mapping[str, Any]) -> tuple[str, bool, dict[str, Any]]:
    """Chooses a protocol.

    Args:
        given: settings that the user gave, among them perhaps `protocol`.

    Returns:
        The line that names the protocol, whether a life loss ends the return, and EnvPool's settings.

    Raises:
        UsageError: there is no such protocol.
    """
    given = dict(given)
    name = given.pop("protocol", DEFAULTS["protocol"])
    parameters.check_choice("protocol", name, PROTOCOLS)
    values = {**PROTOCOLS[name], **given}
    changed = {k: v for k, v in given.items() if k != "num_threads" and v != PROTOCOLS[name].get(k)}
    sticky, noops, steps = values["repeat_action_probability"], values["noop_max"], values["max_episode_steps"]
    facts = (
        f"Atari protocol {name}" + (f", changed by {parameters.list_params(changed)}" if changed else ""),
        f"sticky actions {sticky:g}" if sticky else "no sticky actions",
        f"up to {noops} no-ops at the start" if noops > 1 else "no random no-ops",
        "fire at the start" if values["use_fire_reset"] else "no fire at the start",
        "a life loss ends the return" if values["life_loss"] else "a life loss ends nothing",
        "all 18 actions" if values["full_action_space"] else "minimal actions",
        f"at most {steps} steps of {values['frame_skip']} frames",
        "raw rewards (agent.clip_rewards clips)",
    )
    return ": ".join((facts[0], ", ".join(facts[1:]))), values.pop("life_loss"), values


def check_ranges(values: Mapping[str, Any]) -> None:
    """Checks the settings that EnvPool and ale-py have in common, where they are given.

    Raises:
        UsageError: one is out of its range.
    """
    parameters.check_least(values, _LOWEST)
    threads, sticky = values.get("num_threads", 0), values.get("repeat_action_probability", 0.0)
    if threads > _MOST_THREADS:
        raise parameters.refused("num_threads", threads, f"expected 0 to {_MOST_THREADS}")
    if not 0 <= sticky <= 1:
        raise parameters.refused("repeat_action_probability", sticky, "expected a probability, 0 to 1")
