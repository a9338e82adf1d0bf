#!/bin/sh
# A run on the machines of hosts.openmpi by Open MPI's mpirun: ./openmpi.sh train.json [further words for crossweave train]
set -eu
here=$(dirname "$0")
config=${1:?name a config: ./openmpi.sh train.json}
shift
# A host that is lost is named by the ranks of the others after run.heartbeat_s (30 s). mpirun itself asks a silent host after 25 s, four times in
# 5 s each, so that the ranks speak first; by Open MPI's defaults it would wait for 300 s, and ask nine times in 20 s each.
export OMPI_MCA_oob_tcp_keepalive_time="${OMPI_MCA_oob_tcp_keepalive_time:-25}" OMPI_MCA_oob_tcp_keepalive_intvl="${OMPI_MCA_oob_tcp_keepalive_intvl:-5}" \
  OMPI_MCA_oob_tcp_keepalive_probes="${OMPI_MCA_oob_tcp_keepalive_probes:-4}"
# Without -n it starts as many processes as the file has slots. On one machine, CROSSWEAVE needs no full path; on others it is looked for on their PATH.
exec "${MPIRUN:-mpirun}" --hostfile "${HOSTS:-$here/hosts.openmpi}" ${NP:+-n "$NP"} "${CROSSWEAVE:-crossweave}" train "$config" "$@"
