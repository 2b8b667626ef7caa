"""What to rent: predicted time, loss and cost of data-parallel training on spot nodes.

Pure Python and NumPy: nothing here imports MPI, and only `trials` starts anything, short runs of a
script with ``spotmpi run``. From below to above:

- `quantities`, `reading`: numbers with units, and files whose mistakes have a line.
- `models`: what a training does on a cluster. Three of them: `spotdnn` (the paper's formulas),
  `station` (a queue at a parameter server) and `ring` (this project's own runtime), which
  `calibration` fits to runs: those of traces (`steptimes`) or short ones (`trials`).
- `prices`, `lifetimes`, `availability`: what nodes cost, and how long one has them.
- `provision` chooses a cluster, `events` lives through revocations, `outcomes` sums up many runs.
- `comparison`: a paper's figures beside the models' (`icac19`, `icac19_rows`, `spotdnn_rows`).
- The commands: `planning` (with `question` and `answer`), `cluster`, `reproduce`, `profiling`;
  `rental` and `screen` are what several of them share, `drawing` the plots.

Units, everywhere: seconds, dollars, dollars per hour, MB (10^6 bytes) and MB/s; a name says which
(``_s``, ``_h``, ``_mb``, ``_mbps``). An *iteration* is one batch of one worker, whichever the
model.
"""
