# Configurations of the loss scale and of autocast, key by key: 000:68, 001:94, 002:38, 003:43.
train() { vernier train "$SEEDS/model.toml" "$@"; }
# The advanced configuration of 000:68. Two values for the two names of its interval are refused; with one it runs.
refused both.txt vernier train "$SEEDS/model.toml" "$SEEDS/advanced.toml" --set scaler.window=1000
train "$SEEDS/advanced.toml" --set run.output=advanced >advanced.txt 2>&1
# 003:151 and 003:164, and 000:519 with a higher scale.
for preset in conservative aggressive memory; do
  train "$VERNIER_SOURCE/configs/presets/$preset.toml" --set run.output=$preset >$preset.txt 2>&1
done
train --mixed-precision fp16 --set scaler.init_scale=1048576 --set run.output=higher \
  --set optimizer.learning_rate=0.005 >higher.txt 2>&1
# 002:43: the model, the inputs and the outputs are cast, and autocast is off for validation.
train --mixed-precision bf16 --set precision.level=O2 --set precision.cast_inputs=true \
  --set run.output=cast >cast.txt 2>&1
train --mixed-precision bf16 --set precision.cast_outputs=true --set run.output=outputs \
  --set precision.autocast_mode=training --set precision.weight_casts=none >outputs.txt 2>&1
train --mixed-precision fp16 --set precision.fallback=float32 --set run.output=fallback >fallback.txt 2>&1
for dtype in auto fp16 bf16 fp32; do
  train --set precision.use=$dtype --set scaler.use=dynamic --set run.output=$dtype >$dtype.txt 2>&1
done
# 000:438: a scale that is far too high; 000:575 and 002:279: single layers and operators.
train --mixed-precision fp16 --set scaler.init_scale=2199023255552.0 --set run.output=high >high.txt 2>&1
train --set 'precision.rule=[{op="linear", use="bf16"}]' --set run.output=rules >rules.txt 2>&1
train --mixed-precision bf16 --set precision.level=O3 --set run.output=half \
  --set 'precision.rule=[{match="layers.1", use="fp32"}]'
vernier checkpoint show half '*.weight' >half.txt
# 002:165: the whole update is clipped, after its micro-batches.
train --mixed-precision fp16 --set accumulation.micro_batches=4 --set callback.clip_norm.max_norm=0.5 \
  --set callback.clip_value.max_value=0.1 --set monitor.jsonl.every=1 --set run.output=clipped >clipped.txt 2>&1
