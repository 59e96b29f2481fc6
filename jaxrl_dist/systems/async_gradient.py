"""Settings that systems need in `async_gradient` alone: one gradient per unroll, and no running statistics."""

from jaxrl_dist.settings import OURS, Cited, cited
from jaxrl_dist.systems.families import ANY, Families

_ONCE = cited(f"{OURS}: one gradient per unroll", {"learner.epochs": 1, "learner.minibatches": 1})
_NO_STATISTICS = cited(
    f"{OURS}: async_gradient keeps no running statistics",
    {"agent.normalise_observations": False, "agent.scale_rewards": False},
)
_AS_THEY_ARE = cited(
    f"{OURS}: bounds for normalised numbers", {"agent.clip_observations": 0.0, "agent.clip_rewards": 0.0}
)
_UNBOUNDED: Families = dict.fromkeys(("grid", "continuous", "physics"), _AS_THEY_ARE)
_ONE_EACH = cited(f"{OURS}: one for each worker", {"env.num_envs": 4})
# With as many taught rows per row as in the system's own layout, an unroll of a worker's then gives one batch.
_PACE = f"{OURS}: one gradient per unroll, at the system's own pace"
_TWO_EACH = cited(_PACE, {"env.num_envs": 8, "layout.unroll_length": 5})

A3C: Families = {ANY: _NO_STATISTICS, **_UNBOUNDED}


def _unroll(length: int) -> dict[str, Cited]:
    return cited(
        f"{OURS}: rows are gone over once, so that an unroll is one minibatch", {"layout.unroll_length": length}
    )


# A worker's rows are as many as a minibatch of the system's own layout has.
PPO: Families = {
    ANY: {**_ONCE, **_NO_STATISTICS},
    "long": _unroll(16),
    "grid": _AS_THEY_ARE,
    "minatar": _unroll(64),
    "continuous": {**_AS_THEY_ARE, **_ONE_EACH, **_unroll(64)},
    "physics": {**_AS_THEY_ARE, **_unroll(10)},
}
VMPO: Families = {**PPO, "classic": _unroll(16)}
IMPALA: Families = {ANY: {**_ONCE, **_NO_STATISTICS}, **_UNBOUNDED}
IMPALA_REPLAY: Families = {ANY: _NO_STATISTICS, **_UNBOUNDED}
PQN: Families = {ANY: _ONCE}
# Of agents that learn values of actions; DQN has values of its own for long tasks.
VALUES: Families = {ANY: _ONE_EACH, "classic": _TWO_EACH}
DQN: Families = {**VALUES, "long": {**_ONE_EACH, **cited(_PACE, {"layout.unroll_length": 1})}}
R2D2: Families = {"atari": cited(f"{OURS}: one gradient per unroll", {"replay.samples_per_insert": 2.0})}
APE_X: Families = {
    ANY: cited(_PACE, {"layout.unroll_length": 10}),
    "classic": cited(_PACE, {"layout.unroll_length": 2}),
    "minatar": {**_ONE_EACH, **cited(_PACE, {"layout.unroll_length": 1})},
}
# Batches have as many rows as are taught per row: 256, and 64 of D4PG in the family `continuous`.
DPG: Families = {ANY: {**_ONE_EACH, **cited(_PACE, {"layout.unroll_length": 1})}}
# Batches of 256 at 64 taught rows per row, and of 64 in the family `continuous`.
MPO: Families = {
    ANY: {**_ONE_EACH, **cited(_PACE, {"layout.unroll_length": 4})},
    "continuous": DPG[ANY],
}
APE_X_DPG: Families = {
    ANY: {**DPG[ANY], **cited(f"{OURS}: one gradient per unroll of one row", {"replay.samples_per_insert": 256.0})}
}
