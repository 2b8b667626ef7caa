"""Rounds that survive revocations, of any arrays: their driver, their memory and their kinds."""
