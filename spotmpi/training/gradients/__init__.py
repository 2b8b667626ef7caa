"""Gradients of one worker: as the script gives them, and their lengths."""
