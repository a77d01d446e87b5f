"""Which replicas start, wake, park, are replaced or make place. Pure."""
