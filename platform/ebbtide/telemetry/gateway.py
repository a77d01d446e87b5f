"""What a gateway measures. ``model`` is an endpoint of the file, ``key`` the name of a key; all others are "-"."""

from ebbtide.telemetry.buckets import REQUEST_S, TPOT_S, TTFT_S
from ebbtide.telemetry.metric_family import Family

_MODEL = ("model",)

REQUESTS = Family(
    "ebbtide_gateway_requests_total",
    "counter",
    "Requests that ended, by API key, model and HTTP status; 499: the client hung up.",
    ("key", "model", "code"),
)
BROKEN_STREAMS = Family(
    "ebbtide_gateway_broken_streams_total",
    "counter",
    "Streams that had begun and ended with an error event instead of their end.",
    _MODEL,
)
RETRIES = Family(
    "ebbtide_gateway_retries_total",
    "counter",
    "Requests sent a second time, because their replica died before its first byte.",
    _MODEL,
)
HELD = Family("ebbtide_gateway_held_requests", "gauge", "Requests that wait for a seat, now.", _MODEL)
HELD_BYTES = Family("ebbtide_gateway_held_bytes", "gauge", "Bytes of the bodies of held requests.", _MODEL)
OLDEST_HELD = Family(
    "ebbtide_gateway_oldest_held_seconds", "gauge", "How long the first held request has waited; 0: none is.", _MODEL
)
INFLIGHT = Family("ebbtide_gateway_inflight_requests", "gauge", "Requests at a replica, now.", _MODEL)
SEATS = Family("ebbtide_gateway_routable_seats", "gauge", "Seats that the routing table offers.", _MODEL)
HOLD_TIME = Family(
    "ebbtide_gateway_lack_seconds",
    "histogram",
    "How long a request waited with no replica of its model ready; only requests that did.",
    _MODEL,
    REQUEST_S,
)
TTFT = Family(
    "ebbtide_gateway_time_to_first_token_seconds",
    "histogram",
    "Of streams: from arrival to the first byte of the answer, less the time in which no replica was ready.",
    _MODEL,
    TTFT_S,
)
TPOT = Family(
    "ebbtide_gateway_time_per_output_token_seconds",
    "histogram",
    "Mean time between the tokens of one stream, its first excepted.",
    _MODEL,
    TPOT_S,
)
DURATION = Family(
    "ebbtide_gateway_request_duration_seconds",
    "histogram",
    "From a request's arrival to its last byte, held or not.",
    _MODEL,
    REQUEST_S,
)
PROMPT_TOKENS = Family(
    "ebbtide_gateway_prompt_tokens_total",
    "counter",
    "Tokens of prompts: as the replica counted them (usage), or a quarter of the body's bytes where it did not say "
    "(estimate).",
    ("model", "source"),
)
GENERATED_TOKENS = Family(
    "ebbtide_gateway_generated_tokens_total",
    "counter",
    "Tokens of answers: as the replica counted them (usage), or the events of a stream where it did not say "
    "(estimate).",
    ("model", "source"),
)
ARBITER_ANSWERED = Family(
    "ebbtide_gateway_arbiter_answered_timestamp_seconds",
    "gauge",
    "When the arbiter answered a report last; 0: never. While it is away the last routing table is obeyed.",
)
STOPPING = Family("ebbtide_gateway_stopping", "gauge", "1 while the gateway ends and takes nothing new.")

FAMILIES = (
    REQUESTS,
    BROKEN_STREAMS,
    RETRIES,
    HELD,
    HELD_BYTES,
    OLDEST_HELD,
    INFLIGHT,
    SEATS,
    HOLD_TIME,
    TTFT,
    TPOT,
    DURATION,
    PROMPT_TOKENS,
    GENERATED_TOKENS,
    ARBITER_ANSWERED,
    STOPPING,
)
