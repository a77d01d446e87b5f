"""All metrics, and where each is found; the page ``docs/metrics.md`` is made from here."""

from collections.abc import Iterator, Mapping

from ebbtide.telemetry import arbiter, build, gateway, handover, pool, training
from ebbtide.telemetry.family import Family

BY_SUBJECT: Mapping[str, tuple[Family, ...]] = {
    "Gateway": (*gateway.FAMILIES, *build.FAMILIES),
    "Arbiter: the pool": pool.FAMILIES,
    "Arbiter: hand-overs": handover.FAMILIES,
    "Arbiter: training": training.FAMILIES,
    "Arbiter: itself": (*arbiter.FAMILIES, *build.FAMILIES),
}


def families() -> dict[str, Family]:
    """Every metric by name."""
    return {family.name: family for group in BY_SUBJECT.values() for family in group}


def series_names(family: Family) -> tuple[str, ...]:
    """The names under which a family's series are stored."""
    if family.kind == "histogram":
        return tuple(f"{family.name}{suffix}" for suffix in ("_bucket", "_count", "_sum"))
    return (family.name,)


def tables() -> Iterator[str]:
    """The page's tables, line by line."""
    for subject, group in BY_SUBJECT.items():
        yield f"## {subject}"
        yield ""
        yield "| metric | type | labels | what it says |"
        yield "|---|---|---|---|"
        for family in group:
            labels = ", ".join(family.labels) or "-"
            yield f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"
        yield ""
