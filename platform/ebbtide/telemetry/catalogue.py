"""All metrics; ``python -m ebbtide.telemetry.catalogue`` writes them into the page ``docs/metrics.md``."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ebbtide.telemetry import arbiter, build, gateway, handover, pool, training
from ebbtide.telemetry.metric_family import Family

BEGIN, END = "<!-- metrics -->\n", "<!-- end of metrics -->"  # around the tables in the page

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


def rewrite(page: Path) -> None:
    """Put the tables of today into the page, between its marks."""
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}" + "\n".join(tables()) + f"{END}{tail}")


if __name__ == "__main__":
    rewrite(Path("docs/metrics.md"))
