"""How many nodes the pool has: decided here, carried out by Ray's cluster autoscaler and whoever lends the machines."""
