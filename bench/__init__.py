"""Measurements, one module for each question, each with its baseline in the same run."""
