#!/usr/bin/env bash
# A run over Flower's simulation engine, with nodes in processes of this machine:
#   ./simulate.sh DIR [KEY=VALUE ...]
# Everything goes into DIR; the report is DIR/run/report.html. Needs flwr[simulation] and soteriafl.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
export FLWR_HOME=$work/flower SOTERIA_SIMULATION=$work/nodes
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
nodes=2
settings="state='$work/server' out='$work/run'"
for setting in "$@"; do
    case $setting in data.clients=*) nodes=${setting#*=} ;; esac
    settings="$settings $setting"
done
# `flwr` starts a SuperLink of its own that would stay: it is ended with this script.
cd "$work"
trap 'stop' EXIT
stop() {
    for process in /proc/[0-9]*; do
        grep -qz "^FLWR_HOME=$FLWR_HOME$" "$process/environ" 2> /dev/null || continue
        [ "${process#/proc/}" = $$ ] || kill "${process#/proc/}" 2> /dev/null || true
    done
}
# On a busy machine its SuperLink can take longer than `flwr` waits for it: then it is asked again.
for _ in 1 2 3; do flwr federation list local > /dev/null 2>&1 && break; done
flwr run "$here" local --stream --run-config "$settings" --federation-config "num-supernodes=$nodes"
if [ ! -s "$work/run/report.html" ]; then
    echo "the run has not come to its end: why, stands above; started again with the same arguments it goes on" >&2
    exit 1
fi
echo "report: $work/run/report.html"
