"""What the replica may ask of each rank's process, by the engine's collective calls.

A class to mix into the engine's worker (vLLM's ``worker_extension_cls``, or a base of our own workers). Answers are
plain data; no call takes longer than a look at a variable, since the engine stands still meanwhile.
"""

from ebbtide_serve.loading.flat.capture_state import HELD
from ebbtide_serve.loading.start_record import RECORD


class LoadCalls:
    """Names begin with ``ebbtide_``, so that none meets a method of the engine's."""

    def ebbtide_start_record(self) -> dict[str, object]:
        """See `StartRecord.to_dict`."""
        return RECORD.to_dict()

    def ebbtide_flat_state(self) -> dict[str, object]:
        """See `CaptureState.state`."""
        return HELD.state()

    def ebbtide_flat_stage(self, attempt: str) -> None:
        """Begin to write this rank's file."""
        HELD.begin(attempt)

    def ebbtide_flat_drop(self, why: str) -> None:
        """Give the memory back."""
        HELD.drop(why)
