"""The samples of a soak as one picture: a small panel per kind of series."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from tests.integration.kills.growth import BOUNDS, Sample

COLUMNS = 3


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Write a PNG; one line per process instance, one colour per series."""
    kinds = [kind for kind in BOUNDS if any(one.series.partition(":")[0] == kind for one in samples)]
    if not kinds:
        return
    rows = -(-len(kinds) // COLUMNS)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=(5 * COLUMNS, 3 * rows), squeeze=False)
    for place, kind in zip(grid.flat, kinds, strict=False):
        place.set_title(f"{kind} (bound {BOUNDS[kind].per_hour:g} per hour)", fontsize=9)
        series = sorted({one.series for one in samples if one.series.partition(":")[0] == kind})
        for number, name in enumerate(series):
            mine = [one for one in samples if one.series == name]
            for instance in sorted({one.instance for one in mine}):
                points = [(one.at_min, one.value) for one in mine if one.instance == instance]
                place.plot(*zip(*points, strict=True), color=f"C{number % 10}", linewidth=1, marker=".", markersize=2)
            place.plot([], [], color=f"C{number % 10}", label=name.partition(":")[2] or name)
        place.legend(fontsize=6)
        place.set_xlabel("minutes", fontsize=8)
        place.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
