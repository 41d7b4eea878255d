# The command lines of document 004 with their flags, and the commands that a run prints to go on.
train() { vernier train "$SEEDS/model.toml" "$@"; }
train --mixed_precision bf16 --batch_size 256 --set run.output=bf16 >bf16.txt 2>&1
train --mixed_precision fp16 --grad_scaler_init 65536 --batch_size 256 --set run.output=fp16 >fp16.txt 2>&1
train --mixed_precision fp8 --set run.output=fp8 >fp8.txt 2>&1
train --mixed_precision no --set run.output=no >no.txt 2>&1
train --mixed_precision fp16 --grad_scaler_init 65536 --grad_scaler_growth_interval 2000 --grad_scaler_backoff 0.5 \
  --set run.output=scaler >scaler.txt 2>&1
train --mixed_precision bf16 --amp_opt_level O2 --batch_size 512 --grad_accum_steps 1 --grad_ckpt \
  --set run.output=fastest >fastest.txt 2>&1
train --mixed_precision bf16 --amp_opt_level O1 --batch_size 128 --grad_accum_steps 2 \
  --set run.output=conservative >conservative.txt 2>&1
train --mixed_precision fp16 --amp_opt_level O0 --debug --set run.output=debug >debug.txt 2>&1
train --mixed_precision fp16 --grad_scaler_init 2048 --grad_scaler_backoff 0.25 --set run.output=lower >lower.txt 2>&1
refused alone.txt vernier train "$SEEDS/model.toml" --grad_scaler_init 2048
# Each command below "try next" is typed as it is printed.
count=0 failed=0
for file in bf16 fp16 fp8 no scaler fastest conservative debug lower; do
  sed -n '/^try next:/,$ s/^  .*  \(vernier .*\)$/\1/p' $file.txt >next
  while IFS= read -r command; do
    count=$((count + 1))
    sh -euc "$command" >next.txt 2>&1 </dev/null || {
      failed=$((failed + 1))
      echo "after $file: $command: $(tail -n 1 next.txt)"
    }
  done <next
done
echo "$count commands below \"try next\" were typed, and $failed failed" >typed.txt
train --mixed_precision fp16 --batch_size 256 --set run.measure_savings=true --set run.output=less >less.txt 2>&1
grep -e 'takes -' -e 'saves -' ./*.txt >negative.txt || echo "no line has a negative figure" >negative.txt
