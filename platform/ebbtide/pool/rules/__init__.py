"""What holds over a state: the promises, when a node is drained, which ended records are dropped.

Reads states, changes none.
"""
