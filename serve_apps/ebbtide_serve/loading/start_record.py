"""What one rank's process tells about its start: when it came how far, which way the weights came, and at what speed.

Plain data, since it goes to the replica through the engine's own calls. Moments are CLOCK_MONOTONIC, which all
processes of one machine share.
"""

import time
from dataclasses import dataclass, field

from ebbtide.storage.transport.transfer_report import TransferReport

OWN = "vllm"  # the way of vLLM's own loader
LOGGER = "vllm.ebbtide"  # below vLLM's own logger, so that its lines are seen


@dataclass
class StartRecord:
    """One process's start; changed as it goes.

    Attributes:
        moments_s: by name: ``device``; ``weights``, when one of our formats begins to fill the parameters;
            ``weights_done``, when the engine's own load of the model has ended, whoever filled them: made, filled
            and repacked; ``compile_done``.
        asked: the load format that was asked for.
        used: the one that filled the parameters in the end; ``vllm`` is its own.
        reasons: why each way before it was not taken, or has no flat form to come.
        transfer: of that way; None where vLLM's own loader read.
    """

    moments_s: dict[str, float] = field(default_factory=dict)
    rank: int = 0
    asked: str = ""
    used: str = ""
    reasons: list[str] = field(default_factory=list)
    transfer: TransferReport | None = None
    seconds: float = 0.0

    def reached(self, name: str) -> None:
        """Remember when; the first time counts."""
        self.moments_s.setdefault(name, time.monotonic())

    def add(self, used: str, transfer: TransferReport | None, seconds: float) -> None:
        """A model was loaded; an engine may have more than one (a draft model)."""
        self.used = used if self.used in ("", used) else f"{self.used}, {used}"
        if transfer is not None:
            self.transfer = transfer if self.transfer is None else self.transfer + transfer
        self.seconds += seconds

    def in_words(self) -> str:
        """For the log."""
        moved = self.transfer
        if moved is None:
            return f"rank {self.rank}: loaded by {self.used} in {self.seconds:.2f} s"
        mode = moved.mode.value if moved.mode is not None else "nothing to read"
        why = f" ({moved.why_not_better})" if moved.why_not_better else ""
        return f"rank {self.rank}: loaded by {self.used} in {self.seconds:.2f} s, {moved.bytes} bytes, {mode}{why}"

    def to_dict(self) -> dict[str, object]:
        """What is sent."""
        moved = self.transfer.bytes_by_mode if self.transfer is not None else {}
        return {
            "rank": self.rank,
            "asked": self.asked,
            "used": self.used,
            "reasons": list(self.reasons),
            "bytes_by_mode": {mode.value: count for mode, count in moved.items()},
            "seconds": round(self.seconds, 3),
            "why_not_better": self.transfer.why_not_better if self.transfer is not None else "",
            "moments_s": dict(self.moments_s),
        }


RECORD = StartRecord()
"""Of this process."""
