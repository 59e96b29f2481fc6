"""The Sebulba layout: actor threads play CPU environments, learners on the accelerators take their unrolls."""

from jaxrl_dist.parallel.sebulba.layout import LAYOUT, Config, Sebulba, choose_devices, replay_shards

__all__ = ["Config", "LAYOUT", "Sebulba", "choose_devices", "replay_shards"]
