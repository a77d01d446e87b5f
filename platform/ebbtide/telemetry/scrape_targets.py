"""The file by which Prometheus finds our ports (``file_sd_configs``); written anew when an address changes.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

FILE_NAME = "metrics-targets.json"


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One port that has metrics: ``component`` is "arbiter" or "gateway"."""

    component: str
    url: str
    pool: str


def as_file_sd(targets: Iterable[Target]) -> str:
    """The file's text, the same for the same targets in whatever order."""
    groups = []
    for target in sorted(set(targets)):
        url = urlsplit(target.url)
        labels = {"component": target.component, "pool": target.pool}
        if url.scheme == "https":
            labels["__scheme__"] = "https"
        groups.append({"targets": [url.netloc], "labels": labels})
    return json.dumps(groups, indent=2) + "\n"


def write_targets(path: Path, targets: Iterable[Target]) -> None:
    """Replace the file in one go: Prometheus never reads half of it.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(as_file_sd(targets))
    os.replace(draft, path)
