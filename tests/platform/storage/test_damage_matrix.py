"""Files that were altered on the disk: each damage is named by whoever comes to it, and nobody gets a wrong byte.

The table is printed; a cell that nobody thought about counts as broken. A model is read and verified, and so is a
checkpoint; a gang that is told to take an older one if need be gets the last good one.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ebbtide.storage.checkpoints.manager.checkpoint_manager import IfCorrupt
from ebbtide.storage.checkpoints.manager.verification import verify
from ebbtide.storage.errors import Corrupt, StorageError
from ebbtide.storage.maintenance.scrub import Damage, damage_of
from ebbtide.storage.names import COMMIT, MANIFEST
from tests.platform.storage.checkpoints import runs
from tests.platform.storage.checkpoints.runs import at, make_run
from tests.platform.storage.shim.checkpoint_trials import Resume, step_read
from tests.platform.storage.shim.store_trials import FILE, MODEL, Load, seed_of
from tests.platform.storage.stores import CHUNK, overwrite, store_at

COLUMNS = ("read", "verify", "resume", "verify a checkpoint", "resume, or older")


@dataclass(frozen=True)
class Thing:
    """A model or a checkpoint whose files are altered, and one of the same kind from which bytes come."""

    directory: Path
    other: Path
    weights: str
    small: str
    chunk_bytes: int

    def file(self, name: str = "") -> Path:
        return self.directory / (name or self.weights)

    def bytes_of(self, chunk: int, *, of_other: bool = False) -> bytes:
        content = ((self.other if of_other else self.directory) / self.weights).read_bytes()
        return content[chunk * self.chunk_bytes : (chunk + 1) * self.chunk_bytes]

    def put(self, chunk: int, data: bytes) -> None:
        overwrite(self.file(), chunk * self.chunk_bytes, data)

    def flip(self, name: str, offset: int) -> None:
        content = self.file(name).read_bytes()
        offset %= len(content)
        overwrite(self.file(name), offset, bytes([content[offset] ^ 1]))

    def cut(self, name: str, size_bytes: int) -> None:
        os.truncate(self.file(name), size_bytes)

    def take(self, *names: str) -> None:
        for name in names:
            shutil.copy(self.other / name, self.file(name))

    def lose(self, *names: str) -> None:
        for name in names:
            self.file(name).unlink()

    def called(self, name: str) -> str:
        """The same for a model and a checkpoint."""
        return name.replace(self.weights, "weights").replace(self.small, "small file")

    def place(self, name: str, offset: int | None) -> str:
        """In words."""
        if offset is None:
            return self.called(name)
        chunk, rest = divmod(offset, self.chunk_bytes)
        return f"{self.called(name)} {f'byte {offset}' if rest else f'chunk {chunk}'}"


def swap(thing: Thing) -> None:
    one, two = thing.bytes_of(1), thing.bytes_of(2)
    thing.put(1, two)
    thing.put(2, one)


Act = Callable[[Thing], object]


def each(*acts: Act) -> Act:
    """All of these, one after the other."""

    def act(thing: Thing) -> None:
        for one in acts:
            one(thing)

    return act


INDEX = "weights.idx"


@dataclass(frozen=True)
class Expected:
    """What each cell comes to, as a pattern; what is not given is as `read` and `verify` are."""

    read: str
    verify: str
    resume: str = ""
    verify_a_checkpoint: str = ""
    resume_or_older: str = "older"

    def cells(self) -> dict[str, str]:
        found = (
            self.read,
            self.verify,
            self.resume or self.read,
            self.verify_a_checkpoint or self.verify,
            self.resume_or_older,
        )
        return dict(zip(COLUMNS, found, strict=True))


ROWS: Mapping[str, tuple[Act, Expected]] = {
    "nothing": (lambda t: None, Expected("right", "whole", resume_or_older="right")),
    "truncated": (lambda t: t.cut("", 2 * t.chunk_bytes + 5), Expected("Corrupt weights byte .*", "weights chunk 2.*")),
    "truncated at a chunk": (
        lambda t: t.cut("", 2 * t.chunk_bytes),
        Expected("Corrupt weights chunk 2", "weights chunk 2.*"),
    ),
    "empty": (lambda t: t.cut("", 0), Expected("Corrupt weights chunk 0", "weights chunk 0.*")),
    "longer": (
        lambda t: t.cut("", t.file().stat().st_size + 1),
        Expected("Corrupt weights byte .*", "weights byte .*"),
    ),
    "a hole of zeros": (
        lambda t: t.put(2, bytes(t.chunk_bytes)),
        Expected("Corrupt weights chunk 2", "weights chunk 2"),
    ),
    "a bit flipped in the middle": (
        lambda t: t.flip("", 3 * t.chunk_bytes + 7),
        Expected("Corrupt weights chunk 3", "weights chunk 3"),
    ),
    "a bit flipped in the last byte": (
        lambda t: t.flip("", -1),
        Expected("Corrupt weights chunk .", "weights chunk ."),
    ),
    # Nobody needs the header to load a checkpoint: the index of tensors says where they lie.
    "a bit flipped in the header": (
        lambda t: t.flip("", 20),
        Expected("Corrupt weights chunk 0", "weights chunk 0", resume="right", resume_or_older="right"),
    ),
    "two chunks swapped": (swap, Expected("Corrupt weights chunk [12]", "weights chunk 1, weights chunk 2")),
    "a chunk of another": (
        lambda t: t.put(1, t.bytes_of(1, of_other=True)),
        Expected("Corrupt weights chunk 1", "weights chunk 1"),
    ),
    "the file of another": (
        lambda t: t.take(t.weights),
        Expected("Corrupt weights chunk .", "weights chunk .*"),
    ),
    "file and index of another": (
        lambda t: t.take(t.weights, f"{t.weights}.idx"),
        Expected(f"Corrupt {INDEX}", "weights, weights chunk 0"),
    ),
    "all of another": (
        each(lambda t: shutil.rmtree(t.directory), lambda t: shutil.copytree(t.other, t.directory)),
        Expected(f"Corrupt {MANIFEST}", f"Corrupt {MANIFEST}"),
    ),
    "a file gone": (lambda t: t.lose(t.weights), Expected("Corrupt weights", "weights chunk 0")),
    "a link in its place": (
        each(lambda t: t.file().rename(t.file("moved")), lambda t: t.file().symlink_to("moved")),
        Expected("Corrupt weights", "weights chunk 0"),
    ),
    "half published: neither manifest nor COMMIT": (
        lambda t: t.lose(MANIFEST, COMMIT),
        Expected("NotPublished", "NotPublished", resume="older", verify_a_checkpoint=f"Corrupt {MANIFEST}"),
    ),
    "half published: no COMMIT": (
        lambda t: t.lose(COMMIT),
        Expected("NotPublished", "NotPublished", resume="older"),
    ),
    "COMMIT without manifest": (
        lambda t: t.lose(MANIFEST),
        Expected("NotPublished", "NotPublished", f"Corrupt {MANIFEST}", f"Corrupt {MANIFEST}"),
    ),
    "COMMIT empty": (lambda t: t.cut(COMMIT, 0), Expected(f"Corrupt {COMMIT}", f"Corrupt {COMMIT}")),
    "a bit flipped in COMMIT": (lambda t: t.flip(COMMIT, 30), Expected(f"Corrupt {COMMIT}", f"Corrupt {COMMIT}")),
    "a bit flipped in the manifest": (
        lambda t: t.flip(MANIFEST, -20),
        Expected(f"Corrupt {COMMIT}", f"Corrupt {COMMIT}", "Corrupt .*", "Corrupt .*"),
    ),
    "the manifest truncated": (
        lambda t: t.cut(MANIFEST, 100),
        Expected(f"Corrupt {COMMIT}", f"Corrupt {COMMIT}", f"Corrupt {MANIFEST}", f"Corrupt {MANIFEST}"),
    ),
    "manifest and COMMIT of another": (
        lambda t: t.take(MANIFEST, COMMIT),
        Expected(f"Corrupt {MANIFEST}", f"Corrupt {MANIFEST}"),
    ),
    "a bit flipped in the index": (lambda t: t.flip(f"{t.weights}.idx", 70), Expected(f"Corrupt {INDEX}", "weights")),
    "the index truncated": (lambda t: t.cut(f"{t.weights}.idx", 10), Expected(f"Corrupt {INDEX}", "weights")),
    "the index gone": (lambda t: t.lose(f"{t.weights}.idx"), Expected(f"Corrupt {INDEX}", "weights")),
    "the index gone, and a bit flipped": (
        each(lambda t: t.lose(f"{t.weights}.idx"), lambda t: t.flip("", 3 * t.chunk_bytes)),
        Expected(f"Corrupt {INDEX}", "weights, weights chunk 0"),
    ),
    "a bit flipped in a small file": (
        lambda t: t.flip(t.small, 3),
        Expected("Corrupt small file chunk 0", "small file chunk 0"),
    ),
    "a small file gone": (lambda t: t.lose(t.small), Expected("Corrupt small file", "small file chunk 0")),
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store with two models, and one with two checkpoints; copied for each cell."""
    folder = tmp_path_factory.mktemp("before")
    for name, trial in (("models", Load), ("checkpoints", Resume)):
        trial.prepare(folder / name)
    return {name: folder / name / "store" for name in ("models", "checkpoints")}


def told(thing: Thing, ask: Callable[[], str]) -> str:
    """What a reader comes to."""
    try:
        return ask()
    except AssertionError as error:
        return f"WRONG {error}"
    except Corrupt as error:
        assert str(error.path) in str(error) and thing.directory in error.path.parents
        return f"Corrupt {thing.place(error.path.name, error.offset)}"
    except StorageError as error:
        assert str(thing.directory) in str(error)
        return type(error).__name__


def listed(thing: Thing, found: list[Damage]) -> str:
    """What a verifier finds."""
    places = [thing.place(one.file, one.part.offset if one.part is not None else None) for one in found]
    return ", ".join(places if len(places) <= 2 else [places[0], "...", places[-1]]) or "whole"


def of_a_model(root: Path, act: Act) -> Mapping[str, str]:
    store = store_at(root)
    wanted, other = (store.refs.read(MODEL, tag).object for tag in ("latest", "other"))
    thing = Thing(store.paths.object(wanted), store.paths.object(other), FILE, "config.json", CHUNK)
    act(thing)
    cells = {
        "read": told(thing, lambda: "right" if seed_of(store, "latest", [0]) == 0 else "WRONG"),
        "verify": told(thing, lambda: listed(thing, damage_of(store.ports, wanted, deep=True))),
    }
    assert seed_of(store, "other", [1]) == 1, "the other one is as it was"
    return cells


def of_a_checkpoint(root: Path, act: Act) -> Mapping[str, str]:
    run, newest = make_run(root), at("e1/step-2")
    directory, other = (run.paths.checkpoint(one) for one in (newest, at("e1/step-1")))
    thing = Thing(directory, other, "rank0.safetensors", "state.json", runs.CHUNK)
    act(thing)

    def resume(if_corrupt: IfCorrupt) -> str:
        return "right" if step_read(run, if_corrupt=if_corrupt) == 2 else "older"

    return {
        "resume": told(thing, lambda: resume(IfCorrupt.RAISE)),
        "verify a checkpoint": told(thing, lambda: listed(thing, verify(run, newest))),
        "resume, or older": told(thing, lambda: resume(IfCorrupt.OLDER)),
    }


def test_every_damage_is_named_by_whoever_comes_to_it_and_no_wrong_byte_is_handed_on(
    tmp_path: Path, before: dict[str, Path], record_property: Callable[[str, object], None]
) -> None:
    lines, broken = [["", *COLUMNS]], []
    for number, (name, (act, expected)) in enumerate(ROWS.items()):
        cells: dict[str, str] = {}
        for what, look in (("models", of_a_model), ("checkpoints", of_a_checkpoint)):
            root = tmp_path / f"{number}" / what
            shutil.copytree(before[what], root, symlinks=True)
            cells |= look(root, act)
        wanted = expected.cells()
        wrong = [one for one in COLUMNS if not re.fullmatch(wanted[one], cells[one])]
        broken += [(name, one, cells[one], wanted[one]) for one in wrong]
        lines.append([name, *(("! " if one in wrong else "") + cells[one] for one in COLUMNS)])
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    record_property("table", "\n".join(text))
    assert broken == []
