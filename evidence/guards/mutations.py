"""Takes a guard out of a module's syntax tree. Pure.

What is taken out follows from what stands on the guard's line:

- a condition (of ``if``, ``while``, ``assert``, a ternary, a comprehension, a ``case``; or one operand of an ``and``
  or ``or`` that has a line of its own): once inverted, and once removed, as if it let everything pass;
- a truth value that is returned, assigned or passed on: inverted;
- ``min`` or ``max`` with a bound: without its last argument;
- an ``except``: it catches nothing; a ``with``: without it; an argument with a line of its own: left out;
- a tuple that is returned, the key of an order: empty; any other statement: left out.

Inverting alone would be weak: a refusal that is inverted refuses whatever is right, and any test notices. A test that
fails when the refusal is gone has met the case for which it is there.
"""

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

Statement = ast.Expr | ast.Raise | ast.Delete | ast.AugAssign | ast.Assign | ast.AnnAssign | ast.Return | ast.Continue
Change = Callable[["Place"], None]


class NoCondition(ValueError):
    """Nothing stands on the line that could be taken out, or more than one thing."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A module without one of its guards: what was done to the condition, and the source that it leaves."""

    how: str
    source: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node hangs in its parent."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None

    def put(self, new: ast.AST) -> None:
        """Another node in its place."""
        if self.index is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.index] = new

    def drop(self) -> None:
        """Nothing in its place."""
        assert self.index is not None
        del getattr(self.parent, self.field)[self.index]


def mutations(source: str, line: int) -> list[Mutation]:
    """The module without what stands on ``line``, in one way or two.

    Raises:
        NoCondition: the line has nothing that can be taken out, or two things beside each other.
    """
    tree = ast.parse(source)
    steps, changes = _found(tree, line)
    made: list[Mutation] = []
    for how, change in changes:
        copy = deepcopy(tree)
        change(_follow(copy, steps))
        made.append(Mutation(how, ast.unparse(ast.fix_missing_locations(copy))))
    return made


def ways(tree: ast.Module, line: int) -> list[str]:
    """How the guard on ``line`` can be taken out.

    Raises:
        NoCondition: as `mutations`.
    """
    return [how for how, _ in _found(tree, line)[1]]


Steps = tuple[tuple[str, int | None], ...]
"""The way from the top of a tree to a node: fields and, where they are lists, indexes."""


def _found(tree: ast.Module, line: int) -> tuple[Steps, list[tuple[str, Change]]]:
    for kind in (_conditions, _others):
        found = [(steps, place, changes) for steps, place in _places(tree) if (changes := kind(place, line))]
        best = _best([(steps, place) for steps, place, _ in found], line)
        if best is not None:
            return next((steps, changes) for steps, place, changes in found if place is best)
    raise NoCondition("no condition, and no statement that can be left out, begins or ends on this line")


def _places(tree: ast.AST) -> Iterator[tuple[Steps, Place]]:
    """Every node below the top."""
    stack: list[tuple[Steps, ast.AST]] = [((), tree)]
    while stack:
        steps, parent = stack.pop()
        for field, value in ast.iter_fields(parent):
            children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
            for index, child in children:
                if isinstance(child, ast.AST):
                    here = (*steps, (field, index))
                    yield here, Place(child, parent, field, index)
                    stack.append((here, child))


def _follow(tree: ast.AST, steps: Steps) -> Place:
    node, parent = tree, tree
    for field, index in steps:
        parent = node
        node = getattr(parent, field) if index is None else getattr(parent, field)[index]
    field, index = steps[-1]
    return Place(node, parent, field, index)


def _span(place: Place) -> tuple[int, int]:
    """The lines of a node; a condition begins where its keyword stands."""
    node = place.node
    if isinstance(node, ast.With | ast.AsyncWith | ast.ExceptHandler):
        return node.lineno, node.lineno
    if isinstance(place.parent, ast.If | ast.While | ast.Assert) and place.field == "test":
        return place.parent.lineno, node.end_lineno or 0  # type: ignore[attr-defined]
    return node.lineno, node.end_lineno or 0  # type: ignore[attr-defined]


def _best(found: list[tuple[Steps, Place]], line: int) -> Place | None:
    """The largest that lies within the line, else the smallest that begins or ends on it."""
    within = [(steps, place) for steps, place in found if _span(place) == (line, line)]
    outermost = [
        (steps, place)
        for steps, place in within
        if not any(steps != other and steps[: len(other)] == other for other, _ in within)
    ]
    if len(outermost) > 1:
        raise NoCondition(f"{len(outermost)} conditions stand beside each other on this line: give each its own")
    if outermost:
        return outermost[0][1]
    edges = [(steps, place) for steps, place in found if line in _span(place)]
    return min(edges, key=lambda one: (_span(one[1])[1] - _span(one[1])[0], -len(one[0])))[1] if edges else None


def _conditions(place: Place, line: int) -> list[tuple[str, Change]]:
    """How a condition that begins or ends on ``line`` is taken out; nothing if this node is none."""
    node, parent, field = place.node, place.parent, place.field
    if not isinstance(node, ast.expr) or line not in _span(place):
        return []
    if isinstance(parent, ast.If | ast.While) and field == "test":
        return [("inverted", _invert), ("removed", _constant(False))][isinstance(parent, ast.While) :]
    if isinstance(parent, ast.Assert | ast.comprehension) and field in ("test", "ifs"):
        return [("inverted", _invert), ("removed", _constant(True))]
    if isinstance(parent, ast.match_case) and field == "guard":
        return [("inverted", _invert), ("removed", _constant(True))]
    if isinstance(parent, ast.IfExp) and field == "test":
        return [("inverted", _invert)]
    if isinstance(parent, ast.BoolOp) and (parent.lineno, parent.end_lineno) != (line, line):
        return [("inverted", _invert), ("removed", _constant(isinstance(parent.op, ast.And)))]
    return []


def _others(place: Place, line: int) -> list[tuple[str, Change]]:
    """How anything else that begins or ends on ``line`` is taken out."""
    node = place.node
    if not hasattr(node, "lineno") or line not in _span(place):
        return []
    if isinstance(node, ast.ExceptHandler):
        return [("catches nothing", _catch_nothing)]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [("without its context", _without_context)]
    if isinstance(node, ast.keyword) and node.arg is not None and node.lineno != place.parent.lineno:  # type: ignore[attr-defined]
        return [("inverted", _invert_value)] if _is_truth(node.value) else [("left out", Place.drop)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        return [("without its bound", _without_bound)] if len(node.args) > 1 else []
    if not isinstance(node, Statement):
        return []
    if isinstance(node, ast.Return | ast.Assign | ast.AnnAssign):
        return _value_of(node)
    return [("left out", _pass)]


def _value_of(node: ast.Return | ast.Assign | ast.AnnAssign) -> list[tuple[str, Change]]:
    if node.value is not None and _is_truth(node.value):
        return [("inverted", _invert_value)]
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        return [("orders nothing", lambda place: place.put(ast.Return(ast.Tuple([], ast.Load()))))]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        return [("left out", _pass)]
    return []


def _is_truth(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in ("any", "all", "bool", "isinstance")
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.Not)
    return isinstance(value, ast.Compare | ast.BoolOp) or (
        isinstance(value, ast.Constant) and isinstance(value.value, bool)
    )


def _invert(place: Place) -> None:
    assert isinstance(place.node, ast.expr)
    place.put(ast.UnaryOp(ast.Not(), place.node))


def _constant(value: bool) -> Change:
    return lambda place: place.put(ast.Constant(value))


def _invert_value(place: Place) -> None:
    place.node.value = ast.UnaryOp(ast.Not(), place.node.value)  # type: ignore[attr-defined]


def _catch_nothing(place: Place) -> None:
    place.node.type = ast.Tuple([], ast.Load())  # type: ignore[attr-defined]


def _without_context(place: Place) -> None:
    assert isinstance(place.node, ast.With | ast.AsyncWith)
    place.put(ast.If(ast.Constant(True), place.node.body, []))


def _without_bound(place: Place) -> None:
    assert isinstance(place.node, ast.Call)
    place.node.args.pop()
    if len(place.node.args) == 1:
        [only] = place.node.args
        place.put(only.value if isinstance(only, ast.Starred) else only)


def _pass(place: Place) -> None:
    place.put(ast.Pass())
