"""What a user runs or submits: training scripts, and launch scripts for plain ``mpirun``."""
