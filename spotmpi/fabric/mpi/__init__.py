"""The fabric over MPI with ULFM (`fabric` has it whole). Importing this starts nothing."""
