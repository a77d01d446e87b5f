"""Families as they come out of a scrape."""

import threading

import pytest

from ebbtide.telemetry.catalogue import BY_SUBJECT, families, series_names, tables
from ebbtide.telemetry.metric_family import Family, Sample
from ebbtide.telemetry.registry import Metrics
from tests.platform.telemetry.scrapes import needs_promtool, promtool, values

COUNT = Family("ebbtide_test_total", "counter", "Counts.", ("who",))
LEVEL = Family("ebbtide_test_level", "gauge", "A level.", ("who",))
TIME = Family("ebbtide_test_seconds", "histogram", "A time.", (), (0.1, 1.0))


def test_a_counter_a_gauge_and_a_histogram_come_out_as_they_went_in() -> None:
    metrics = Metrics([COUNT, TIME], [((LEVEL,), lambda: [Sample(LEVEL, 3, ("a",))])])
    metrics.add(Sample(COUNT, 2, ("a",)))
    metrics.add(Sample(COUNT, 1, ("a",)))
    metrics.add(Sample(TIME, 0.5))
    found = values(metrics.text()[0])
    assert found["ebbtide_test_total", "a"] == 3
    assert found["ebbtide_test_level", "a"] == 3
    assert found["ebbtide_test_seconds_bucket", "0.1"] == 0
    assert found["ebbtide_test_seconds_bucket", "1.0"] == 1
    assert not any(key[0].endswith("_created") for key in found)


def test_a_reader_is_asked_at_each_scrape_and_what_it_no_longer_says_is_gone() -> None:
    said = [Sample(LEVEL, 1, ("a",))]
    metrics = Metrics([], [((LEVEL,), lambda: said)])
    assert ("ebbtide_test_level", "a") in values(metrics.text()[0])
    said.clear()
    assert ("ebbtide_test_level", "a") not in values(metrics.text()[0])


def test_series_of_names_that_are_gone_are_forgotten() -> None:
    metrics = Metrics([COUNT])
    for who in ("a", "b"):
        metrics.add(Sample(COUNT, 1, (who,)))
    metrics.keep(COUNT, "who", ["b"])
    found = values(metrics.text()[0])
    assert ("ebbtide_test_total", "a") not in found and ("ebbtide_test_total", "b") in found


def test_every_process_says_its_version_and_what_it_uses() -> None:
    found = values(Metrics([]).text()[0])
    assert [key for key in found if key[0] == "ebbtide_build_info"]
    assert found[("process_resident_memory_bytes",)] > 0
    assert ("process_open_fds",) in found


@pytest.mark.parametrize(
    ("name", "kind"), [("other_total", "counter"), ("ebbtide_x", "counter"), ("ebbtide_x_total", "gauge")]
)
def test_a_name_against_the_conventions_is_a_bug(name: str, kind: str) -> None:
    with pytest.raises(AssertionError):
        Family(name, kind, "x")  # type: ignore[arg-type]


def test_names_are_unique_and_buckets_rise() -> None:
    every = [family for group in BY_SUBJECT.values() for family in group]
    assert len({family.name for family in every}) == len(set(every))
    for family in every:
        assert list(family.buckets) == sorted(set(family.buckets)), family.name
        assert family.help.endswith("."), family.name


def test_series_names_are_those_of_a_scrape() -> None:
    metrics = Metrics([TIME])
    metrics.add(Sample(TIME, 1))
    assert {key[0] for key in values(metrics.text()[0]) if "test" in key[0]} == set(series_names(TIME))


@needs_promtool
def test_promtool_has_nothing_to_say_about_any_metric_there_is() -> None:
    own = [family for family in families().values() if family.name != "ebbtide_build_info"]
    metrics = Metrics(own)
    for family in own:
        metrics.add(Sample(family, 1, tuple("x" for _ in family.labels)))
    assert promtool("check", "metrics", text=metrics.text()[0]) == ""


def test_counting_from_many_threads_loses_nothing() -> None:
    metrics = Metrics([COUNT])

    def count() -> None:
        for _ in range(1000):
            metrics.add(Sample(COUNT, 1, ("a",)))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(metrics.text()[0])["ebbtide_test_total", "a"] == 4000


def test_the_page_has_a_line_for_each_metric() -> None:
    text = "\n".join(tables())
    assert all(f"`{name}`" in text for name in families())
