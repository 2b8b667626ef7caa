"""Starting, watching and ending the processes of a job, on one host or on many.

::

    launcher (`head`)            the terminal's foreground process; owns the exit code
      |-- mpirun                 in a network of its own; knows only the stand-ins
      |     `-- stand-in         one for each worker; dies when its worker is revoked
      `-- agent (`host`)         one on each host, the launcher's own too
            `-- wrapper          one for each worker; dies with a revoked one
                  `-- worker     runs the user's script
                        `-- ...  the script's own children, which die with it

A worker and its wrapper talk to their agent over a private socket (`wrapper_socket`,
`launcher_channel`), an agent to the launcher over one connection (`link`). What that means for the
job is decided in one pure place (`head.job_state`). `start` starts all of them, `commands` are what
users type.
"""
