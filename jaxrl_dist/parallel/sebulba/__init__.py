"""The Sebulba layout: actor threads play CPU environments, learners on the accelerators take their unrolls."""

from jaxrl_dist.parallel.sebulba.layout import LAYOUT, Config, Sebulba, choose_devices

__all__ = ["Config", "LAYOUT", "Sebulba", "choose_devices"]
