"""Any use of a region, with its last header torn anywhere: what is seen is as before the last step or as after it."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ebbtide.snapshot.errors import RegionMisused
from ebbtide.snapshot.regions.header import HEADER_BYTES
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_creation import create_region
from ebbtide.snapshot.regions.region_states import EDGES, RegionKey, RegionState
from ebbtide.snapshot.regions.region_takeover import read_region
from ebbtide.snapshot.regions.region_view import look
from tests.examples import examples

KEY = RegionKey("job", 1, 0)


class Using(RuleBasedStateMachine):
    """A region beside what it must say."""

    def __init__(self) -> None:
        super().__init__()
        self.tmp = tempfile.TemporaryDirectory()
        self.path = create_region(Path(self.tmp.name), KEY, 4096)
        self.region = Region.open(self.path)
        self.state, self.note, self.value, self.hashed = RegionState.EMPTY, b"", 0, False

    def step(self, to: RegionState, deed: Callable[[], None], torn: int) -> bool:
        if to not in EDGES[self.state]:
            before = self.path.read_bytes()
            with pytest.raises(RegionMisused):
                deed()
            assert self.path.read_bytes() == before, "a refused step changes nothing"
            return False
        before_header = self.path.read_bytes()[:HEADER_BYTES]
        deed()
        self.tear(before_header, torn)
        self.state, self.hashed = to, False
        return True

    def tear(self, before: bytes, torn: int) -> None:
        """As it would be if the writer had been killed after ``torn`` bytes of its header."""
        after = self.path.read_bytes()
        changed = [at for at in range(HEADER_BYTES) if before[at] != after[at]]
        cut = changed[torn % len(changed)]
        copy = self.path.with_suffix(".copy")
        shutil.copyfile(self.path, copy)
        with copy.open("r+b") as file:
            file.write(after[:cut] + before[cut:HEADER_BYTES])
        seen = look(copy)
        assert seen.state is self.state, "torn, it is the one before"
        if seen.state is RegionState.FULL:
            assert seen.note == self.note
        copy.unlink()

    @rule(torn=st.integers(0, 4096), value=st.integers(0, 255))
    def begin(self, torn: int, value: int) -> None:
        if self.step(RegionState.FILLING, self.region.begin, torn):
            self.region.bytes.fill_(value)
            self.value = value

    @rule(torn=st.integers(0, 4096), note=st.binary(max_size=6000))
    def seal(self, torn: int, note: bytes) -> None:
        if self.step(RegionState.FULL, lambda: self.region.seal(note), torn):
            self.note = note

    @rule(torn=st.integers(0, 4096))
    def clear(self, torn: int) -> None:
        self.step(RegionState.EMPTY, self.region.clear, torn)

    @rule()
    def hash_it(self) -> None:
        self.region.hash_payload()
        self.hashed = self.state is RegionState.FULL

    @rule()
    def change_hands(self) -> None:
        self.region.close()
        if self.state is RegionState.FULL:
            found = read_region(self.path)
            assert (found.note, found.verified) == (self.note, self.hashed)
            assert bool((found.bytes == self.value).all())
            del found
        self.region = Region.open(self.path)

    @invariant()
    def everybody_sees_the_same(self) -> None:
        seen = look(self.path)
        assert (seen.key, seen.state, seen.hashed, seen.borrower_lives) == (KEY, self.state, self.hashed, True)
        assert seen.note == (self.note if self.state is RegionState.FULL else None)
        assert self.region.state is self.state

    def teardown(self) -> None:
        self.region.close()
        self.tmp.cleanup()


Using.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
TestUsing = Using.TestCase
