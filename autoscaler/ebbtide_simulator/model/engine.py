"""How fast a replica serves, and how long things take, in the simulated pool. Origins: docs/origins.md.

Work is counted in replica-seconds: a request of ``i`` prompt and ``o`` output tokens is ``i / prefill + o / decode`` of
them. A replica is full at the share ``full`` of its speed: beyond it tokens come later than promised, so what is beyond
waits at the gateway instead.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One replica of a model.

    Attributes:
        prefill_tok_s, decode_tok_s: at full batches.
        park_bytes: host memory that it needs while it is parked.
        slots: GPUs of a replica, all on one node.
        full: share of its speed at which it still keeps its promises.
        tpot_s: between two tokens of a request, at that share.
        step_s: the shortest step of a batch; what is below is of the request-level simulation only.
        chunk_tokens: of prompts in a step, at most.
        kv_tokens: of all prompts and answers at a replica.
    """

    prefill_tok_s: float
    decode_tok_s: float
    park_bytes: int = 16 << 30  # host memory of one that is parked: its weights
    slots: int = 1
    full: float = 0.65  # assumed, until it is measured on the GPU at hand
    tpot_s: float = 0.03  # twice the 17 ms of a step of 128 tokens at 1.5k context: prefills come between
    step_s: float = 0.0064  # of 128 tokens, Vidur's profile of Llama-2-7B on an H100: reading the weights
    chunk_tokens: float = 8192.0  # vLLM's max_num_batched_tokens for a server on such a GPU
    kv_tokens: float = 400_000.0  # (0.9 * 80 - 16 - 4) GB at 131 KB a token

    def work_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Replica-seconds of one request."""
        return prompt_tokens / self.prefill_tok_s + output_tokens / self.decode_tok_s

    def stay_s(self, output_tokens: float) -> float:
        """How long a request is at a replica that is full."""
        return output_tokens * self.tpot_s

    def running(self, prompt_tokens: float, output_tokens: float) -> float:
        """Requests at a replica that is full (Little's law)."""
        return self.full / self.work_s(prompt_tokens, output_tokens) * self.stay_s(output_tokens)


ENGINES = {
    # Llama-3.1-8B, BF16, one H100: 20-40k and 5-9k tok/s; Vidur's profile of Llama-2-7B and KV reads agree.
    "llama-8b-h100": Engine(prefill_tok_s=25_000, decode_tok_s=7_000),
    # 70B on four H100, BF16: assumed.
    "llama-70b-4xh100": Engine(
        prefill_tok_s=12_000, decode_tok_s=3_000, slots=4, park_bytes=141 << 30, step_s=0.015, kv_tokens=428_000.0
    ),
    # Its step: 141 GB of weights at four times 2.35 TB/s. Its tokens: (0.9 * 320 - 141 - 7) GB at 328 KB each.
}


@dataclass(frozen=True, slots=True)
class Saves:
    """Checkpoints of a job that trains: one after each ``every_s`` of training, for which it pauses so long.

    What pauses is the copy to host memory; from there it is written while training goes on.
    """

    every_s: float = 1800.0  # 15 and 30 minutes are usual
    pause_s: float = 0.7  # 16 GB a GPU at PCIe's 25 GB/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long moves take, in seconds.

    Attributes:
        place_s: until Ray has placed a replica.
        start_s: median of a replica's start from then on, on a node that has had one; a draw is lognormal around it.
        cold_s: the same for the first one of a node, or of an endpoint.
        start_spread: standard deviation of its logarithm.
        wake_s: of a warm replica.
        drain_s: until a replica's last request is answered, where nobody knows its requests.
        gang_start_s: of a job's workers, until they train.
        safe_point_s: until a job comes to one; it trains meanwhile.
        park_s: from the safe point until its slots are free.
        resume_s: from its slots until it trains again.
        save_s: the checkpoint of a job that is stopped, until its slots are free.
        step_s: of training.
        kills: jobs do not come to a safe point: they are killed, and go on from their last checkpoint.
        kill_s: until the slots of one that was killed are free.
        saves: checkpoints while it trains: it falls back to the last one where it crashes.
    """

    place_s: float = 1.0  # 0.2 to 1.4 s
    start_s: float = 45.0  # local weights and compile cache: Alibaba's base-model loads have p50 23, p90 42 s; + engine
    start_spread: float = 0.4  # so that p90 is 1.7 times the median; there it is 1.85 times
    cold_s: float = 150.0  # container, weights from afar, compilation and graphs: 120 to 300 s
    wake_s: float = 3.0  # vLLM's sleep levels: 0.1 to 6 s
    drain_s: float = 10.0
    gang_start_s: float = 60.0  # processes, imports, checkpoint read by each rank
    safe_point_s: float = 1.0  # half a step
    park_s: float = 1.5  # 16 GB a GPU at PCIe's 25 GB/s, then the CUDA context
    resume_s: float = 2.0
    save_s: float = 6.3  # a 7B's state staged in host memory (pytorch.org, asynchronous checkpointing)
    step_s: float = 2.0
    kills: bool = False
    kill_s: float = 3.0  # 2 to 5 s, assumed
    saves: Saves = Saves()


USUAL = Times(
    start_s=150.0,  # container, weights from afar, compilation: 120 to 300 s
    gang_start_s=150.0,  # 60 to 180 s, and the load of the checkpoint
    kills=True,
)
"""What a pool has that starts replicas cold and kills jobs."""
