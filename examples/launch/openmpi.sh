#!/bin/sh
# A run on the machines of hosts.openmpi by Open MPI's mpirun: ./openmpi.sh train.json [further words for crossweave train]
set -eu
here=$(dirname "$0")
config=${1:?name a config: ./openmpi.sh train.json}
shift
# Without -n it starts as many processes as the file has slots. On one machine, CROSSWEAVE needs no full path; on others it is looked for on their PATH.
exec "${MPIRUN:-mpirun}" --hostfile "${HOSTS:-$here/hosts.openmpi}" ${NP:+-n "$NP"} "${CROSSWEAVE:-crossweave}" train "$config" "$@"
