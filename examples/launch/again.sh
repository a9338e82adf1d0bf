#!/bin/bash
# A run that goes on without a lost host: OUT=runs/a MIN=2 ./again.sh train.json [further words for crossweave train]
# It starts the run on the hosts of HOSTS that answer, MIN of them at least, and starts it again from its newest checkpoint when a rank, a host or
# a link is lost. OUT is a folder that all hosts share. A host that answers again is taken back after the next save. `"mesh": {"elastic": ["dp"]}`
# in the config fits the mesh to the ranks that come. It gives up after TRIES starts in a row that saved nothing new.
set -u
here=$(dirname "$0")
config=${1:?name a config: ./again.sh train.json}
shift
out=${OUT:-runs/$(basename "$config" .json)} hosts=${HOSTS:-$here/hosts.openmpi} launch=${LAUNCH:-$here/openmpi.sh}
on=${RSH:-ssh -o BatchMode=yes -o ConnectTimeout=5} every=${EVERY:-10}
answering=$(mktemp) && trap 'rm -f "$answering"' EXIT
# The lines of the hosts that answer.
look() { grep -v '^[[:space:]]*\(#\|$\)' "$hosts" | while read -r line; do host=${line%%[ :]*}; $on "$host" true </dev/null >/dev/null 2>&1 && echo "$line"; done; }
saved() { ls "$out/checkpoints" 2>/dev/null | grep '^step-' | tail -n 1; }
ended() { [ "$out/ended.json" -nt "$answering" ] && sed -n 's/.*"cause": *"\([a-z]*\)".*/\1/p' "$out/ended.json"; }
owner() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",]*\).*/\1/p" "$out/owner.lock" 2>/dev/null; }
# Asks the run to save and stop after its step, at the process of rank 0.
stop() {
    pid=$(owner pid)
    if [ "$(owner host)" = "$(uname -n)" ]; then kill -INT "$pid"; else $on "$(owner host)" kill -INT "$pid"; fi
}
tries=0 before=none want=$(grep -vc '^[[:space:]]*\(#\|$\)' "$hosts")
while [ "$tries" -lt "${TRIES:-5}" ]; do
    look >"$answering.new"; mv "$answering.new" "$answering"
    have=$(grep -c "" "$answering")
    if [ "$have" -lt "${MIN:-1}" ]; then echo "again.sh: $have of $want hosts answer, ${MIN:-1} are needed" >&2; sleep "$every"; continue; fi
    [ "$(saved)" = "$before" ] && tries=$((tries + 1)) || tries=1
    before=$(saved)
    echo "again.sh: the run begins on $have of $want hosts, from ${before:-the start}" >&2
    HOSTS=$answering "$launch" "$config" --out "$out" --resume auto --take-over "$@" &
    job=$! back= silent=0
    trap stop INT TERM
    while kill -0 "$job" 2>/dev/null; do
        sleep "$every" & wait $!
        # A launcher may outlive its run: it waits for a host that is no more.
        if [ -n "$(ended)" ]; then silent=$((silent + 1)); else silent=0; fi
        if [ "$silent" -gt 3 ]; then kill -KILL "$job" 2>/dev/null; fi
        if [ "$have" -lt "$want" ] && [ -z "$back" ] && [ "$(look | grep -c "")" -gt "$have" ]; then back=$(saved); back=${back:-none}; fi
        if [ -n "$back" ] && [ "$back" != stopped ] && [ "$(saved)" != "$back" ] && [ -n "$(saved)" ]; then back=stopped; stop; fi
    done
    wait "$job"; status=$?
    trap - INT TERM
    case $(ended) in
        finished) exit 0 ;;
        failed) exit $((status ? status : 1)) ;;
        stopped) [ "$back" = stopped ] || exit 130 ;;
        lost) ;;
        # The run did not begin: its config is wrong, unless something went away meanwhile.
        *) [ "$status" -ge 75 ] || [ "$(look | grep -c "")" -lt "$have" ] || exit "$status" ;;
    esac
done
echo "again.sh: ${TRIES:-5} starts in a row saved nothing new" >&2
exit 75
