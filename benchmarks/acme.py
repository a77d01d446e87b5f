"""Jobs as the Acme clusters had them, drawn from the distributions that were published of them.

Their records themselves are not at hand, only curves (AcmeTrace, NSDI '24): how many GPUs jobs ask for, what share of
the GPU time the jobs of each size have, and how long jobs take. A size is drawn from the first; a duration from the
last, times what makes the shares of GPU time come out as in the second. When jobs come is not in the curves: at any
time alike.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Array = npt.NDArray[np.float64]

CLUSTERS = ("seren", "kalos")  # each has half of the GPU time
SIZES = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])  # what lies between two counts as the higher
READ_OFF = 1.01  # the curves are pictures: 513 GPUs are 512
SHORTEST_S, LONGEST_S = 60.0, 3 * 86_400.0  # as the simulator takes jobs of other traces
DRAWN = 200_000  # of each cluster: some ten times as many as come in a week


def drawn(cdfs: Path, *, gpus: float, days: float, seed: int) -> pa.Table:
    """Jobs with ``submit_s``, ``gpus`` and ``duration_s``, by submission.

    Args:
        cdfs: the curves: columns ``cluster``, ``job_type``, ``quantity``, ``x``, ``cdf_pct``.
        gpus: that they keep busy on average.
        days: for which they come.
        seed: of all draws.
    """
    random = np.random.default_rng(seed)
    parts = [_of(cluster, _curves(cdfs, cluster), gpus / len(CLUSTERS), days, random) for cluster in CLUSTERS]
    submit_s, sizes, duration_s = (np.concatenate(one) for one in zip(*parts, strict=True))
    order = np.argsort(submit_s, kind="stable")
    columns = {"submit_s": submit_s, "gpus": sizes.astype(np.int64), "duration_s": duration_s}
    return pa.table({name: values[order] for name, values in columns.items()})


def written(cdfs: Path, folder: Path, *, gpus: float, days: float, seed: int) -> Path:
    """The same in a file of ``folder``, as the simulator reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"acme-{gpus:.0f}-gpus-{days:g}-days-{seed}.parquet"
    pq.write_table(drawn(cdfs, gpus=gpus, days=days, seed=seed), path)
    return path


def _curves(path: Path, cluster: str) -> Mapping[str, tuple[Array, Array]]:
    table = pq.read_table(path).to_pydict()
    rows = zip(*(table[name] for name in ("cluster", "job_type", "quantity", "x", "cdf_pct")), strict=True)
    found: dict[str, list[tuple[float, float]]] = {}
    for name, kind, quantity, x, share in rows:
        if name == cluster and kind == "all":
            found.setdefault(quantity, []).append((x, share / 100.0))
    return {quantity: (np.array(pairs)[:, 0], np.array(pairs)[:, 1]) for quantity, pairs in found.items()}


def _of(
    cluster: str, curves: Mapping[str, tuple[Array, Array]], gpus: float, days: float, random: np.random.Generator
) -> tuple[Array, Array, Array]:
    jobs, time = (_shares(*curves[name]) for name in ("gpus_job_cdf", "gpus_gputime_cdf"))
    base_s = _quantiles(*curves["duration_s"], random.random(DRAWN))
    size = random.choice(len(SIZES), DRAWN, p=jobs)
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.nan_to_num(time / (jobs * SIZES), posinf=0.0)
    duration_s = base_s * longer[size] / (longer * jobs).sum()
    taken = (duration_s >= SHORTEST_S) & (duration_s <= LONGEST_S)
    size, duration_s = SIZES[size[taken]], duration_s[taken]
    # Until they ask for so much: a few long ones have most of it, and so a number of jobs says little.
    count = int(np.searchsorted(np.cumsum(size * duration_s), gpus * days * 86_400.0)) + 1
    if count > len(size):
        raise ValueError(f"{cluster}: {len(size)} jobs are drawn, too few for {gpus:g} GPUs over {days:g} days")
    return random.random(count) * days * 86_400.0, size[:count], duration_s[:count]


def _shares(x: Array, cdf: Array) -> Array:
    """Of each of `SIZES`."""
    upto = np.array([cdf[x <= size * READ_OFF].max(initial=0.0) for size in SIZES])
    shares: Array = np.diff(upto, prepend=0.0)
    shares /= shares.sum()
    return shares


def _quantiles(x: Array, cdf: Array, at: Array) -> Array:
    """Between two points of a curve it is a straight line over the logarithm."""
    rising, first = np.unique(cdf, return_index=True)
    found: Array = np.exp(np.interp(at, rising, np.log(x[first])))
    return found
