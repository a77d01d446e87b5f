"""A pool under a virtual clock: what replicas, jobs, nodes and storage do, and what slots are used for."""
