#!/usr/bin/env bash
# A coordinator and three clients on loopback with TLS. Client 1 is killed in the middle and started again;
# the model is the same as that of the simulated run, byte for byte.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
soteria="${TARGET_DIR:-target}/release/soteria"
work="$(mktemp -d)"
parties=()
end() {
    for party in "${parties[@]}"; do kill "$party" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
seed=7
port="${PORT:-7443}"

cat > "$work/run.toml" <<'END'
[data]
source = "a9a"
clients = 3
[algorithm]
preset = "soteriafl-saga"
rounds = 400
[privacy]
epsilon = 1.0
noise = "secure"
END

say() { printf '\n== %s\n' "$*"; }

say "keys: an authority, a server, three clients"
"$soteria" keys init "$work/keys" --clients 3 --quiet

say "the simulated run, to compare with"
"$soteria" train --config "$work/run.toml" --seed "$seed" --out "$work/simulated" --quiet > /dev/null
sha256sum "$work/simulated/model.safetensors"

join() {
    "$soteria" join --server "https://127.0.0.1:$port" --client "$1" --tls "$work/keys" --state "$work/client-$1" \
        --data "a9a:$1/3" --test-seed "$seed" --yes --quiet &
    parties+=("$!")
}
messages() {
    "$soteria" ledger --state "$work/client-$1" --json 2> /dev/null |
        sed -n 's/^ *"messages": \([0-9]*\),*$/\1/p' | head -n 1
}

say "a coordinator and three clients over TLS"
"$soteria" serve --config "$work/run.toml" --listen "127.0.0.1:$port" --tls "$work/keys" --state "$work/server" \
    --out "$work/out" --test-seed "$seed" --quiet &
server="$!"
parties+=("$server")
for client in 0 1 2; do join "$client"; done
victim="${parties[2]}"

until [ "$(messages 1)" != "" ] && [ "$(messages 1)" -ge 150 ]; do
    kill -0 "$server"
    sleep 0.02
done
say "client 1 is killed (kill -9) after $(messages 1) messages"
kill -9 "$victim"
sleep 1
say "the others wait for it; it is started again and has $(messages 1) messages in its ledger"
join 1
wait "$server"
say "done"
sha256sum "$work/out/model.safetensors"
cmp "$work/simulated/model.safetensors" "$work/out/model.safetensors"
echo "the networked run ended with the same bytes as the simulated one"
"$soteria" ledger --state "$work/client-1"
