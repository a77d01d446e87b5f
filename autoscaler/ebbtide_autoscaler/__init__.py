"""Who gets which GPU. What decides is pure; a shell around it looks, journals and acts. Each module stands here once.

How many replicas: serving, asked, slowness, strain, scheduled, forecast/.
On which slots: raising, retry, warm, free, placement, lack, shortfall, replacement, outdated.
Who steps aside: training, leaving, host_memory, preemptions, asides, away, holds, yielding.
Who gets the rest: allot, table, turn, waiting_line, waits, kept_for_parked, owed, starving, teams.
One decision: policy, signals, draft, quiet, foresee.
One tick: seen, observe, advance*, step, instruct, agree, would.
What the file and keys say: settings, changes, key_book.

The shell: arbiter, loop, acting, executor, surroundings, agents, reports, wishes, *_desk.
Its fences and what it keeps in order: fences, fence_book, gateway_keeper, occupancy_sweeper.
Its ledger: ledger_*, journal, recovered, remarks.
Its time and its own state: steady_clock, heartbeat, brake, collecting.
What it shows: view, status, notices, metrics*.
Commands: commands, command_*, bring_up, take_down, claim, launch, standing, lost_cluster, local_ray, nodes, progress,
    log_reader, log_targets.
Without an arbiter: serve_native.
How large the cluster is: cluster/. What would have been: simulate/.
"""
