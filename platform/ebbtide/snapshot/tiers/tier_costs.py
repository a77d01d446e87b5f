"""What each tier would cost if nothing were in its way: bytes over rates. Pure.

A tier may have several ways: spilling goes through host memory where there is room, else straight to the directory.
How long a way takes never depends on how much memory is free, only whether it can be taken: see ``tier_choice``.
"""

from collections.abc import Iterator

from ebbtide.snapshot.tiers.cost_model import EXIT_S, Estimate, Facts, Tier, Wish
from ebbtide.snapshot.tiers.formatting import gigabytes, rate, seconds
from ebbtide.snapshot.tiers.obstacles import Means
from ebbtide.snapshot.tiers.transfer_rates import Lane

STAGING_BYTES = 256 << 20  # of pinned or aligned buffers, per node, for what goes straight to the shared directory


def ways(facts: Facts, wish: Wish) -> Iterator[Estimate]:
    """At least one way of each tier, in the order of `Tier`."""
    yield _park(facts)
    yield _by_driver(facts)
    yield from _spills(facts, wish)
    yield _stop(facts)
    yield _image(facts)
    yield _kill(facts, wish)


def needs(tier: Tier, facts: Facts, wish: Wish) -> frozenset[Means]:
    """The means that a tier is made of, for this workload. Without GPUs there is nothing for the driver to do."""
    driver = {Means.DRIVER} if facts.gpus else set()
    table: dict[Tier, set[Means]] = {
        Tier.EVICT_AND_CUDA: {Means.EVICT} | driver,
        Tier.CUDA_CHECKPOINT: {Means.DRIVER},
        Tier.EVICT_AND_SPILL: {Means.EVICT, Means.STORAGE} | (set() if stays(facts, wish) else {Means.RESTART}),
        Tier.STOP_AND_RESTART: {Means.STORAGE, Means.RESTART},
        Tier.CRIU_IMAGE: {Means.CRIU, Means.STORAGE} | driver,
        Tier.KILL: set(),
    }
    return frozenset(table[tier])


def stays(facts: Facts, wish: Wish) -> bool:
    """Whether a process whose tracked state has left can stay: something must take the rest off the GPU."""
    if wish.node_goes or wish.other_workers:
        return False
    return not facts.gpus or not facts.lacks(Means.DRIVER)


def _out(facts: Facts) -> tuple[float, str]:
    """Bytes per second at which tracked storages leave, all workers together, and the same in words."""
    path = Lane.PCIE_OUT if facts.gpus else Lane.MEMCPY_OUT
    speed = facts.rates.of(path).bytes_per_s * max(1, facts.gpus)  # each GPU has its own link; cores share the memory
    return speed, rate(speed)


def _back_s(facts: Facts) -> float:
    path = Lane.PCIE_BACK if facts.gpus else Lane.MEMCPY_BACK
    return facts.rates.seconds(path, facts.tracked_bytes) / max(1, facts.gpus)


def _load_s(facts: Facts) -> float:
    """From the shared directory into the workers' storages: as fast as the slower of reading and filling them."""
    return max(facts.rates.seconds(Lane.STORAGE_BACK, facts.tracked_bytes), _back_s(facts))


def _durable_s(facts: Facts, free_s: float) -> float | None:
    """When a background spill is through; None where it cannot be made."""
    if facts.lacks(Means.STORAGE) or facts.disk_free_bytes is None or facts.disk_free_bytes < facts.tracked_bytes:
        return None
    return free_s + facts.rates.seconds(Lane.STORAGE_OUT, facts.tracked_bytes)


def _park(facts: Facts) -> Estimate:
    rates, speed = facts.rates, _out(facts)
    rest_s = rates.seconds(Lane.DRIVER_OUT, facts.remainder_bytes)
    free_s = facts.safe_point_s + facts.tracked_bytes / speed[0] + rest_s
    resume_s = _back_s(facts) + rates.seconds(Lane.DRIVER_BACK, facts.remainder_bytes)
    durable_s = _durable_s(facts, free_s)
    way = f"{gigabytes(facts.tracked_bytes)} go to host memory at {speed[1]}"
    if facts.gpus:
        way += f", the driver takes the remaining {gigabytes(facts.remainder_bytes)}"
    return Estimate(
        tier=Tier.EVICT_AND_CUDA,
        free_s=free_s,
        resume_s=resume_s,
        durable_s=durable_s,
        ram_bytes=facts.tracked_bytes + facts.remainder_bytes,
        disk_bytes=0 if durable_s is None else facts.tracked_bytes,
        way=way,
    )


def _by_driver(facts: Facts) -> Estimate:
    size_bytes = facts.tracked_bytes + facts.remainder_bytes
    speed = facts.rates.of(Lane.DRIVER_OUT).bytes_per_s
    return Estimate(
        tier=Tier.CUDA_CHECKPOINT,
        free_s=facts.safe_point_s + size_bytes / speed,
        resume_s=facts.rates.seconds(Lane.DRIVER_BACK, size_bytes),
        durable_s=None,  # it is of no use without the process
        ram_bytes=size_bytes,
        disk_bytes=0,
        way=f"the driver takes all {gigabytes(size_bytes)} to host memory at {rate(speed)}",
    )


def _spills(facts: Facts, wish: Wish) -> Iterator[Estimate]:
    """Through host memory and straight to the directory; with the process staying, if it can, and without."""
    for staying in (True, False) if stays(facts, wish) and facts.remainder_bytes else (stays(facts, wish),):
        yield _spill(facts, staying=staying, straight=False)
        yield _spill(facts, staying=staying, straight=True)


def _spill(facts: Facts, *, staying: bool, straight: bool) -> Estimate:
    rates, (speed, said) = facts.rates, _out(facts)
    writing = rates.of(Lane.STORAGE_OUT).bytes_per_s
    rest_bytes = facts.remainder_bytes if staying else 0
    end_s = rates.seconds(Lane.DRIVER_OUT, rest_bytes) if staying else EXIT_S
    leave_s = facts.tracked_bytes / (min(speed, writing) if straight else speed)
    free_s = facts.safe_point_s + leave_s + end_s
    written_s = facts.safe_point_s + facts.tracked_bytes / min(speed, writing) + (0.0 if straight else leave_s)
    again_s = rates.seconds(Lane.DRIVER_BACK, rest_bytes) if staying else facts.restart_s
    size = gigabytes(facts.tracked_bytes)
    if straight:
        way = f"{size} go straight to the shared directory at {rate(min(speed, writing))}"
    else:
        way = f"{size} go to host memory at {said}, and from there to the shared directory at {rate(writing)}"
    return Estimate(
        tier=Tier.EVICT_AND_SPILL,
        free_s=free_s,
        resume_s=_load_s(facts) + again_s,
        durable_s=max(free_s, written_s),
        ram_bytes=rest_bytes + (min(STAGING_BYTES, facts.tracked_bytes) if straight else facts.tracked_bytes),
        disk_bytes=facts.tracked_bytes,
        way=way + ("" if staying else "; the processes end"),
    )


def _stop(facts: Facts) -> Estimate:
    rates = facts.rates
    written_s = facts.safe_point_s + rates.seconds(Lane.STORAGE_OUT, facts.tracked_bytes)
    resume_s = facts.restart_s + _load_s(facts)
    said = rate(rates.of(Lane.STORAGE_OUT).bytes_per_s)
    return Estimate(
        tier=Tier.STOP_AND_RESTART,
        free_s=written_s + EXIT_S,
        resume_s=resume_s,
        durable_s=written_s,
        ram_bytes=0,
        disk_bytes=facts.tracked_bytes,
        way=f"a checkpoint of {gigabytes(facts.tracked_bytes)} is written at {said}, the processes end, "
        f"and starting them again costs {seconds(facts.restart_s)}",
    )


def _image(facts: Facts) -> Estimate:
    rates = facts.rates
    on_device = facts.tracked_bytes + facts.remainder_bytes if facts.gpus else 0
    size_bytes = on_device + facts.process_bytes
    if not facts.gpus:  # what it tracks may be counted among its memory already, and is not counted twice
        size_bytes = max(facts.process_bytes, facts.tracked_bytes)
    taken_s = rates.seconds(Lane.DRIVER_OUT, on_device)
    dumped_s = taken_s + rates.seconds(Lane.CRIU_OUT, size_bytes)
    said = rate(rates.of(Lane.CRIU_OUT).bytes_per_s)
    return Estimate(
        tier=Tier.CRIU_IMAGE,
        free_s=taken_s if facts.gpus else dumped_s,
        resume_s=rates.seconds(Lane.CRIU_BACK, size_bytes) + rates.seconds(Lane.DRIVER_BACK, on_device),
        durable_s=dumped_s,
        ram_bytes=on_device,
        disk_bytes=size_bytes,
        way=f"an image of {gigabytes(size_bytes)} is written at {said}",
    )


def _kill(facts: Facts, wish: Wish) -> Estimate:
    lost_s = facts.kill_loses_s
    lost = "everything" if lost_s is None else f"up to {seconds(lost_s)} of work"
    return Estimate(
        tier=Tier.KILL,
        free_s=wish.deadline_s + EXIT_S,
        resume_s=facts.restart_s + _load_s(facts),
        durable_s=None,
        ram_bytes=0,
        disk_bytes=0,
        lost_s=lost_s,
        way=f"it is killed after {seconds(wish.deadline_s)}, and {lost} is lost",
    )
