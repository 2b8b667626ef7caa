"""What PyTorch scripts take with spotmpi, and how well they train."""
