"""Arithmetic on flat arrays, one module per backend, all with the same functions.

`reference` is the definition, in NumPy and without haste; `cpu` does the same at the speed of
memory. Kernels know arrays and nothing of workers, and every one is local.
"""
