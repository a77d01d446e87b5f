"""The checkpoints of one run as a process uses them: saved in two phases, opened, verified; and where a run goes on."""
