"""How fast and how boldly the policy moves slots; one value for the whole pool each."""

from pydantic import Field

from ebbtide.config.sections.scalars import Seconds, SecondsOrZero
from ebbtide.config.sections.section import Section


class PolicySection(Section):
    """Times of the policy, in seconds."""

    tick_s: Seconds = Field(
        0.1, description="Seconds between two decisions. Default 0.1: small beside any start of a replica."
    )
    restart_cost_s: SecondsOrZero = Field(
        20,
        description="Seconds that a stop and restart of a job costs, assumed, besides reading its checkpoint, which is "
        "reckoned; a park that lasts longer is turned into a restart with fewer workers. Default 20: start of a small "
        "gang.",
    )
    park_first: bool = Field(
        False,
        description="Whether a job is always parked first, and restarted only when that has lasted as long as a "
        "restart costs. Default false: it is restarted at once while preemptions in this pool usually last that long.",
    )
    grow_after_s: SecondsOrZero = Field(
        10,
        description="Seconds that slots must stay free before a job restarts to grow into them. "
        "Default 10: half of an assumed restart.",
    )
    up_after_s: SecondsOrZero = Field(
        1.0,
        description="Seconds that the time to first token, or between tokens, must be over its SLO, or a count of "
        "requests be more than the replicas are for, before more are started. Not for the first one, what is "
        "scheduled, or what arrivals averaged over 15 s tell. Default 1: one slow request is no trend.",
    )
    starve_after_s: SecondsOrZero = Field(
        14_400,
        description="Seconds that a job may wait while smaller ones that came after it pass it by; then what becomes "
        "free is kept for it, and those step aside. Default 14400: four hours, as a large job runs for days.",
    )
    forecast_share: float = Field(
        0.98,
        ge=0,
        lt=1,
        description="Share of the cases in which the replicas kept shall be enough for how demand grows until more "
        "of them answer, as it did of late. Default 0.98. 0: nothing is expected, only what is there counts.",
    )
    placement_timeout_s: Seconds = Field(
        30,
        description="Seconds that Ray may take to place a replica on its slots before the placement is given up. "
        "Default 30: ten times the 2 to 3 s that it takes.",
    )
    start_timeout_s: Seconds = Field(
        300,
        description="Seconds from placed to ready before a replica's start is given up. "
        "Default 300: a large model read from a slow disk.",
    )
    gang_timeout_s: Seconds = Field(
        120,
        description="Seconds from granted to training before the start or resume of a gang counts as a crash. "
        "Default 120: Ray Train gives its workers one minute, and a large checkpoint takes another.",
    )
    silence_s: Seconds = Field(
        10,
        description="Seconds without a report after which a job or replica counts as lost. "
        "Default 10: many reports, yet a stalled process is not taken for a dead one.",
    )
