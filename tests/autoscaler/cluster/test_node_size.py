"""A machine is counted as what it can hold, by its own numbers; the file's numbers win; what never fits is named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide.config.pool_file import PoolFile
from ebbtide_autoscaler.cluster.node_size import (
    GIB,
    POOL_BYTES,
    SLOT_BYTES,
    SLOTS_MAX,
    Machine,
    logical_slots_line,
    machine_faults,
    node_size,
)

LAPTOP = Machine(gpus=0, cores=2, memory_bytes=20 * GIB)


def pool_file(pool: str = "slots: all", *, endpoint: str = "", job: str = "") -> PoolFile:
    text = f"pool: {{name: mine, shared_dir: shared, {pool}}}\n"
    text += f"endpoints:\n  - {{name: chat, model: m:1{endpoint}}}\n"
    batch = "global_batch: 8, micro_batch: 1"
    text += f"jobs:\n  - {{name: lm, entrypoint: 'a:b', workers: {{min: 1, max: 8}}, {batch}{job}}}\n"
    return load_text(text, path=Path("pool.yaml")).config


@given(cores=st.integers(0, 512), memory=st.none() | st.integers(0, 4096 * GIB))
def test_logical_slots_fit_into_memory_and_their_occupants_into_cpus(cores: int, memory: int | None) -> None:
    size = node_size(pool_file(), Machine(0, cores, memory))
    assert size.share is not None
    assert 1 <= size.slots <= SLOTS_MAX
    assert size.slots == 1 or memory is None or size.slots * SLOT_BYTES + POOL_BYTES <= memory
    assert memory is None or size.slots * size.share.memory_bytes <= max(0, memory - POOL_BYTES)
    assert size.share.threads >= 1 and size.share.threads * size.slots <= max(cores, size.slots)
    assert size.cpus > size.slots and size.cpus >= cores


@given(slots=st.integers(1, 64), memory=st.none() | st.integers(0, 64 * GIB))
def test_a_number_in_the_file_wins(slots: int, memory: int | None) -> None:
    size = node_size(pool_file(f"slots: {slots}"), Machine(0, 4, memory))
    assert size.slots == slots
    assert node_size(pool_file("slots: all, num_cpus: 7"), LAPTOP).cpus == 7


@pytest.mark.parametrize(
    ("machine", "slots"),
    [
        (LAPTOP, 2),
        (Machine(0, 8, 10 * GIB), 2),
        (Machine(0, 8, 64 * GIB), 8),
        (Machine(0, 1, 64 * GIB), 2),
        (Machine(0, 8, 4 * GIB), 1),
        (Machine(0, 8, 0), 1),
        (Machine(0, 128, None), 8),
        (Machine(4, 2, GIB), 4),
    ],
)
def test_what_machines_count_as(machine: Machine, slots: int) -> None:
    assert node_size(pool_file(), machine).slots == slots


def test_cpus_suffice_for_every_slot_of_the_hungriest_workload() -> None:
    assert node_size(pool_file(job=", cpus_per_worker: 3"), LAPTOP).cpus == 2 * 3 + 4
    assert node_size(pool_file(endpoint=", cpus_per_replica: 6, gpus_per_replica: 2"), LAPTOP).cpus == 2 * 3 + 4
    assert node_size(pool_file(job=", cpus_per_worker: 0.5"), LAPTOP).cpus == 2 + 4


def test_gpus_have_no_share_of_memory_and_no_line() -> None:
    config, machine = pool_file(), Machine(gpus=8, cores=96, memory_bytes=GIB)
    size = node_size(config, machine)
    assert size.share is None and logical_slots_line(config, size) == "" and size.cpus == 96


def test_the_line_says_where_the_number_comes_from() -> None:
    counted, given_ = pool_file(), pool_file("slots: 3")
    assert logical_slots_line(counted, node_size(counted, LAPTOP)) == (
        "no GPU here: 2 logical slots (2 cores, 20.0 GiB of memory free; pool.slots sets another number)"
    )
    assert logical_slots_line(given_, node_size(given_, LAPTOP)) == "no GPU here: 3 logical slots (pool.slots)"


@pytest.mark.parametrize(
    ("config", "machine", "words"),
    [
        (pool_file(endpoint=", gpus_per_replica: 4"), LAPTOP, "counts as 2 logical slots (2 cores"),
        (pool_file(endpoint=", gpus_per_replica: 4"), Machine(2, 8, None), "this machine has 2 GPUs"),
        (pool_file(endpoint=", replicas: {min: 3, max: 4}"), LAPTOP, "endpoints[0].replicas.min"),
        (pool_file("slots: all, reserve: 2"), LAPTOP, "pool.reserve"),
        (pool_file("slots: 4"), Machine(2, 8, None), "pool.slots is 4, and this machine has 2 GPUs"),
        (pool_file("slots: 1"), Machine(0, 8, None), ""),
        (pool_file(endpoint=", replicas: {min: 0, max: 64}"), LAPTOP, ""),  # a maximum is a wish
        (pool_file(), LAPTOP, ""),
    ],
)
def test_what_never_fits_is_refused_and_a_maximum_is_a_wish(config: PoolFile, machine: Machine, words: str) -> None:
    faults = machine_faults(config, machine, node_size(config, machine))
    assert (words in faults[0]) if words else faults == []


def test_a_pool_that_names_no_workload_yet_has_a_cpu_for_each_slot() -> None:
    config = load_text("pool: {name: mine, shared_dir: shared}\n", path=Path("pool.yaml")).config
    assert node_size(config, LAPTOP).cpus == 2 + 4
