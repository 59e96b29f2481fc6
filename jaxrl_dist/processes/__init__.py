"""The processes of one run: how they begin, what they agree on, and how each learns of the faults of others.

Every process runs the same program. Arrays cross between their devices inside compiled programs; the few words here
cross by JAX's coordination service. With one process everything here is an identity. Nothing here imports JAX before
it is called.
"""

from jaxrl_dist.processes.agreement import (
    ProcessFault,
    agreed,
    alike,
    all_of,
    any_of,
    by_process,
    count,
    exchange,
    index,
    is_first,
    nonce,
)
from jaxrl_dist.processes.group import AUTO, Group, begun
from jaxrl_dist.processes.watch import HEARTBEAT_S, Stop, watched

__all__ = [
    "AUTO",
    "HEARTBEAT_S",
    "Group",
    "ProcessFault",
    "Stop",
    "agreed",
    "alike",
    "all_of",
    "any_of",
    "begun",
    "by_process",
    "count",
    "exchange",
    "index",
    "is_first",
    "nonce",
    "watched",
]
