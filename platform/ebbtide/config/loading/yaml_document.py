"""YAML text to plain data, with the line and column of every key and value.

It composes ruamel.yaml's node tree and builds the data itself, because the tree keeps both places (of a key, of its
value) and lets all duplicate keys be reported at once. Only the plain YAML types exist here: no tag ever builds an
object. Aliases and merge keys (``<<``) work, within bounds, so that a small file cannot grow into a huge one.
A date stays the text it was.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from ebbtide.config.finding import Finding, Loc
from ebbtide.config.loading import lookalikes

MAX_BYTES = 2**20  # a thousand workloads are 300 kB
MAX_VALUES = 100_000  # after aliases are expanded
MAX_DEPTH = 32  # the models are 5 deep; engine arguments and args may add some

_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file; line and column from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an entry's key and value stand; an item of a list has no key of its own."""

    key: Place
    value: Place


@dataclass(slots=True)
class Document:
    """What a YAML text says and where it says so.

    Attributes:
        findings: the problems of the text itself.
        is_misread: a character that looks like another one makes it say something else than its author sees.
    """

    data: object = None
    spots: dict[Loc, Spot] = field(default_factory=dict)
    lines: int = 1
    findings: list[tuple[Place, Finding]] = field(default_factory=list)
    is_misread: bool = False

    def place(self, loc: Loc, *, at_key: bool = False) -> Place:
        """The position of ``loc``, or of the nearest section around it that the file has."""
        for length in range(len(loc), 0, -1):
            spot = self.spots.get(loc[:length])
            if spot is not None:
                # Something that is missing is best shown at the name of what it is missing from.
                return spot.key if at_key or length < len(loc) else spot.value
        return Place(1, 1)


def parse(text: str) -> Document:
    """Read YAML. Never raises for bad text: see ``findings`` of the result."""
    document = Document(lines=max(1, len(text.splitlines())))
    if len(text.encode(errors="replace")) > MAX_BYTES:
        document.findings.append((Place(1, 1), Finding((), f"the file is larger than {MAX_BYTES} bytes")))
        return document
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        if root is not None:
            document.data = _Builder(yaml, document, text).build(root, (), 0)
    except _TooMuch as error:
        document.findings.append((error.place, Finding((), str(error))))
    except RecursionError:
        document.findings.append((Place(1, 1), Finding((), "brackets are nested too deep")))
    except MarkedYAMLError as error:
        place = _clamp(error, document.lines)
        document.findings.append(_lookalike_near(text, place) or (place, _syntax(error)))
    except ReaderError as error:
        before = text[: error.position]
        place = Place(before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        what = f"not valid YAML: the character U+{error.character:04X} stands there, which is none of a text: delete it"
        document.findings.append((place, Finding((), what)))
    except (YAMLError, ValueError) as error:  # ruamel raises bare ValueErrors on some broken directives
        document.findings.append((Place(1, 1), Finding((), f"not valid YAML: {str(error).splitlines()[0]}")))
    return document


class _TooMuch(Exception):
    def __init__(self, place: Place, message: str) -> None:
        self.place = place
        super().__init__(message)


class _Builder:
    """Turns nodes into data, and notes each one's spot and every problem on the way."""

    def __init__(self, yaml: YAML, document: Document, text: str) -> None:
        self._scalars = yaml.constructor
        self._document = document
        self._text = text
        self._values = 0

    def build(self, node: Node, loc: Loc, depth: int) -> object:
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            limit = f"more than {MAX_VALUES} values" if self._values > MAX_VALUES else f"more than {MAX_DEPTH} levels"
            raise _TooMuch(_start(node), f"the file has {limit}, aliases included")
        if isinstance(node, MappingNode) and str(node.tag) == _TAG + "map":
            return {key: self._entry(pair, (*loc, key), depth) for key, pair in self._pairs(node, loc, depth)}
        if isinstance(node, SequenceNode) and str(node.tag) == _TAG + "seq":
            for index, item in enumerate(node.value):
                self._document.spots[*loc, index] = Spot(_start(item), _start(item))
            return [self.build(item, (*loc, index), depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node, loc)

    def _entry(self, pair: tuple[Node, Node], loc: Loc, depth: int) -> object:
        key, value = pair
        # A value that is left out stands nowhere; YAML puts it where the next thing begins.
        is_absent = isinstance(value, ScalarNode) and value.start_mark.index == value.end_mark.index
        self._document.spots[loc] = Spot(_start(key), _start(key) if is_absent else _start(value))
        return self.build(value, loc, depth + 1)

    def _pairs(self, node: MappingNode, loc: Loc, depth: int) -> Iterator[tuple[str, tuple[Node, Node]]]:
        """The entries of a mapping; what it merges in comes last and never replaces its own."""
        own: dict[str, tuple[Node, Node]] = {}
        merged: list[Node] = []
        for key, value in node.value:
            if str(key.tag) == _TAG + "merge":
                merged += value.value if isinstance(value, SequenceNode) else [value]
            elif not isinstance(key, ScalarNode) or str(key.tag) != _TAG + "str":
                self._note(_start(key), loc, "a key must be text; put it in quotes if it is meant to be")
            elif key.value in own:
                first = _start(own[key.value][0]).line
                self._note(
                    _start(key), (*loc, key.value), f"the key {key.value!r} is given twice (first in line {first})"
                )
            elif self._is_sound(key, loc):
                own[key.value] = (key, value)
        for other in merged:
            if not isinstance(other, MappingNode) or depth >= MAX_DEPTH:
                self._note(_start(other), loc, "only a mapping can be merged in with <<")
                continue
            for name, pair in self._pairs(other, loc, depth + 1):
                self._values += 1
                own.setdefault(name, pair)
        yield from own.items()

    def _scalar(self, node: Node, loc: Loc) -> object:
        tag = str(node.tag)
        if not isinstance(node, ScalarNode) or not tag.startswith(_TAG):
            self._note(_start(node), loc, f"the tag {tag!r} is not accepted: only plain values are")
            return None
        kind = tag.removeprefix(_TAG)
        if kind in ("str", "timestamp"):
            return node.value if self._is_sound(node, loc) else None
        if kind not in ("null", "bool", "int", "float"):
            self._note(_start(node), loc, f"the tag '!!{kind}' is not accepted: only plain values are")
            return None
        try:
            value: object = self._scalars.construct_object(node)
        except (YAMLError, ValueError, KeyError, IndexError):
            self._note(_start(node), loc, f"{node.value!r} is no {kind}")
            return None
        return value

    def _is_sound(self, node: ScalarNode, loc: Loc) -> bool:
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            self._note(_start(node), loc, "half of a surrogate pair is no text")
            return False
        source = "" if node.style else self._text[node.start_mark.index : node.end_mark.index].rstrip(" \t\r\n")
        # guard: a character that looks like another one is named
        if (at := lookalikes.in_scalar(source)) is not None:
            lines = source[:at].split("\n")
            first = _start(node)
            column = len(lines[-1]) + (first.column if len(lines) == 1 else 1)
            place = Place(first.line + len(lines) - 1, column)
            self._note(place, loc, lookalikes.remedy(source[at]))
            self._document.is_misread = True
            return False
        return True

    def _note(self, place: Place, loc: Loc, message: str) -> None:
        self._document.findings.append((place, Finding(loc, message)))


def _start(node: Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _clamp(error: MarkedYAMLError, lines: int) -> Place:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Place(1, 1)
    # An error at the end of the text may be marked on the line after the last one.
    return Place(mark.line + 1, mark.column + 1) if mark.line < lines else Place(lines, 1)


def _lookalike_near(text: str, place: Place) -> tuple[Place, Finding] | None:
    """In the line that cannot be read, or the one before it, which may have led to that."""
    lines = text.split("\n")
    for number in (place.line, place.line - 1):
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        at = lookalikes.in_line(line)
        if at is not None:
            return Place(number, at + 1), Finding((), f"not valid YAML: {lookalikes.remedy(line[at])}")
    return None


REMEDIES = (
    ("expected ',' or '}'", "is a { of this line or one before it not closed?"),
    ("expected ',' or ']'", "is a [ of this line or one before it not closed?"),
    ("mapping values are not allowed", "is the line indented as the one before it, and does its list begin with '- '?"),
    (
        "found undefined alias",
        "an anchor of that name, &NAME, must stand before it; a text with a first * needs quotes",
    ),
    ("expected <block end>", "is it indented as the lines above it?"),
    ("could not find expected ':'", "write a colon and a space behind the key"),
    ("found unexpected end of stream", "is a quotation mark not closed?"),
    ("found character", "a text that begins so needs quotes"),
)
"""What was probably meant, by how the parser's own sentence begins."""


def _syntax(error: MarkedYAMLError) -> Finding:
    problem = error.problem or "cannot be read"
    remedy = next((remedy for begins, remedy in REMEDIES if problem.startswith(begins)), None)
    told = re.sub(r", but got '<[^']*>'$", "", problem)  # the parser's own words for its tokens tell a user nothing
    return Finding((), f"not valid YAML: {told}" + (f" {error.context}" if error.context else ""), remedy)


def as_mapping(value: object) -> Mapping[str, object]:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}
