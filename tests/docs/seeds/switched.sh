# Precision that changes while a run trains, and what a run does about numbers that are not finite.
train() { vernier train "$SEEDS/model.toml" "$@"; }
train --mixed-precision fp16 --set callback.switch.at_step=10 --set run.output=off \
  --set 'callback.switch.to={precision={use="fp32"},scaler={use="none"}}' >off.txt 2>&1
train --set callback.switch.at_step=10 --set run.output=on \
  --set 'callback.switch.to={precision={use="fp16"},scaler={use="dynamic"}}' >on.txt 2>&1
# A NaN in a layer's activations: the batch is skipped, the rate halved, and float32 takes over where it comes again.
vernier train "$SEEDS/model.toml" "$SEEDS/nan.toml" --mixed-precision fp16 --set callback.inject.every=2 \
  --set callback.inject.times=2 --set run.output=recovered >recovered.txt 2>&1
vernier runs . >runs.txt
