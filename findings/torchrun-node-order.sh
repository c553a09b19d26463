#!/bin/sh
# Under torchrun with `--rdzv-backend c10d`, neither `--node-rank`, nor the order in which nodes come, nor the node that
# hosts the rendezvous decides which node has which ranks: torchrun sorts the addresses of the nodes, as texts. Of nodes
# 10.0.0.2, 10.0.0.9 and 10.0.0.10 the last has rank 0, and MASTER_ADDR is its address, whatever `--rdzv-endpoint` names.
# Whoever looks for rank 0's logs or checkpoints on the host of the rendezvous, or gave `--node-rank 0` to the node with
# the fast disk, looks on the wrong host, and a renumbered cluster moves rank 0.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-28, printed:
#   127.0.0.9 came 1st with --node-rank 0: rank 2, MASTER_ADDR 127.0.0.10
#   127.0.0.10 came 2nd with --node-rank 1: rank 0, MASTER_ADDR 127.0.0.10
#   127.0.0.2 came 3rd with --node-rank 2: rank 1, MASTER_ADDR 127.0.0.10
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT  # `timeout` ends what was begun
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" torch==2.15.0 numpy
cat > "$folder/say.py" <<'END'
import os

came = os.environ["CAME"]
print(f"{came}: rank {os.environ['RANK']}, MASTER_ADDR {os.environ['MASTER_ADDR']}")
END
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')

# Three "nodes" of one machine, each with an address of its loopback.
come() {
  CAME="$2 came $1 with --node-rank $3" timeout 300 "$folder/venv/bin/python" -m torch.distributed.run --nnodes 3 \
    --nproc-per-node 1 --node-rank "$3" --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$port" --rdzv-id order \
    --local-addr "$2" "$folder/say.py" > "$folder/$3" 2> "$folder/$3.log" &
  sleep 5
}
come 1st 127.0.0.9 0
come 2nd 127.0.0.10 1
come 3rd 127.0.0.2 2
wait
cat "$folder/0" "$folder/1" "$folder/2"
for line in "127.0.0.9 .* rank 2," "127.0.0.10 .* rank 0," "127.0.0.2 .* rank 1,"; do
  grep -q "^$line" "$folder/0" "$folder/1" "$folder/2" || { tail -n 5 "$folder"/*.log; echo "this has changed"; exit 1; }
done
