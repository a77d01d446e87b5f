"""The job's published checkpoints: saves by one rank or all, how far the job is durable, the author's own saves."""
