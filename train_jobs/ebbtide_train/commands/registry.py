"""The commands that this package adds to ``ebbtide``; their modules are imported when they are asked for."""

from ebbtide.cli.listed_command import ListedCommand, Section

_IN = "ebbtide_train.commands"

COMMANDS = (
    ListedCommand(
        "submit",
        f"{_IN}.submit:submit_command",
        Section.JOBS,
        "Submit one job of FILE to the running pool that the file names.",
    ),
    ListedCommand(
        "probe",
        f"{_IN}.probe:probe",
        Section.JOBS,
        "Say which ways off its slots hold for WORKLOAD on each of its nodes, what they cost, and why others do not "
        "hold.",
    ),
    ListedCommand(
        "run",
        f"{_IN}.interactive_run:run_command",
        Section.SESSIONS,
        "Run COMMAND as an interactive session: a notebook server, a script, any process tree, on one slot of the "
        "pool.",
    ),
    ListedCommand(
        "sessions",
        f"{_IN}.interactive_sessions:sessions_command",
        Section.SESSIONS,
        "Show the pool's interactive sessions: where they stand, whose they are, where they print to.",
    ),
)
