#!/bin/sh
# finetune.sh SOURCE BUILD: runs all steps of examples/finetune for a few updates, and each preset of its folder gpt2 with
# a small model in the place of GPT-2.
set -eu
source=$1
VERNIER=$2/vernier
OMP_NUM_THREADS=1
export VERNIER OMP_NUM_THREADS
unset VERNIER_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$1"; exit 1; }

sh "$source/examples/finetune/run.sh" "$work/small" 60 20 >"$work/printed" 2>"$work/errors" ||
  { cat "$work/printed" "$work/errors"; fail "run.sh failed"; }
[ "$(grep -c perplexity "$work/printed")" = 2 ] || fail "two runs are evaluated"
[ "$(grep -c '"completion"' "$work/small/answers.jsonl")" = 3 ] || fail "three questions get an answer"
for file in tuned/model.safetensors tuned/tokenizer.json adapter/adapter_model.safetensors; do
  [ -s "$work/small/$file" ] || fail "there is no $file"
done
# 400 tokens by chance have a perplexity of 400.
awk '/perplexity/ { if (!($2 < 100)) exit 1 }' "$work/printed" || fail "the model has learned nothing"

mkdir -p "$work/presets/gpt2"
cd "$work/presets"
cp ../small/train.bin .
echo '{"model_type": "gpt2", "vocab_size": 400, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}' >gpt2/config.json
for preset in fp32 bf16 fp16 o2 lora bf16_o3; do
  overlay='' more=''
  [ "$preset" = fp32 ] || overlay=$source/examples/finetune/gpt2/$preset.toml
  [ "$preset" != bf16_o3 ] || more=--low-memory
  # shellcheck disable=SC2086  # there may be none
  "$VERNIER" train "$source/examples/finetune/gpt2/fp32.toml" $overlay $more --quiet --set run.device=cpu --set run.steps=2 \
    --set run.output=$preset --set task.weights=random --set task.context=32 --set run.validate_every=2 >printed 2>&1 ||
    { cat printed; fail "$preset.toml cannot be trained"; }
  grep -q '"steps": 2' $preset/summary.json || fail "$preset has not two steps"
done
