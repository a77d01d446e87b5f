"""What is done on each node: slot locks, the proof of who sits on a GPU, and the node agent that reports it.

Only ``node_agent`` and ``ray_workers`` know Ray; locks and process care work in any process, on a bare GPU machine too.
"""
