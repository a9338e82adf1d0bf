#!/bin/sh
# A run started by torchrun, this file once on every machine: ./torchrun.sh train.json [further words for crossweave train]
# NP processes here; of several machines NNODES, this one's NODE_RANK, and the first one's name as MASTER_ADDR. No Python of yours is run.
# Machines that may be lost: NNODES=2:4 RESTARTS=10 MASTER_ADDR=first ./torchrun.sh train.json --out /shared/a --resume auto --take-over
# with `"mesh": {"elastic": ["dp"]}` in the config: torchrun starts it again on those that are left, 2 at least, and it goes on.
set -eu
config=${1:?name a config: ./torchrun.sh train.json}
shift
nodes=${NNODES:-1} first=${MASTER_ADDR:-localhost} port=${MASTER_PORT:-29500}
case $nodes in
*:*) meet="--rdzv-backend c10d --rdzv-id ${RUN_ID:-crossweave} --rdzv-endpoint $first:$port --max-restarts ${RESTARTS:-10}" ;;
*) meet="--node-rank ${NODE_RANK:-0} --master-addr $first --master-port $port" ;;
esac
# shellcheck disable=SC2086
exec torchrun --no-python --nproc-per-node "${NP:-2}" --nnodes "$nodes" $meet "${CROSSWEAVE:-crossweave}" train "$config" "$@"
