"""What tests of metrics have in common: promtool, and reading Prometheus' text."""

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus); CI installs it"
)


def promtool(*arguments: str, text: bytes = b"") -> str:
    """What promtool has to say; empty when it is content."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, timeout=60)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def values(text: bytes) -> dict[tuple[str, ...], float]:
    """Every series of a scrape: (name, label value, ...) by the labels' names in alphabetical order."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found
