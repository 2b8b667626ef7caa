"""Rounds: their kinds, the memory that they are made of, and what becomes known by them."""
