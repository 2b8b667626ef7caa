"""Whole jobs in memory: the shipped session on a simulated fabric, with any faults, checked."""
