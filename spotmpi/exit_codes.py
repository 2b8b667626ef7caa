"""Exit codes of a job, and what they mean.

==== =====================================================================================
Code Meaning
==== =====================================================================================
0    at least one worker finished, every other one finished or was revoked
1    the script is wrong: a worker raised, ended with a code other than 0 and 75, died by a
     signal that is no revocation, or left early alone
2    wrong arguments (`spotmpi.cli`)
65   the training came to its end with parameters that are not finite
69   every worker was revoked, or none can go on: mpirun was killed, or a round does not end
71   the job could not start: mpirun failed, or workers were lost before all were ready in each of
     four starts
74   the job ended in order, and its last steps are in no checkpoint: the disk refused it for long
     after the training, or the user did not want to wait for one
75   the workers stopped with a checkpoint written: too few were left, or all were told to
     leave, also by Ctrl-C or SIGTERM; a batch system may requeue the job
128+ the launcher was ended by a signal, without a checkpoint
==== =====================================================================================
"""

from __future__ import annotations

import signal

from spotmpi.errors import EXIT_REQUEUE

__all__ = [
    "EXIT_ALL_REVOKED",
    "EXIT_BUG",
    "EXIT_ENDED",
    "EXIT_NOT_FINITE",
    "EXIT_NOT_STARTED",
    "EXIT_REQUEUE",
    "EXIT_UNKEPT",
    "MEANINGS",
]

EXIT_BUG = 1
EXIT_NOT_FINITE = 65
"""EX_DATAERR."""
EXIT_ALL_REVOKED = 69
EXIT_NOT_STARTED = 71
EXIT_UNKEPT = 74
"""EX_IOERR."""
EXIT_ENDED = 130

MEANINGS = {
    0: "the workers that were not revoked finished",
    EXIT_BUG: "the script is wrong: it raised, crashed, ended with a code of its own or left early",
    2: "wrong arguments",
    EXIT_NOT_FINITE: "the training is over, and parameters are NaN or infinite",
    EXIT_ALL_REVOKED: "every worker was revoked, or none can go on",
    EXIT_NOT_STARTED: "the job could not start",
    EXIT_UNKEPT: (
        "ended, and the last steps are in no checkpoint: the disk refused it, or spotmpi stop --now"
    ),
    EXIT_REQUEUE: (
        "stopped below --min-workers, by a notice, Ctrl-C, SIGTERM or spotmpi stop, "
        "with a checkpoint to --resume from"
    ),
    128 + signal.SIGHUP: "SIGHUP: the terminal was closed",
    EXIT_ENDED: (
        "Ctrl-C or spotmpi stop, without --checkpoint or before the training; or a second Ctrl-C"
    ),
    128 + signal.SIGQUIT: "SIGQUIT",
    128 + signal.SIGTERM: "SIGTERM, as Ctrl-C",
}
"""Of the exit codes, as users are told."""
