"""Families as prometheus-client's objects, in a registry of this process's own.

Two ways in: ``add`` counts or observes what happened; a *reader* is asked at each scrape for what is so now (gauges,
and counters that others keep), so that it costs nothing between scrapes. Never the default registry, which libraries
fill with theirs.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from ebbtide.telemetry.build import BUILD_INFO, build_info
from ebbtide.telemetry.metric_family import Family, Sample

# The `_created` series that the library adds double every counter, and Prometheus' text format has no use for them.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

Reader = Callable[[], Iterable[Sample]]


class Metrics:
    """The metrics of one process. ``add`` and ``text`` may be called from any thread."""

    def __init__(self, families: Iterable[Family], readers: Iterable[tuple[tuple[Family, ...], Reader]] = ()) -> None:
        """Args:
        families: that are counted by ``add``; a histogram or a counter without labels shows up at 0 at once.
        readers: each with the families that it gives samples of.
        """
        self.registry = CollectorRegistry()
        self._own: dict[str, Any] = {family.name: _own(family, self.registry) for family in families}
        self.registry.register(_Read((BUILD_INFO,), lambda: [build_info()]))
        for read_families, reader in readers:
            self.registry.register(_Read(read_families, reader))
        ProcessCollector(registry=self.registry)

    def add(self, sample: Sample) -> None:
        """Count (counter), set (gauge) or observe (histogram)."""
        metric = self._own[sample.family.name]
        if sample.labels:
            metric = metric.labels(*sample.labels)
        if sample.family.kind == "counter":
            metric.inc(sample.value)
        elif sample.family.kind == "gauge":
            metric.set(sample.value)
        else:
            metric.observe(sample.value)

    def child(self, family: Family, *labels: str) -> Any:
        """The library's own object for one series: kept by the caller, adding to it looks nothing up."""
        metric = self._own[family.name]
        return metric.labels(*labels) if labels else metric

    def keep(self, family: Family, label: str, values: Iterable[str]) -> None:
        """Forget the series of ``family`` whose ``label`` is none of ``values``: what it names is gone."""
        metric, kept = self._own[family.name], set(values)
        place = family.labels.index(label)
        for known in {one[place] for one in list(metric._metrics)} - kept:
            metric.remove_by_labels({label: known})

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics, and their content type, in the format that ``accept`` (a header) asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _own(family: Family, registry: CollectorRegistry) -> Any:
    if family.kind == "histogram":
        return Histogram(family.name, family.help, family.labels, buckets=family.buckets, registry=registry)
    kind = Counter if family.kind == "counter" else Gauge
    return kind(family.name, family.help, family.labels, registry=registry)


class _Read:
    """A collector of the library: asks a reader at each scrape."""

    def __init__(self, families: tuple[Family, ...], reader: Reader) -> None:
        self._families, self._reader = families, reader

    def describe(self) -> Iterator[Metric]:
        """Names only: at registration there may be nothing to read yet."""
        yield from (_empty(family) for family in self._families)

    def collect(self) -> Iterator[Metric]:
        """The present values."""
        found = {family.name: _empty(family) for family in self._families}
        for sample in self._reader():
            found[sample.family.name].add_metric(sample.labels, sample.value)
        yield from found.values()


def _empty(family: Family) -> Any:
    if family.kind == "counter":
        return CounterMetricFamily(family.name, family.help, labels=family.labels)
    assert family.kind == "gauge", f"{family.name}: a histogram cannot be read, only observed"
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)
