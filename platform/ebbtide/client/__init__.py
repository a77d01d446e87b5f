"""How the other rooms reach the arbiter: the messages, and a handle that survives the arbiter's death."""
