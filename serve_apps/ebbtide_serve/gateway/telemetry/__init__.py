"""What the gateway counts: traffic for the arbiter, metrics for a scrape, sliding windows."""
