#!/bin/sh
# A run started by torchrun, this file once on every machine: ./torchrun.sh train.json [further words for crossweave train]
# NP processes here; of several machines NNODES, this one's NODE_RANK, and the first one's name as MASTER_ADDR. No Python of yours is run.
set -eu
config=${1:?name a config: ./torchrun.sh train.json}
shift
exec torchrun --no-python --nproc-per-node "${NP:-2}" --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    "${CROSSWEAVE:-crossweave}" train "$config" "$@"
