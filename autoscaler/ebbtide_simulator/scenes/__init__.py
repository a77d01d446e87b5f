"""From files, traces or a recording to the scene that every contender plays."""
