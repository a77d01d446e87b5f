"""How the processes of one node share the bandwidth of one filesystem, by class of traffic.

Knows nothing of what is moved.
"""
