"""From the layout of a source's shard to ours, byte for byte. Pure.

The tensors are the same and their bytes are the same; only their order and the header's padding differ, see
``file_layout``. The order is by name, numbers in it as numbers: layer by layer, and the same whatever order the
source has, so that one model from two sources becomes one object.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ebbtide.storage.models.sources.source import Part
from ebbtide.storage.safetensors.file_header import Header
from ebbtide.storage.safetensors.file_layout import ContainerPlan, plan_container, specs_of

_NUMBER = re.compile("([0-9]+)")


@dataclass(frozen=True)
class Relayout:
    """One shard as it is and as it will be.

    Attributes:
        source: its header at the source.
        plan: its layout in the store.
    """

    source: Header
    plan: ContainerPlan

    @cached_property
    def _moves(self) -> list[tuple[int, int, int]]:
        """(first byte in the store, one after the last, first byte at the source), in the store's order."""
        before = self.source.named()
        moves: list[tuple[int, int, int]] = []
        for entry in self.plan.entries:
            start = before[entry.name].offset
            if not entry.length:
                continue
            if moves and moves[-1][1] == entry.offset and moves[-1][2] + moves[-1][1] - moves[-1][0] == start:
                moves[-1] = (moves[-1][0], entry.end, moves[-1][2])
            else:
                moves.append((entry.offset, entry.end, start))
        return moves

    @cached_property
    def _ends(self) -> list[int]:
        return [end for _, end, _ in self._moves]

    def parts(self, offset: int, memory: memoryview) -> Iterator[Part]:
        """Fill what is of the header, and tell what is to be read at the source for the rest.

        Args:
            offset: in the file as it will be.
            memory: its bytes from there on; all of them are the header's or in one of the parts.
        """
        end = offset + len(memory)
        if offset < len(self.plan.header):
            head = self.plan.header[offset:end]
            memory[: len(head)] = head
        for number in range(bisect_right(self._ends, offset), len(self._moves)):
            first, last, start = self._moves[number]
            if first >= end:
                break
            left, right = max(first, offset), min(last, end)
            yield Part(start + left - first, memory[left - offset : right - offset])


def relayout(source: Header) -> Relayout:
    """Lay a shard out anew.

    Raises:
        Refused: the header would become too long.
    """
    specs = sorted(specs_of(source.entries), key=lambda spec: natural_order(spec.name))
    return Relayout(source, plan_container(specs, source.metadata))


def natural_order(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Sorts ``layer.2`` before ``layer.10``; different for different names."""
    parts = []
    for number, text in enumerate(_NUMBER.split(name)):
        digits = text.lstrip("0") if number % 2 else ""  # compared by length and text: they may be thousands
        parts.append((len(digits), digits) if number % 2 else (0, text))
    return tuple(parts), name
