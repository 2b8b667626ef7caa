"""Arithmetic on flat arrays: one module for each backend, all with the same functions.

`reference` is the definition, in NumPy and without haste; `cpu` does the same at the speed of
memory. Kernels know arrays and nothing of workers. Every kernel is local.
"""
