"""What the arbiter's process itself needs: its clock, its thread, its garbage collection."""
