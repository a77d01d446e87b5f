"""Where a model comes from (a directory, a URL), and which files there make it up; writes nothing."""
