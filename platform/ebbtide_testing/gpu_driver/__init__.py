"""A GPU driver without a GPU: the same states and refusals on real processes, and every failure on demand."""
