"""What ``gateway_overhead`` needs: the systems that it compares, the load generator, and the CPU time of processes."""
