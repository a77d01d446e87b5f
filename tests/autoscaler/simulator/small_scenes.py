"""Small scenes for the simulator's tests."""

import numpy as np

from ebbtide_simulator.model.engine import Engine, Times
from ebbtide_simulator.run.run import Scene, Service, endpoint_spec
from ebbtide_simulator.traffic.draws import Job, Load

ENGINE = Engine(prefill_tok_s=10_000, decode_tok_s=1_000)
HOUR_S = 3600


def load_of(work_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Load:
    """So many replica-seconds in each second, in requests of 100 and 50 tokens."""
    return Load(work_s, work_s / ENGINE.work_s(100, 50), 100.0, 50.0)


def tide(hours: float, low: float, high: float, seed: int = 0) -> Load:
    """Two waves of demand, noisy."""
    seconds = np.arange(int(hours * HOUR_S))
    wave = low + (high - low) * (1 - np.cos(4 * np.pi * seconds / len(seconds))) / 2
    return load_of(np.random.default_rng(seed).gamma(4.0, wave / 4.0))


def scene_of(load: Load, jobs: tuple[Job, ...] = (), *, nodes: int = 2, per_node: int = 4, seed: int = 0) -> Scene:
    """One endpoint and these jobs on a few slots."""
    slots = nodes * per_node
    return Scene(
        nodes=nodes,
        slots_per_node=per_node,
        host_bytes=1 << 40,
        services=(Service(endpoint_spec("chat", ENGINE, load, replicas_max=slots), ENGINE, load),),
        jobs=jobs,
        times=Times(),
        seed=seed,
        tick_s=15.0,
        warm_up_s=0.0,
        horizon_s=float(len(load.work_s)),
    )


def jobs_of(count: int, *, every_s: float, workers: int, hours: float) -> tuple[Job, ...]:
    """Equal jobs, one after the other."""
    return tuple(Job(n * every_s, workers, workers, hours * HOUR_S * workers) for n in range(count))
