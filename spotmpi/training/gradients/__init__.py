"""Gradients of one worker: given array by array, and their lengths."""
