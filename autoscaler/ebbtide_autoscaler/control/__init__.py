"""The control loop: its inbox, what it sees of the cluster, fences, and carrying instructions out."""
