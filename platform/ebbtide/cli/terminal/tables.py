"""Tables that fit: on a terminal as wide as it is, in a pipe one line per row, neither cut nor padded.

On a terminal that is too narrow, columns of sentences (why it waits, what it said last) go below their row over the
whole width, then optional columns leave, then long cells are folded: no character of what is shown is cut off. In a
pipe all columns are there, with two blanks between them and ``-`` where a cell is empty, so that `grep` finds whole
rows and `awk -F '  +'` finds columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

Cell = Text | str
GAP = 2  # blanks between columns
INDENT = "  "  # of what stands below its row
LEAST = 8  # columns that a sentence gets, however narrow a terminal says it is


@dataclass(frozen=True, slots=True)
class Listing:
    """A table for `rich`.

    Attributes:
        title: empty: none.
        columns: their titles.
        rows: as many cells each.
        below: columns of sentences; where it is narrow they stand below their row, with their title before them.
        optional: columns that leave where it is narrower still, the first one first.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    below: Sequence[str] = ()
    optional: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(self.title, style="bold")
        if options.is_terminal:
            yield from self._fitted(console, options.max_width)
        else:
            yield from self._plain()

    def _plain(self) -> Iterator[Text]:
        lines = [list(self.columns), *([_one_line(cell) for cell in row] for row in self.rows)]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
            yield Text((" " * GAP).join(padded).rstrip(), no_wrap=True, overflow="ignore")

    def _fitted(self, console: Console, width: int) -> Iterator[Text]:
        rows = [[_text(cell) for cell in row] for row in self.rows]
        wide = [
            max(cell_len(line) for text in (head, *(row[at].plain for row in rows)) for line in text.split("\n"))
            for at, head in enumerate(self.columns)
        ]
        beside = list(range(len(self.columns)))
        below: list[int] = []
        if _total([wide[at] for at in beside]) > width:
            below = [at for at in beside if self.columns[at] in self.below]
            beside = [at for at in beside if at not in below]
        for title in self.optional:
            if _total([wide[at] for at in beside]) > width:
                beside.remove(self.columns.index(title))
        widths = _narrowed([wide[at] for at in beside], width)
        yield from _folded(console, [Text(self.columns[at], style="bold") for at in beside], widths)
        for cells in rows:
            yield from _folded(console, [cells[at] for at in beside], widths)
            for at in below:
                if cells[at].plain.strip():
                    told = Text.assemble((f"{self.columns[at].lower()}: ", "dim"), cells[at])
                    yield from _indented(console, told, width)


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _one_line(cell: Cell) -> str:
    return " ".join(_text(cell).plain.split()) or "-"


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(0, len(widths) - 1)


def _narrowed(widths: Sequence[int], width: int) -> list[int]:
    """The widest columns give way first, evenly."""
    found = list(widths)
    while found and _total(found) > width and max(found) > 1:
        found[found.index(max(found))] -= 1
    return found


def _indented(console: Console, text: Text, width: int) -> Iterator[Text]:
    for line in text.wrap(console, max(LEAST, width - len(INDENT)), overflow="fold"):
        line.rstrip()
        if line.plain:
            yield Text(INDENT).append_text(line)


def _folded(console: Console, cells: Sequence[Text], widths: Sequence[int]) -> Iterator[Text]:
    """The lines of one row: each cell in its own column, going on below where it is too long."""
    parts = [
        list(cell.wrap(console, width, overflow="fold")) if cell.plain else []
        for cell, width in zip(cells, widths, strict=True)
    ]
    for number in range(max(map(len, parts), default=0)):
        line = Text(no_wrap=True, overflow="ignore")
        for part, width in zip(parts, widths, strict=True):
            piece = part[number] if number < len(part) else Text()
            piece.rstrip()
            line.append_text(piece).append(" " * (width - cell_len(piece.plain) + GAP))
        line.rstrip()
        yield line
