# A language model's step in float32 and in 16 bits: what it holds, what mixed precision saves, how large its file is,
# and how much larger a batch fits below the same limit.
gpt() { # VERB OPTION...
  verb=$1; shift
  vernier "$verb" "$VERNIER_SOURCE/configs/quickstart.toml" --set "task.data=[\"$VERNIER_SOURCE/README.md\"]" \
    --set run.threads=1 --set run.steps=2 --set callback.schedule.warmup_steps=0 "$@"
}
gpt check --mixed-precision bf16 >check.txt 2>&1
gpt train --mixed-precision bf16 --set run.measure_savings=true --set run.output=gpt >gpt.txt 2>&1
gpt train --mixed-precision bf16 --set precision.level=O3 --set run.output=o3 >o3.txt 2>&1
gpt train --low-memory --set run.output=low >low.txt 2>&1
layers=64
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do layers=$layers,64; done
for dtype in fp32 bf16; do
  vernier train "$SEEDS/model.toml" --set task.samples=40000 --set task.batch_size=32768 --set "task.hidden=[$layers]" \
    --set run.steps=1 --set run.memory_limit=60MB --set accumulation.use=fit --set checkpoint.use=none \
    --set precision.use=$dtype --set run.output=fit-$dtype >fit-$dtype.txt 2>&1
done
python3 - <<'END' >figures.txt
import json
import re

def micro_batches(run):
    return json.load(open(f"{run}/summary.json"))["this_process"]["per_update"]["micro_batches"]

def bytes_of(run):
    return json.load(open(f"{run}/checkpoints/step-00000002/manifest.json"))["files"]["model.safetensors"]["bytes"]

def row(name):
    """The two figures of a row of check's table, as it prints them."""
    return re.search(rf"^ *{name}.*?  +(\S+ \S?B) +(\S+ \S?B)$", open("check.txt").read(), re.M).groups()

saved, more, half = row("activations"), micro_batches("fit-fp32"), bytes_of("o3") / bytes_of("gpt")
print("bfloat16 needs no more micro-batches below the same limit:", micro_batches("fit-bf16") <= more)
print("weights in 16 bits take half the file:", 0.45 < half < 0.55)
print("activations take less, weights, gradients and optimizer the same:",
      float(saved[1].split()[0]) < float(saved[0].split()[0])
      and all(len(set(row(name))) == 1 for name in ("weights", "gradients", "optimizer")))
END
