"""A pool comes up, goes down, or comes back after its cluster was lost."""
