"""Which jobs are preempted, and which get slots. Pure."""
