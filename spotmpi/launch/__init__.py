"""Starting, watching and ending the processes of a job, on one host or on many.

::

    launcher (`local`)           the terminal's foreground process; owns the exit code
      `-- mpirun                 knows only the wrappers
            `-- wrapper  (one per worker: survives a buggy worker, dies with a revoked one)
                  `-- worker     runs the user's script
                        `-- ...  the script's own children, which die with it

What each tells the others goes over one private socket per worker (`link`, `channel`); what it
means for the job is decided in one pure place (`verdict`).
"""
