#!/usr/bin/env bash
# Train on NODES one-node jobs that may be preempted one by one, from a head that may not.
#
#   head.sh NODES WORKERS [OPTIONS] SCRIPT [ARGS...]                      on the login node, or
#   sbatch -p ON_DEMAND --wrap "bash head.sh NODES WORKERS ..."           where none is preempted
#
# It waits until WORKERS workers are there (NODES times the tasks of each). OPTIONS are those of
# `spotmpi run`.
#
#   JOB=...        options of sbatch for the workers' jobs, as in '-p PREEMPTIBLE -c 8 --gpus=1'
#   HEAD=...       where this host is reached from the nodes (default: its name, and port 7700)
#   PYTHON=...     the interpreter (default: python, as the active environment has it)
set -uo pipefail

if [ $# -lt 3 ] || ! [[ $1 =~ ^[1-9][0-9]*$ && $2 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: [HEAD=HOST:PORT] head.sh NODES WORKERS [OPTIONS] SCRIPT [ARGS...]" >&2
    exit 2
fi
nodes=$1 workers=$2
shift 2
head=${HEAD:-$(hostname):7700}

# The token, on the file system that the nodes share, in a file that mktemp makes for you alone:
# whoever knows it may run programs as you.
token=$(mktemp "$PWD/.spotmpi-token.XXXXXX") || exit 71
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$token"
array=
leave() {
    [ -z "$array" ] || scancel "$array"
    rm -f "$token"
}
trap leave EXIT

here=$(dirname "$(readlink -f "$0")")
# shellcheck disable=SC2086  # several words
array=$(sbatch --parsable --array="0-$((nodes - 1))" ${JOB:-} \
    "$here/worker-array.sbatch" "$head" "$token") || exit 71
array=${array%%;*}

# In the background: Bash obeys a signal only after what runs in the foreground.
"${PYTHON:-python}" -m spotmpi run --listen "$head" --token-file "$token" -n "$workers" "$@" &
trap 'kill -TERM $!' INT TERM HUP
code=0
while kill -0 $! 2>/dev/null; do
    wait $!
    code=$?
done
exit "$code"
