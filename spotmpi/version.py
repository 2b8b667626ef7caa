"""Which spotmpi this is. What is installed gets its version from here (pyproject.toml)."""

VERSION = "0.1.0.dev0"
