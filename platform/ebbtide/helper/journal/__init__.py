"""What was done and is under way: the journal's lines, the state they add up to, one operation at a time."""
