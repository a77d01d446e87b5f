"""Device code for other GPUs is zeroed, and nothing else of a library changes."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.bundle.prune import ELF, MAGIC, PTX, fatbins, without_other_gpus

HEADER_OF_ENTRY = 64


def entry(kind: int, architecture: int, payload: bytes) -> bytes:
    head = struct.pack("<HHIQ", kind, 1, HEADER_OF_ENTRY, len(payload)).ljust(28, b"\0")
    return (head + struct.pack("<I", architecture)).ljust(HEADER_OF_ENTRY, b"\1") + payload


def fatbin(*entries: tuple[int, int, bytes]) -> bytes:
    body = b"".join(entry(*one) for one in entries)
    return MAGIC + struct.pack("<HHQ", 1, 16, len(body)) + body


def payloads(code: bytes) -> list[tuple[int, int, bytes]]:
    return [(kind, arch, code[at : at + size]) for found in fatbins(code) for kind, arch, at, size in found]


def test_machine_code_for_this_gpu_stays() -> None:
    code = b"before" + fatbin((ELF, 80, b"aaaa"), (ELF, 90, b"bbbb"), (PTX, 90, b"cccc")) + b"after"
    pruned = without_other_gpus(code, 90)
    assert payloads(pruned) == [(ELF, 80, bytes(4)), (ELF, 90, b"bbbb"), (PTX, 90, bytes(4))]
    assert pruned.startswith(b"before") and pruned.endswith(b"after") and len(pruned) == len(code)


def test_without_machine_code_the_newest_ptx_that_it_can_compile_stays() -> None:
    pruned = without_other_gpus(fatbin((PTX, 70, b"a"), (PTX, 80, b"b"), (PTX, 100, b"c"), (ELF, 80, b"d")), 90)
    assert payloads(pruned) == [(PTX, 70, b"\0"), (PTX, 80, b"b"), (PTX, 100, b"\0"), (ELF, 80, b"\0")]


kinds = st.tuples(st.sampled_from([PTX, ELF]), st.sampled_from([70, 80, 90, 100]), st.binary(min_size=1, max_size=20))


@given(st.lists(st.lists(kinds, max_size=4), max_size=4), st.binary(max_size=40), st.binary(max_size=40))
def test_nothing_but_payloads_changes(bins: list[list[tuple[int, int, bytes]]], before: bytes, after: bytes) -> None:
    code = before + b"".join(fatbin(*one) + b"-" for one in bins) + after
    pruned = bytearray(without_other_gpus(code, 90))
    for found in fatbins(code):
        for _, _, at, size in found:
            if not any(pruned[at : at + size]):
                pruned[at : at + size] = code[at : at + size]
    assert bytes(pruned) == code


@given(st.binary(max_size=400))
def test_a_file_that_only_looks_like_one_does_not_break_it(noise: bytes) -> None:
    for code in (noise, MAGIC + noise, noise + MAGIC, noise + MAGIC + noise):
        assert len(without_other_gpus(code, 90)) == len(code)
