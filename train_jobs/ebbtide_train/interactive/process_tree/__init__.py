"""The processes of a session: the tree, its leader, and the watchdog that ends it when the supervisor is gone."""
