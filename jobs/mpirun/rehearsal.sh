#!/usr/bin/env bash
# Train on N workers of this host while some of them are killed, and keep a trace of it.
#
#   rehearsal.sh N REVOCATIONS SCRIPT [ARGS...]
#
# REVOCATIONS: which workers die by SIGKILL in which step's all-reduce, as in '0,2@40;1@60'.
# The trace goes to SPOTMPI_TRACE (default: rehearsal.jsonl in the current folder).
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: ${0##*/} N W[,W..]@STEP[;W..@STEP] SCRIPT [ARGS...]" >&2
    exit 2
fi
workers=$1
export SPOTMPI_REVOKE=$2
export SPOTMPI_TRACE=${SPOTMPI_TRACE:-rehearsal.jsonl}
shift 2
exec bash "$(dirname "$(readlink -f "$0")")/one-host.sh" "$workers" "$@"
