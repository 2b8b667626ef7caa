"""Which cluster to rent: simulated trainings on it, the search, and what `spotmpi plan` says."""
