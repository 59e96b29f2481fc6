"""Words between the processes of a run: who they are, and what they agree on.

The words cross by JAX's coordination service, so that every wait for another process ends if that one fails or dies.
With one process everything here is an identity.
"""

import contextlib
import json
import math
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from jaxrl_dist import errors

_POLL_MS = 200
# Process 0, which says that another one is late, is waited for so much longer.
_LATER_S = 5.0

# Numbers of the run in this process, and of its exchanges so far: the same in all processes.
_run = _made = 0
# What the exchange before said, which everyone has read who has come to this one.
_spent: list[str] = []

Said = TypeVar("Said")
Decided = TypeVar("Decided")


class ProcessFault(RuntimeError):
    """Another process of the run failed or died; the message names it and repeats its own."""


def count() -> int:
    """Returns the number of processes of this run, without starting a backend of JAX."""
    return int(state().num_processes) if "jax" in sys.modules else 1


def index() -> int:
    """Returns the index of this process."""
    return int(state().process_id) if "jax" in sys.modules else 0


def is_first() -> bool:
    """Says whether this is process 0, which decides, writes and speaks."""
    return index() == 0


def by_process(devices: Iterable[Any]) -> list[list[Any]]:
    """Returns the devices of each process, in the order of processes.

    Args:
        devices: of all processes.
    """
    found: dict[int, list[Any]] = {}
    for device in devices:
        found.setdefault(device.process_index, []).append(device)
    return [found[one] for one in sorted(found)]


def exchange(said: Said, decide: Callable[[list[Said]], Decided], within_s: float = math.inf) -> Decided:
    """Gives all processes one decision, which process 0 makes of what each of them says.

    Every process must make the same exchanges in the same order. One process only calls the function.

    Args:
        said: by this process, of JSON's types.
        decide: (what each process says, by index) -> decision, of JSON's types; called in process 0 alone.
        within_s: seconds that a process which lives is waited for.

    Raises:
        ProcessFault: another process failed, in `decide` or on its way to this exchange, and raises its own exception;
            or it was not here in time.
    """
    if count() == 1:
        return decide([said])
    result: Decided = _exchange({"said": said}, decide, within_s=within_s)
    return result


def agreed(value: Decided) -> Decided:
    """Returns the value that process 0 has, of JSON's types."""
    return exchange(value, lambda said: said[0])


def any_of(value: bool) -> bool:
    """Says whether something is true in a process."""
    return exchange(bool(value), any)


def all_of(value: bool) -> bool:
    """Says whether something is true in every process."""
    return exchange(bool(value), all)


def nonce() -> str:
    """Returns a random text, the same in all processes."""
    return agreed(secrets.token_hex(8))


@contextlib.contextmanager
def alike(within_s: float = math.inf) -> Iterator[None]:
    """Makes a failure within the context one of all processes; all must enter it. One process notices nothing.

    Args:
        within_s: seconds that a process which has left the context waits for one that lives.

    Raises:
        ProcessFault: it failed in another process, which may be that it did not end in time.
    """
    try:
        yield
    except Exception as fault:
        # One that comes from the last exchange is known to all; the same one may be raised again later.
        if count() > 1 and getattr(fault, "shared_in", None) != (_run, _made):
            _exchange({"fault": described(fault)}, lambda said: said, fault, within_s)
        raise
    if count() > 1:
        exchange(None, lambda said: None, within_s)


def begin_run() -> None:
    """Counts a run that begins, and its exchanges from none."""
    global _run, _made
    _run, _made = _run + 1, 0
    _spent.clear()


def place_of_watch() -> str:
    """Returns the place of the words that each process says by itself, see `watch`."""
    return f"{_run}/watch"


def _exchange(
    said: dict[str, Any],
    decide: Callable[[list[Any]], Any],
    own: BaseException | None = None,
    within_s: float = math.inf,
) -> Any:
    """Makes one exchange; `own` is the fault that this process brings, which the caller raises."""
    global _made
    _made += 1
    client, place, fault = state().client, f"{_run}/{_made}", own
    if not is_first():
        client.key_value_set(f"{place}/{index()}", json.dumps(said))
    else:
        others = [json.loads(_wait(f"{place}/{other}", other, within_s)) for other in range(1, count())]
        everyone = [said, *others]
        faults = [(number, one["fault"]) for number, one in enumerate(everyone) if "fault" in one]
        if faults:
            verdict: dict[str, Any] = {"from": faults[0][0], "fault": faults[0][1]}
        else:
            try:
                verdict = {"decided": decide([one["said"] for one in everyone])}
                json.dumps(verdict)
            except Exception as error:
                fault, verdict = error, {"from": 0, "fault": described(error)}
        client.key_value_set(f"{place}/decided", json.dumps(verdict))
        _forget(place)
    verdict = json.loads(_wait(f"{place}/decided", 0, within_s + _LATER_S))
    if fault is not None:
        fault.shared_in = _run, _made  # type: ignore[attr-defined]
        if own is None:
            raise fault
        return None
    if "fault" in verdict:
        raise fault_of(verdict["from"], verdict["fault"])
    return verdict["decided"]


def _forget(place: str) -> None:
    """Deletes the words of the exchange before, which everyone has read who has come to this one."""
    while _spent:
        state().client.key_value_delete(_spent.pop())
    _spent.append(place)


def _wait(key: str, sender: int, within_s: float) -> str:
    """Waits until a process says a word; ends if one has failed or is late, and the watch ends it if one has died."""
    import jax

    client, gone, until_s = state().client, "", time.monotonic() + within_s
    while True:
        try:
            return str(client.blocking_key_value_get(key, _POLL_MS))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if gone:
            raise fault_of(int(gone), ["fault", "it has ended"])
        if time.monotonic() > until_s:
            raise fault_of(sender, ["fault", f"it lives, but is not done after {within_s:g} s"])
        for name, text in client.key_value_dir_get(f"{place_of_watch()}/"):
            *_, kind, number = name.split("/")
            if kind == "fault" and int(number) != index():
                raise fault_of(int(number), json.loads(text))
            # Its last word may have come since this process looked for it: that looks once more.
            gone = number if kind == "over" else gone


def described(fault: BaseException) -> list[str]:
    """Returns the kind and the line of a fault, as the others repeat it."""
    kind = "usage" if isinstance(fault, errors.UsageError) else "fault"
    line = (errors.as_typed(fault).strip() or type(fault).__name__).splitlines()[0]
    return [kind, line]


def fault_of(number: int, described: Sequence[str]) -> Exception:
    kind, line = described
    fault: Exception = errors.UsageError(line) if kind == "usage" else ProcessFault(f"process {number}: {line}")
    fault.shared_in = _run, _made  # type: ignore[attr-defined]
    return fault


def state() -> Any:
    # JAX offers the words of its coordination service nowhere else; Orbax reads them here, too.
    from jax._src import distributed

    return distributed.global_state
