"""The training loop of one rank: start, steps and samples, and what a gang does between two steps."""
