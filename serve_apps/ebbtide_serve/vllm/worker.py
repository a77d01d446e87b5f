"""vLLM workers that take their slot's lock before they touch the device: no lock, no allocation.

They also answer what the replica asks about weights (``loading.worker_calls``).

vLLM makes the class named by its ``worker_cls`` argument in the process that will own the memory, and calls
``init_device`` first. So that is where the lock is taken, and it is held until the process is gone, for only the
process's end proves that the memory is free; or until the driver has taken the process off the GPU (``sleep_mode``).

Not guaranteed: protection from a process that has nothing to do with ebbtide; the arbiter sees such a stranger.
"""

import os
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.worker.gpu_worker import Worker

from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.system.process import started_ticks
from ebbtide_serve.errors import NotGranted
from ebbtide_serve.loading.start_record import RECORD
from ebbtide_serve.process.lease_env import LEASE_VARIABLE, lease_from_environment
from ebbtide_serve.process.parent_watch import arm_from_environment
from ebbtide_serve.vllm.worker_calls import LoadCalls

# The last occupant was proven gone before we were granted the slot; what can remain is a probe's moment, or the
# predecessor at the same seat in its last breath (vLLM kills its engine after some 5 s: docs/origins.md).
LOCK_TIMEOUT_S = 10.0


def lock_slot(local_rank: int) -> SlotLock:
    """Take the lock of this local rank's slot, from the lease in the environment; held as long as the process lives.

    Raises:
        NotGranted: the environment holds no lease, or none for this rank.
        SlotBusy: somebody else holds the slot.
    """
    arm_from_environment(os.environ)
    granted = lease_from_environment(os.environ)
    if granted is None or local_rank >= len(granted.lease.slots):
        raise NotGranted(f"no lease for local rank {local_rank} in this process's environment: {granted}")
    lock = SlotLock(
        granted.lock_dir,
        granted.lease.slots[local_rank],
        workload=granted.lease.workload,
        epoch=granted.lease.epoch,
        rank=local_rank,
        ledger=granted.ledger,
        log_dir=granted.log_dir,
    )
    lock.acquire(LOCK_TIMEOUT_S)
    return lock


class SlotCalls:
    """What the replica may ask of a rank on its way off the GPU and back. None of it touches CUDA."""

    slot_lock: SlotLock
    local_rank: int
    model_runner: Any

    def ebbtide_rank(self) -> dict[str, int]:
        """Its process, and the bytes of its weights."""
        pid = os.getpid()
        weights = {weight.untyped_storage().data_ptr(): weight.untyped_storage() for weight in self._weights()}
        return {
            "pid": pid,
            "started": started_ticks(pid) or 0,
            "weight_bytes": sum(weight.nbytes() for weight in weights.values()),
        }

    def ebbtide_leave_slot(self) -> None:
        """Nothing of it is on the GPU any more: others may have the slot."""
        self.slot_lock.release()

    def ebbtide_take_slot(self, lease: str) -> None:
        """Before anything of it comes back to the GPU, under the lease that it has now."""
        os.environ[LEASE_VARIABLE] = lease
        self.slot_lock = lock_slot(self.local_rank)

    def _weights(self) -> list[Any]:
        model = self.model_runner.model
        return [*model.parameters(), *model.buffers()]


class PoolGPUWorker(LoadCalls, SlotCalls, Worker):  # type: ignore[misc] # vLLM is not typed for us
    """vLLM's GPU worker under the slot lock; it notes how far its start is."""

    def init_device(self) -> Any:
        """Lock the slot, then let vLLM take the device."""
        self.slot_lock = lock_slot(self.local_rank)
        RECORD.rank = self.rank
        RECORD.reached("device")
        return super().init_device()

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """By whatever loader: the weights are done when the model is made, filled and repacked."""
        done = super().load_model(*args, **kwargs)
        RECORD.reached("weights_done")
        return done

    def compile_or_warm_up_model(self) -> Any:
        """The last step before it answers; on a CPU it is compiled already."""
        done = super().compile_or_warm_up_model()
        RECORD.reached("compile_done")
        return done


if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker

    class PoolCPUWorker(LoadCalls, CPUWorker):  # type: ignore[misc] # vLLM is not typed for us
        """vLLM's CPU worker under the slot lock of its logical GPU; it notes how far its start is."""

        def init_device(self) -> Any:
            """Lock the slot, then let vLLM allocate."""
            self.slot_lock = lock_slot(self.local_rank)
            RECORD.rank = self.rank
            RECORD.reached("device")
            return super().init_device()

        def load_model(self, *args: Any, **kwargs: Any) -> Any:
            """By whatever loader: the weights are done when the model is made, filled and repacked."""
            done = super().load_model(*args, **kwargs)
            RECORD.reached("weights_done")
            return done

        def compile_or_warm_up_model(self) -> Any:
            """The last step before it answers; on a CPU it is compiled already."""
            done = super().compile_or_warm_up_model()
            RECORD.reached("compile_done")
            return done
