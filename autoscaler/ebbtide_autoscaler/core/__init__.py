"""What decides, as functions of what was seen: no I/O, no clock, no Ray."""
