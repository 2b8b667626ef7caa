"""How things are started: the MPI to use, mpirun, agents by ssh, by Slurm or as a child."""
