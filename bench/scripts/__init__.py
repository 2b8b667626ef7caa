"""What benches run as jobs: scripts for `spotmpi run` and for mpirun."""
