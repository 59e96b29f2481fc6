"""Words between processes: identities with one; what two do is in `training/test_several_processes.py`."""

import types

import conftest
import pytest

from jaxrl_dist import processes
from jaxrl_dist.processes import group
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


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "1"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, [3]),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,8(x11)"}, [3]),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, [3]),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, None),
        ({}, [3]),
    ],
)
def test_a_process_that_is_alone_on_its_machine_has_all_its_accelerators(
    given: dict[str, str], devices: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", "SLURM_STEP_NODELIST": "node[3-4]"}
    for name in ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "JAX_COORDINATOR_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**job, "SLURM_PROCID": "11", "SLURM_LOCALID": "3", **given}.items():
        monkeypatch.setenv(name, value)
    place = group._place(processes.Group(processes.AUTO))
    assert (place.count, place.index, place.local_devices) == (16, 11, devices)
    assert place.address.startswith("node3:")


@pytest.mark.parametrize("address", ["myhost", "myhost:", "myhost:port", ":1234", "myhost:65536"])
def test_an_address_that_is_inherited_is_checked_as_one_that_is_given(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    with conftest.refused(f"JAX_COORDINATOR_ADDRESS={address}", "HOST:PORT"):
        group._place(processes.Group("2", 1))
    with conftest.refused(f"--coordinator={address}", "HOST:PORT"):
        processes.Group("2", 1, address)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "myhost:1234")
    assert group._place(processes.Group("2", 1)).address == "myhost:1234"
    assert group._place(processes.Group("2", 1, "127.0.0.1:4321")).address == "127.0.0.1:4321"
