#!/bin/sh
# from_python.sh SOURCE BUILD: runs the commands of "Models from Python" in docs/guides/tasks.md in an empty folder, for
# two epochs. Python must then load the trained weights into its module, and compute what `vernier predict` wrote. Where
# Python has no torch 2.11 with safetensors, the graph of the tests takes the place of the exported one.
set -eu
source=$1
PATH=$2:$PATH
unset VERNIER_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$source/examples" "$source/plugins" "$source/configs" .

awk '/^## /{ here = /^## Models from Python/ } /^```/ && inside { exit } inside { print }
  here && /^```sh/ { inside = 1 }' "$source/docs/guides/tasks.md" >commands
[ "$(wc -l <commands)" -eq 5 ] || { cat commands; echo "docs/guides/tasks.md has other than five commands"; exit 1; }

has_torch=no
python3 -c 'import safetensors, torch; assert torch.__version__.startswith("2.11")' 2>/dev/null && has_torch=yes
while IFS= read -r line; do
  case $line in
    *export.py*)
      if [ $has_torch = no ]; then
        cp "$source/tests/plugins/task/graphs/plane.pt2" data/spirals.pt2
        continue
      fi ;;
    "vernier train "*) line="$line --set run.epochs=2" ;;
  esac
  sh -euc "$line" >printed 2>&1 || { echo "$line"; cat printed; exit 1; }
done <commands

[ "$(wc -l <arms.csv)" -eq "$(wc -l <data/spirals.csv)" ] || { echo "arms.csv lacks rows"; exit 1; }
[ -s trained.safetensors ]
if [ $has_torch = no ]; then
  echo "skipped: python3 has no torch 2.11 with safetensors, so nothing was loaded there"
  exit 0
fi
vernier export runs/graph --format pt2 --output trained.pt2 >printed 2>&1
python3 - <<'END'
import csv
import sys

import torch
from safetensors.torch import load_file

sys.path.append("plugins/task/graph")
from export import Model

model = Model()
model.load_state_dict(load_file("trained.safetensors"))
with open("data/spirals.csv") as points, open("arms.csv") as arms:
    points, arms = list(csv.DictReader(points)), list(csv.DictReader(arms))
x = torch.tensor([[float(point["x"]), float(point["y"])] for point in points])
with torch.no_grad():
    chances = model.eval()(x).softmax(1)
wanted = torch.tensor([float(arm["probability"]) for arm in arms])
assert (chances.max(1).values - wanted).abs().max() < 1e-6, "predict wrote other probabilities than Python computes"
state = torch.export.load("trained.pt2").state_dict
assert all(torch.equal(state[name], value) for name, value in model.state_dict().items()), "trained.pt2 has other weights"
END
