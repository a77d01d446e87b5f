"""Jobs: where they stand, what was taken from them, and what it cost. Only jobs that live have series of their own."""

from ebbtide.telemetry.metric_family import Family

JOBS = Family("ebbtide_jobs", "gauge", "Jobs by state; those that ended are not counted.", ("state",))
HELD = Family("ebbtide_jobs_held", "gauge", "Living jobs that a person holds aside, or that are on their way there.")
STEP = Family("ebbtide_job_step", "gauge", "Steps that a living job has finished, as last reported.", ("job",))
DURABLE_STEP = Family("ebbtide_job_durable_step", "gauge", "Finished steps that no crash can take back.", ("job",))
WORKERS = Family("ebbtide_job_workers", "gauge", "Slots that a living job holds.", ("job",))
STEP_TIME = Family("ebbtide_job_step_seconds", "gauge", "Duration of the slowest rank's last step.", ("job",))
TEAM_SLOTS = Family("ebbtide_team_slots", "gauge", "Slots that a team's living jobs hold.", ("team",))
TEAM_WAITING = Family(
    "ebbtide_team_waiting_slots",
    "gauge",
    "Slots that a team's jobs wait for, as few as each can do with; of those that a person holds none.",
    ("team",),
)
DURABLE_STEPS = Family(
    "ebbtide_durable_steps_total", "counter", "Steps of all jobs that became durable, each counted once."
)
PREEMPTIONS = Family(
    "ebbtide_preemptions_total",
    "counter",
    "Jobs asked to step aside: park = in place, restart = by checkpoint and restart, "
    "park_to_restart = a park that lasted too long (counted under park before), held = a person asked for it.",
    ("kind",),
)
GROWTHS = Family(
    "ebbtide_growths_total", "counter", "Jobs restarted to come back with more workers: for their own good."
)
CRASHES = Family(
    "ebbtide_crashes_total",
    "counter",
    "Gangs that were lost, by what the job was doing: starting, running, parking (out of grace, too), and so on.",
    ("during",),
)
LOST_STEPS = Family(
    "ebbtide_lost_steps_total",
    "counter",
    "Finished steps that were not durable when a gang was lost, as far as had been reported then.",
    ("during",),
)
CRASH_LOST_STEPS = Family(
    "ebbtide_crash_lost_steps_total",
    "counter",
    "Finished steps that were run again after a crash, as the gang that repeats them counted.",
)
ENDED = Family("ebbtide_jobs_ended_total", "counter", "Jobs that are over, by outcome.", ("outcome",))

FAMILIES = (
    JOBS,
    HELD,
    STEP,
    DURABLE_STEP,
    WORKERS,
    STEP_TIME,
    TEAM_SLOTS,
    TEAM_WAITING,
    DURABLE_STEPS,
    PREEMPTIONS,
    GROWTHS,
    CRASHES,
    LOST_STEPS,
    CRASH_LOST_STEPS,
    ENDED,
)
