# A run in float16 that is watched, resumed from its middle, and shown by other verbs. The variables are of 000:44.
export TORCH_CUDNN_V8_API_ENABLED=1 CUDA_LAUNCH_BLOCKING=0 PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128
vernier train "$SEEDS/watched.toml" --set run.output=run >train.txt 2>&1
cat train.txt
cp run/summary.json whole.json
vernier checkpoint verify run
vernier checkpoint show run '*scaler*' >state.txt
vernier runs . >runs.txt
vernier report run --output report.html >report.txt
vernier replay run --step 4 >replay.txt 2>&1 || true
vernier train "$SEEDS/watched.toml" --set run.output=run --resume=run/checkpoints/step-00000020 >resumed.txt 2>&1
python3 - >same.txt <<'END'
import json

whole, resumed = (json.load(open(path)) for path in ("whole.json", "run/summary.json"))
names = ("current_scale", "growth_tracker", "overflow_count", "total_steps")
print("the digest is the same" if whole["digest"] == resumed["digest"] else "ANOTHER DIGEST")
print("the scale is the same" if all(whole["amp"][name] == resumed["amp"][name] for name in names) else "ANOTHER SCALE")
# The scale and the tracker by PyTorch's rule, from the overflows that the lines of the steps have.
scale, tracker, before = 65536.0, 0, 0
for line in open("run/losses.jsonl"):
    step = json.loads(line)
    if "loss" not in step:
        continue
    if step["overflows"] > before:
        scale, tracker, before = scale * 0.5, 0, step["overflows"]
    elif (tracker := tracker + 1) == 5:
        scale, tracker = scale * 2, 0
amp = resumed["amp"]
counted = (amp["current_scale"], amp["growth_tracker"], amp["overflow_count"])
ruled = (scale, tracker, before)
print("PyTorch's rule:", "the same" if counted == ruled else f"{counted}, NOT {ruled}")
END
grep -o 'growth tracker [0-9]*' train.txt | awk '{count += 1; if ($3 >= 5) late += 1}
  END {print late ? "IT REACHES IT" : count " times, and the growth tracker never reaches the interval"}' >tracker.txt
stat -c %a run/checkpoints/step-00000040/model.safetensors run/checkpoints/step-00000040 | xargs >modes.txt
