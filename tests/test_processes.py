"""Words between processes: identities with one; what two do is in `training/test_several_processes.py`."""

import types

import conftest
import pytest

from jaxrl_dist import processes
from jaxrl_dist.training import stop


def test_one_process_decides_for_itself() -> None:
    said = []
    assert processes.exchange("word", lambda words: said.append(words) or "decided") == "decided"
    assert said == [["word"]]
    assert (processes.count(), processes.index(), processes.is_first()) == (1, 0, True)
    assert processes.agreed([1]) == [1]
    assert processes.any_of(True) and not processes.all_of(False)


def test_exceptions_pass_as_they_are_in_one_process() -> None:
    fault = KeyError("own")
    with pytest.raises(KeyError) as found, processes.alike():
        raise fault
    assert found.value is fault
    with processes.watched(stop.StopToken()), processes.begun(processes.Group()):
        assert processes.count() == 1


def test_devices_are_grouped_by_process() -> None:
    devices = [types.SimpleNamespace(process_index=index, name=name) for index, name in ((1, "c"), (0, "a"), (0, "b"))]
    assert [[device.name for device in own] for own in processes.by_process(devices)] == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"processes": "0"}, ("--processes=0", "auto")),
        ({"processes": "2", "process_index": 2}, ("--process_index=2", "0 to 1")),
        ({"processes": "2", "coordinator": "there"}, ("--coordinator=there", "HOST:PORT")),
        ({"processes": "2", "coordinator": "there:99999"}, ("--coordinator=there:99999", "HOST:PORT")),
    ],
)
def test_processes_that_cannot_be_are_refused(given: dict[str, str], words: tuple[str, ...]) -> None:
    with conftest.refused(*words):
        processes.Group(**given)
