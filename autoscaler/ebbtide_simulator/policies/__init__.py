"""Who is compared: our policy, what teams do instead, and perfect foresight."""
