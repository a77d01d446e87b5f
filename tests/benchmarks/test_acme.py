"""Jobs drawn from published curves have these curves again."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.acme import LONGEST_S, SHORTEST_S, drawn, written
from ebbtide_simulator.traffic.traces import read_jobs


@pytest.fixture
def cdfs(tmp_path: Path) -> Path:
    """Nine jobs of ten have one GPU and together a tenth of the GPU time; the others have 512 (read off as 513)."""
    rows = [
        (cluster, "all", quantity, x, share)
        for cluster in ("seren", "kalos")
        for quantity, points in {
            "gpus_job_cdf": [(1.0, 90.0), (513.0, 100.0)],
            "gpus_gputime_cdf": [(1.0, 10.0), (513.0, 100.0)],
            "duration_s": [(600.0, 0.0), (1200.0, 100.0)],
        }.items()
        for x, share in points
    ]
    path = tmp_path / "cdfs.parquet"
    names = ("cluster", "job_type", "quantity", "x", "cdf_pct")
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)
    return path


def test_sizes_gpu_time_and_load_are_as_asked(cdfs: Path) -> None:
    jobs = drawn(cdfs, gpus=2000.0, days=4.0, seed=1)
    gpus, duration_s = np.array(jobs["gpus"]), np.array(jobs["duration_s"])
    assert set(gpus) == {1, 512}
    assert (gpus == 1).mean() == pytest.approx(0.9, abs=0.05)
    busy_s = gpus * duration_s
    assert busy_s.sum() == pytest.approx(2000 * 4 * 86_400, rel=0.01)
    assert busy_s[gpus == 512].sum() / busy_s.sum() == pytest.approx(0.9, abs=0.05)
    assert duration_s.min() >= SHORTEST_S and duration_s.max() <= LONGEST_S
    assert (np.diff(np.array(jobs["submit_s"])) >= 0).all()


def test_equal_seeds_draw_equal_jobs_and_the_simulator_reads_them(cdfs: Path, tmp_path: Path) -> None:
    assert drawn(cdfs, gpus=64.0, days=2.0, seed=3).equals(drawn(cdfs, gpus=64.0, days=2.0, seed=3))
    path = written(cdfs, tmp_path / "new", gpus=64.0, days=2.0, seed=3)
    assert len(read_jobs(path).gpus) == len(drawn(cdfs, gpus=64.0, days=2.0, seed=3))


def test_more_than_can_be_drawn_is_refused(cdfs: Path) -> None:
    with pytest.raises(ValueError, match="too few"):
        drawn(cdfs, gpus=1e7, days=365.0, seed=0)
