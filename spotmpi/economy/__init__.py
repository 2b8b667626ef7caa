"""What to rent: predicted time, loss and cost of data-parallel training on spot nodes.

Pure Python and NumPy: nothing here imports MPI, and only `trials` starts anything, short runs of a
script with ``spotmpi run``. From below to above:

- `quantities`, `reading`: numbers with units, and files whose mistakes have a line.
- `models`: what a training does on a cluster. Three of them: `spotdnn` (the paper's formulas),
  `server_queue` (a queue at a parameter server) and `ring` (this project's own runtime), which
  `calibration` fits to runs: those of traces (`step_times`) or short ones (`trials`).
- `market`: what nodes cost, how many there are, and how long one has them.
- `plan`: `provision` searches clusters, `events` lives through revocations, `outcomes` sums up many
  runs, `selection` chooses by them; the commands, and what several of them share.
"""
