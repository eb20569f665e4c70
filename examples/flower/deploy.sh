#!/usr/bin/env bash
# A deployment on this machine: a SuperLink with TLS, and two SuperNodes that prove who they are.
#   ./deploy.sh DIR [KEY=VALUE ...]
# Everything goes into DIR; the report is DIR/run/report.html. Needs flwr, soteriafl, openssl and
# ssh-keygen.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
cd "$work"
port=${SOTERIA_PORT:-39300}
export FLWR_HOME=$work/flower
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
mkdir -p "$FLWR_HOME"

# An authority, a certificate for this address, and a key for each node.
if [ ! -e server.key ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 \
        -keyout ca.key -out ca.crt -subj "/CN=example authority" 2> /dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key \
        -out server.csr -subj "/CN=127.0.0.1" 2> /dev/null
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 \
        -out server.crt -extfile <(echo "subjectAltName=IP:127.0.0.1") 2> /dev/null
    for node in 0 1; do ssh-keygen -q -t ecdsa -b 384 -N "" -f "node-$node.key"; done
fi
cat > "$FLWR_HOME/config.toml" << END
[superlink.loopback]
address = "127.0.0.1:$port"
root-certificates = "$work/ca.crt"
END

processes=()
trap 'kill "${processes[@]}" 2> /dev/null || true' EXIT
flower-superlink --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --host 127.0.0.1 --port "$port" --database superlink.db \
    --disable-runtime-dependency-installation > superlink.log 2>&1 &
processes+=($!)
for _ in $(seq 100); do
    flwr supernode list loopback > /dev/null 2>&1 && break
    sleep 0.3
done
for node in 0 1; do
    flwr supernode register "node-$node.key.pub" loopback > /dev/null 2>&1 || true
    # What the records may cost, and where the ledger lives: the word of the node's owner.
    flower-supernode --root-certificates ca.crt --superlink "127.0.0.1:$port" \
        --auth-supernode-private-key "node-$node.key" \
        --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
        --host 127.0.0.1 --port $((port + 1 + node)) \
        --node-config "partition-id=$node num-partitions=2 max-epsilon=1.0 soteria-state=\"$work/node-$node\"" \
        > "node-$node.log" 2>&1 &
    processes+=($!)
done
settings="state='$work/server' out='$work/run'"
for setting in "$@"; do settings="$settings $setting"; done
flwr run "$here" loopback --stream --run-config "$settings"
if [ ! -s "$work/run/report.html" ]; then
    echo "the run has not come to its end: $work/superlink.log and $work/node-*.log say why; started again with the same arguments it goes on" >&2
    exit 1
fi
echo "report: $work/run/report.html"
