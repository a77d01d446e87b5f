"""The commands that this room adds to ``ebbtide``; their modules are imported when they are asked for."""

from ebbtide.cli.listed_command import ListedCommand, Section

_IN = "ebbtide_autoscaler.commands"

COMMANDS = (
    ListedCommand(
        "up", f"{_IN}.pool:up", Section.POOL, "Bring the pool of FILE up, or make a running one agree with it."
    ),
    ListedCommand(
        "down",
        f"{_IN}.pool:down",
        Section.POOL,
        "Take the pool down: jobs, gateway, replicas, fences, and the Ray cluster if `up` started it.",
    ),
    ListedCommand(
        "plan",
        f"{_IN}.plan:plan",
        Section.POOL,
        "Show what `ebbtide up FILE` would change and restart, or what demand will bring about; change nothing.",
    ),
    ListedCommand(
        "freeze",
        f"{_IN}.operate:freeze",
        Section.POOL,
        "Stop all decisions: nothing is granted, parked, started or drained until `ebbtide unfreeze`.",
    ),
    ListedCommand("unfreeze", f"{_IN}.operate:unfreeze", Section.POOL, "Decide again after `ebbtide freeze`."),
    ListedCommand(
        "drain",
        f"{_IN}.operate:drain",
        Section.POOL,
        "Empty NODE (start of its id, or its machine's name) and grant nothing there until `ebbtide undrain`.",
    ),
    ListedCommand("undrain", f"{_IN}.operate:undrain", Section.POOL, "Use NODE again after `ebbtide drain`."),
    ListedCommand(
        "env",
        f"{_IN}.pool:env",
        Section.POOL,
        'Print the variables by which plain Ray tools find the pool: eval "$(ebbtide env)".',
    ),
    ListedCommand(
        "park",
        f"{_IN}.hold:park",
        Section.JOBS,
        "Put the job NAME aside at its next safe point, and keep it there until `ebbtide resume NAME`.",
    ),
    ListedCommand("resume", f"{_IN}.hold:resume", Section.JOBS, "Let the job NAME go on after `ebbtide park NAME`."),
    ListedCommand(
        "cancel",
        f"{_IN}.operate:cancel",
        Section.JOBS,
        "End JOB for good at its next safe point; its last checkpoint stays.",
    ),
    ListedCommand(
        "status",
        f"{_IN}.status:status",
        Section.LOOK,
        "Show who holds each slot, how each endpoint and job does, and what they wait for.",
    ),
    ListedCommand(
        "logs",
        f"{_IN}.logs:logs",
        Section.LOOK,
        "Print the logs of NAME: a job (its driver and ranks), an endpoint, a seat, a node, `arbiter` or `gateway`.",
    ),
)
