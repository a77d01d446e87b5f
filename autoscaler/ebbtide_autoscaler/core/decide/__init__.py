"""One decision: `decide`, its cache, and a look ahead. Pure."""
