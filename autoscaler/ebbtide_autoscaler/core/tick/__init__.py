"""One tick as a function, and the instructions that follow from a state. Pure."""
