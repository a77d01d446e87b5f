"""What was seen, which facts follow from it, and what workloads are told. Pure."""
