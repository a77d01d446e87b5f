"""YAML text to models, or every problem with its line and column; looks at nothing outside the file."""
