#!/bin/sh
# NP processes on this machine without a launcher: NP=4 ./loop.sh train.json [further words for crossweave train]
# Any scheduler that can start a command with these variables starts a run this way, on any number of machines.
set -eu
config=${1:?name a config: ./loop.sh train.json}
shift
export WORLD_SIZE="${NP:-2}" LOCAL_WORLD_SIZE="${NP:-2}" MASTER_ADDR=127.0.0.1 MASTER_PORT="${MASTER_PORT:-29500}"
rank=0
all=
while [ "$rank" -lt "$WORLD_SIZE" ]; do
    RANK=$rank LOCAL_RANK=$rank "${CROSSWEAVE:-crossweave}" train "$config" "$@" &
    all="$all $!"
    rank=$((rank + 1))
done
# What stops this loop stops the run: it saves and ends.
trap 'kill -INT $all' INT TERM
status=0
for one in $all; do
    # A signal ends the wait and not the process, which saves first.
    until wait "$one"; do
        code=$?
        kill -0 "$one" 2>/dev/null && continue
        status=$code
        break
    done
done
exit "$status"
