"""When a session is idle and how its owner is warned: rules, a watch, CPU and GPU use, webhook and mail."""
