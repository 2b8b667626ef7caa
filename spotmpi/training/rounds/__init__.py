"""Rounds: their kinds, and the memory that they are made of."""
