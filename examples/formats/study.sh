#!/bin/sh
# study.sh FOLDER [SEEDS]: trains a small GPT and a small Llama in number formats, and compares their losses with
# float32's. FOLDER gets the data and the tables, pages and runs of `vernier compare`. VERNIER: the program,
# by default that of this tree.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
vernier=${VERNIER:-$tree/vernier}
folder=${1:?name a folder to work in} seeds=${2:-5}
presets=$tree/configs/precision
mkdir -p "$folder"
cd "$folder"

find "$tree/docs" -name '*.md' -print0 | LC_ALL=C sort -z | xargs -0 cat "$tree/README.md" >corpus.txt
cp corpus.txt corpus.bin  # a byte is a token
cp -r "$here/llama" .

for model in gpt llama; do
  echo "== $model"
  $vernier compare --base "$here/$model.toml" "$presets/fp32.toml" "$presets/bf16.toml" "$presets/fp8.toml" \
    "$presets/formats/mxfp8.toml" "$presets/formats/mxfp6.toml" \
    "$here/recipes/mxfp4_nearest.toml" "$presets/formats/mxfp4.toml" \
    "$here/recipes/nvfp4_nearest.toml" "$here/recipes/nvfp4_stochastic.toml" "$here/recipes/nvfp4_hadamard.toml" \
    "$presets/formats/nvfp4.toml" --seeds "$seeds" --output "$model" --quiet
done
