"""What every byte mover is: its interface, ranges and chunks of a file, and the report of a transfer; no I/O."""
