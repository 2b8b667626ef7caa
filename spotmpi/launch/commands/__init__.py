"""The commands that start, show, change and end jobs."""
