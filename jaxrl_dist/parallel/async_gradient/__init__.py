"""The asynchronous layout: workers play and send gradients, a parameter server applies them one by one."""

from jaxrl_dist.parallel.async_gradient.layout import LAYOUT, AsyncGradient, Config, choose_devices
from jaxrl_dist.parallel.async_gradient.plan import replay_shards

__all__ = ["AsyncGradient", "Config", "LAYOUT", "choose_devices", "replay_shards"]
