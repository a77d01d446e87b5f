"""The policy under a virtual clock: recorded traffic and jobs against a model of the pool."""
