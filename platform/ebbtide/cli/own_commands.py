"""The commands of the platform itself."""

from ebbtide.cli.listed_command import ListedCommand, Section

_IN = "ebbtide.cli.commands"

COMMANDS = (
    ListedCommand(
        "validate", f"{_IN}.validate:validate", Section.POOL, "Check FILE and everything it names; change nothing."
    ),
    ListedCommand(
        "schema", f"{_IN}.schema:schema", Section.POOL, "Print the JSON schema of a pool file (always JSON)."
    ),
    ListedCommand("completion", f"{_IN}.completion:completion", Section.POOL, "Print the completion script of SHELL."),
    ListedCommand(
        "checkpoints", f"{_IN}.checkpoints:checkpoints", Section.JOBS, "The committed states of training jobs."
    ),
    ListedCommand(
        "why",
        f"{_IN}.event_history:why",
        Section.LOOK,
        "Explain the state of SUBJECT (a slot, job, endpoint or seat): what was decided about it, and why.",
    ),
    ListedCommand(
        "events",
        f"{_IN}.event_history:events",
        Section.LOOK,
        "Show what happened in the pool, or to SUBJECT: a job, endpoint, seat, slot or node.",
    ),
    ListedCommand(
        "doctor",
        f"{_IN}.doctor:doctor",
        Section.LOOK,
        "Say what this node can do for loading and storing, what is in the way, and what to do about it.",
    ),
    ListedCommand(
        "models",
        f"{_IN}.models:models",
        Section.MODELS,
        "The models in the pool's store: weights, configuration, tokenizer.",
    ),
)
