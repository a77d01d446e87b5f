"""What is decided from and on: inputs, the plan being made, free slots, shares, protections. Pure."""
