"""One rank's parked state: what counts and until when, whatever its memory does; no processes and no files."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ebbtide.snapshot.errors import HostMemoryShort, PoolTooSmall
from ebbtide.snapshot.eviction.tensor_eviction import Plan, plan
from ebbtide_train.session.parking.host_state import EDGES, HostState, Stage


class Region:
    """Memory that notes what was done with it, and fails where it is told to."""

    def __init__(self, size_bytes: int, said: list[str], **does: Callable[[], None]) -> None:
        self.size_bytes, self.bytes = size_bytes, torch.zeros(size_bytes, dtype=torch.uint8)
        self._said, self._does = said, does

    def _note(self, deed: str) -> None:
        self._said.append(deed)
        self._does.get(deed, lambda: None)()

    def begin(self) -> None:
        self._note("begin")

    def seal(self, note: bytes) -> None:
        self._note("seal")

    def hash_payload(self) -> None:
        self._note("hash_payload")

    def clear(self) -> None:
        self._note("clear")

    def close(self) -> None:
        self._note("close")


class Memory:
    """Lends what is asked for, until it is told not to."""

    def __init__(self, **does: Callable[[], None]) -> None:
        self.said: list[str] = []
        self.refusal = ""
        self._does = does

    def lend(self, size_bytes: int) -> Any:
        if self.refusal:
            raise HostMemoryShort(self.refusal)
        self.said.append(f"lend {size_bytes}")
        return Region(size_bytes, self.said, **self._does)


class Pages:
    """Notes among the deeds of its memory what was page-locked."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def lock(self, memory: torch.Tensor) -> None:
        self._said.append(f"lock {memory.numel()}")

    def unlock(self) -> None:
        self._said.append("unlock")

    def leave(self) -> None:
        self._said.append("leave")


@pytest.fixture
def tensor() -> torch.Tensor:
    return torch.arange(100.0)


@pytest.fixture
def planned(tensor: torch.Tensor) -> Plan:
    return plan([("t", tensor)])


def copied(memory: Memory, planned: Plan, *, step: int = 5) -> HostState:
    host = HostState(memory)
    assert host.lend(planned.size_bytes) == ""
    host.copy(planned, None, b"note", step=step)
    return host


def there_and_back(host: HostState) -> None:
    host.free()
    host.put_back()


def raising(error: Exception) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


@pytest.mark.proves(
    "host memory is given back before more is lent",
    "host memory that is large enough is used again",
    "host memory that is refused is a reason and no error",
    "host memory that is too small is not used again",
    "what is in host memory that is given back counts no more",
)
def test_memory_is_asked_for_again_only_when_it_is_too_small_and_never_twice_at_once() -> None:
    memory = Memory()
    host = HostState(memory)
    assert [host.lend(size) for size in (100, 80, 100, 120)] == [""] * 4
    assert memory.said == ["lend 100", "clear", "close", "lend 120"]
    memory.refusal = "this node lends nothing"
    assert host.lend(500) == "this node lends nothing"
    assert host.stage is Stage.NONE


def test_what_is_lent_is_page_locked_once_and_given_up_before_it_is_given_back() -> None:
    memory = Memory()
    host = HostState(memory, pages=Pages(memory.said))
    assert [host.lend(size) for size in (100, 80, 120)] == [""] * 3
    host.close()
    host.close()
    once = ["clear", "unlock", "close"]
    assert memory.said == ["lend 100", "lock 100", *once, "lend 120", "lock 120", *once]


def test_a_frozen_process_gives_memory_back_without_a_call_to_cuda(planned: Plan) -> None:
    memory = Memory()
    host = HostState(memory, pages=Pages(memory.said))
    host.lend(planned.size_bytes)
    host.copy(planned, None, b"", step=1)
    host.free()
    host.close(frozen=True)
    assert memory.said[-3:] == ["clear", "leave", "close"]


@pytest.mark.proves("without host memory nothing is copied")
def test_without_memory_nothing_is_copied(planned: Plan) -> None:
    with pytest.raises(PoolTooSmall, match="no host memory was lent"):
        HostState(Memory()).copy(planned, None, b"", step=1)


@pytest.mark.proves("a copy that fails counts for nothing", "a region is begun before it is written")
@pytest.mark.parametrize("edge", ["begin", "seal"])
def test_a_copy_that_fails_counts_for_nothing_and_leaves_the_device_as_it_was(
    planned: Plan, tensor: torch.Tensor, edge: str
) -> None:
    memory = Memory(**{edge: raising(OSError(28, "No space left on device"))})
    host = HostState(memory)
    host.lend(planned.size_bytes)
    with pytest.raises(OSError, match="No space"):
        host.copy(planned, None, b"", step=1)
    assert host.stage is Stage.LENT and host.away is None
    assert memory.said[-1] == ("clear" if edge == "seal" else "begin")
    assert torch.equal(tensor, torch.arange(100.0))


def test_a_state_is_begun_filled_and_sealed_and_comes_back(planned: Plan, tensor: torch.Tensor) -> None:
    memory = Memory()
    host = copied(memory, planned)
    assert memory.said == [f"lend {planned.size_bytes}", "begin", "seal"]
    assert host.stage is Stage.COPIED and host.away is None
    host.free()
    assert host.away is planned and tensor.untyped_storage().nbytes() == 0
    host.put_back()
    assert (host.stage, host.away) == (Stage.KEPT, None) and torch.equal(tensor, torch.arange(100.0))
    assert "clear" not in memory.said, "a rank may die on the way back while others train on"


@pytest.mark.proves(
    "a parked state is kept until its step is durable",
    "a parked state that is durable is given up",
    "what is forgotten counts no more",
)
def test_what_is_kept_counts_until_that_step_is_durable(planned: Plan) -> None:
    memory = Memory()
    host = copied(memory, planned, step=5)
    host.forget_if_durable(9)
    assert host.stage is Stage.COPIED, "the gang has not come back"
    there_and_back(host)
    host.forget_if_durable(4)
    assert host.stage.name == "KEPT"
    host.forget_if_durable(5)
    assert (host.stage, memory.said[-1]) == (Stage.LENT, "clear")


@pytest.mark.proves("what was kept makes room for the next park")
def test_what_is_kept_makes_room_for_the_next_park(planned: Plan) -> None:
    memory = Memory()
    host = copied(memory, planned)
    there_and_back(host)
    host.copy(planned, None, b"", step=6)
    assert memory.said[-3:] == ["clear", "begin", "seal"]


@pytest.mark.proves("what is away is not given up for another step")
def test_the_only_copy_is_not_forgotten(planned: Plan, tensor: torch.Tensor) -> None:
    memory = Memory()
    host = copied(memory, planned)
    host.free()
    host.forget()
    host.forget_if_durable(99)
    assert host.away is planned and "clear" not in memory.said
    host.put_back()
    assert torch.equal(tensor, torch.arange(100.0))


@pytest.mark.proves("host memory that was given back may be given back again")
def test_what_is_given_back_counts_no_more_and_is_given_back_once(planned: Plan) -> None:
    memory = Memory()
    host = copied(memory, planned)
    host.close()
    host.close()
    assert memory.said[-3:] == ["clear", "clear", "close"] and memory.said.count("close") == 1
    assert host.stage is Stage.NONE
    away = copied(memory, planned)  # its gang leaves: it was committed
    away.free()
    away.close()
    assert memory.said[-2:] == ["clear", "close"]


@pytest.mark.proves(
    "hashes are waited for before host memory is given back",
    "hashes are waited for before host memory is used again",
    "hashes that are being made hold up no step",
)
@pytest.mark.parametrize(
    ("away", "end"), [(False, HostState.forget), (False, HostState.close), (True, HostState.close)]
)
def test_hashes_are_waited_for_before_the_memory_changes_and_hold_up_no_step(
    planned: Plan, away: bool, end: Callable[[HostState], None]
) -> None:
    go, early = threading.Event(), list[bool]()
    memory = Memory(hash_payload=lambda: wait_for(go))
    host = copied(memory, planned)
    host.hash_in_background()
    host.free()
    if not away:
        host.put_back()
        host.forget_if_durable(99)
        assert host.stage is Stage.KEPT, "a step does not wait for them"

    def let_go() -> None:
        early.append("clear" in memory.said)
        go.set()

    threading.Timer(0.1, let_go).start()
    end(host)
    assert early == [False] and "clear" in memory.said


def wait_for(go: threading.Event) -> None:
    assert go.wait(10)


@pytest.mark.proves("a parked state counts where no thread can hash it", "a parked state without hashes counts")
def test_without_hashes_it_counts_all_the_same(
    planned: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = copied(Memory(hash_payload=raising(MemoryError("no memory"))), planned)
    host.hash_in_background()
    there_and_back(host)
    host.forget()
    assert "has no hashes: no memory" in caplog.text
    host = copied(Memory(), planned)
    monkeypatch.setattr(threading.Thread, "start", lambda _self: raising(RuntimeError("can't start new thread"))())
    host.hash_in_background()
    assert host.stage is Stage.COPIED and "can't start new thread" in caplog.text


@pytest.mark.proves("host memory changes only as the table of stages lists")
@pytest.mark.parametrize("stage", Stage)
def test_only_what_the_table_lists_can_happen(stage: Stage) -> None:
    for after in Stage:
        host = HostState(Memory())
        host.stage = stage
        if after in EDGES[stage]:
            host._go(after)
            assert host.stage is after
        else:
            with pytest.raises(ValueError, match=f"{stage.value} cannot become {after.value}"):
                host._go(after)
