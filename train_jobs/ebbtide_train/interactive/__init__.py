"""Interactive sessions: any process tree as a workload of the pool, parked and resumed bit for bit.

To the pool a session is a job of one worker. Its rank does not train: it *keeps* a process tree that `ebbtide run`
was given. Three processes share that work, so that each may be killed at any moment:

- the **supervisor** (in the Ray worker) holds the slot lock, obeys the pool, and has images made by the node's helper;
- the **watchdog** (outside the tree, no child of the worker) shares the slot lock and outlives the supervisor just long
  enough to end the tree: the lock is free only when no process of the tree is left;
- the **leader** (the tree's first process) starts the command, adopts its orphans, and writes down how it ended.

In the code the supervisor is ``supervision.session_supervisor``, the watchdog ``process_tree.watchdog``.

Nothing here knows Ray or torch; ``worker.interactive_rank`` and ``run_interactive`` do.
"""
