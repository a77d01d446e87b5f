"""The commands of serving: API keys of the gateway."""
