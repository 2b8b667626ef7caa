"""Rounds of steps: who takes which steps on the way to one, and what becomes known by it."""
