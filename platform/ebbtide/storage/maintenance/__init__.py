"""What keeps a store healthy: garbage collection, free space, scrub, repair; knows objects, not what is in them."""
