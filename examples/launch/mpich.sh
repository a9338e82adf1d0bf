#!/bin/sh
# A run on the machines of hosts.mpich by MPICH's mpirun: ./mpich.sh train.json [further words for crossweave train]
set -eu
here=$(dirname "$0")
config=${1:?name a config: ./mpich.sh train.json}
shift
exec "${MPIRUN:-mpirun}" -f "${HOSTS:-$here/hosts.mpich}" -n "${NP:-2}" "${CROSSWEAVE:-crossweave}" train "$config" "$@"
