"""Gradients of one worker as they come: array by array, and how long they are."""
