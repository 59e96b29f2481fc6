"""The asynchronous layout: workers play and send gradients, a parameter server applies them one by one."""

from jaxrl_dist.parallel.async_gradient.layout import LAYOUT, Config, choose_devices, make, replay_shards

__all__ = ["Config", "LAYOUT", "choose_devices", "make", "replay_shards"]
