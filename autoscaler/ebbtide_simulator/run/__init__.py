"""One contender on one scene, and the figures of what came about."""
