"""What is shipped for Prometheus and Grafana only speaks of metrics and labels that there are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbtide.telemetry.catalogue import BEGIN, BY_SUBJECT, END, families, series_names, tables
from ebbtide.telemetry.registry import Metrics
from ebbtide.telemetry.scrape_targets import Target, as_file_sd
from tests.platform.telemetry.scrapes import needs_promtool, promtool, values

MONITORING = Path(__file__).parents[3] / "configs" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text())
FROM_SCRAPING = {"instance", "job"}  # labels that Prometheus adds itself
VARIABLES = {"$__rate_interval": "5m", "$pool": "demo", "$model": ".*"}
TYPES = {"row", "timeseries", "stat"}


def target_labels() -> set[str]:
    """Labels that our targets file gives to every series."""
    (group,) = json.loads(as_file_sd([Target("arbiter", "http://127.0.0.1:1/metrics", "demo")]))
    return set(group["labels"])


def known_series() -> dict[str, set[str]]:
    """Labels by name of every series that a scrape can have, the process's own included."""
    found = {key[0]: set[str]() for key in values(Metrics([]).text()[0])}
    for family in families().values():
        for name in series_names(family):
            found[name] = {*family.labels, *({"le"} if name.endswith("_bucket") else set())}
    return found


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> Iterator[tuple[str, str, str]]:
    """(panel, expression with its variables filled in, legend)"""
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"]
            for variable, value in VARIABLES.items():
                text = text.replace(variable, value)
            yield panel["title"], text, target["legendFormat"]


ALL = list(expressions())
IDS = [f"{title}-{number}" for number, (title, _, _) in enumerate(ALL)]


@pytest.mark.parametrize(("title", "text", "legend"), ALL, ids=IDS)
def test_an_expression_names_only_metrics_and_labels_that_there_are(title: str, text: str, legend: str) -> None:
    known, everywhere = known_series(), target_labels() | FROM_SCRAPING
    bare = re.sub(r'"[^"]*"', '""', text)
    names = set(re.findall(r"\b(?:ebbtide|process)_\w+", bare))
    assert names and names <= set(known), f"{title}: {names - set(known)}"
    allowed = everywhere.union(*(known[name] for name in names))
    for name, matchers in re.findall(r"\b((?:ebbtide|process)_\w+)\{([^}]*)\}", bare):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert labels <= known[name] | everywhere, f"{title}: {name} has no {labels - known[name]}"
    grouped = [set(re.findall(r"\w+", group)) for group in re.findall(r"\bby \(([^)]*)\)", bare)]
    for labels in grouped:
        assert labels <= allowed, f"{title}: {labels - allowed}"
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    left = set.union(*grouped) if grouped else allowed
    assert shown <= left, f"{title}: the legend shows {shown - left}, which the expression does not keep"


@needs_promtool
def test_promtool_can_read_every_expression(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, (_, text, _) in enumerate(ALL)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    assert f"{len(ALL)} rules found" in promtool("check", "rules", str(file))


@needs_promtool
def test_promtool_is_content_with_the_scrape_config() -> None:
    assert "SUCCESS" in promtool("check", "config", str(MONITORING / "prometheus.yml"))


def test_every_metric_is_on_the_dashboard() -> None:
    text = " ".join(expression for _, expression, _ in ALL)
    shown = set(re.findall(r"\bebbtide_\w+", text))
    missing = [name for name, family in families().items() if not shown & set(series_names(family))]
    assert missing == []


def test_it_can_be_imported_anywhere() -> None:
    assert DASHBOARD["id"] is None and DASHBOARD["uid"] and DASHBOARD["schemaVersion"] >= 36
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names[0] == "datasource" and DASHBOARD["templating"]["list"][0]["type"] == "datasource"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert {panel["type"] for panel in DASHBOARD["panels"]} <= TYPES
    assert [p["title"] for p in DASHBOARD["panels"] if p["type"] == "row"] == ["Pool", "Serving", "Training", "Health"]
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"]), panel["title"]


def test_no_two_panels_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_the_slots_are_a_stacked_area() -> None:
    first = next(panels())
    assert first["title"] == "Slots by state" and first["type"] == "timeseries"
    assert first["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"


def test_the_page_of_metrics_agrees_with_the_catalogue() -> None:
    page = (MONITORING.parents[1] / "docs" / "metrics.md").read_text()
    inside = page.split(BEGIN)[1].split(END)[0]
    assert inside == "\n".join(tables()), "write it anew: python -m ebbtide.telemetry.catalogue"
    assert len(BY_SUBJECT) == inside.count("## ")
