"""Parts of the simulated fabric."""
