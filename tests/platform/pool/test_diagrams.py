"""The diagrams in the docs are those of the tables."""

from pathlib import Path

from ebbtide.pool.diagrams import TABLES, diagram, rewrite

PAGE = Path(__file__).parents[3] / "docs" / "concepts.md"


def test_the_concepts_page_shows_the_tables_as_they_are() -> None:
    page = PAGE.read_text()
    assert rewrite(page) == page, "run: python -m ebbtide.pool.diagrams docs/concepts.md"


def test_every_table_is_on_the_page() -> None:
    page = PAGE.read_text()
    for table in TABLES.values():
        assert diagram(table) in page
