# A precision that measures this model on this machine, and decides; what it says agrees with what it did.
vernier train "$SEEDS/model.toml" --set precision.use=adaptive --set run.steps=40 --set run.output=adaptive \
  >adaptive.txt 2>&1
vernier train "$SEEDS/model.toml" adaptive/adaptive.toml --set run.steps=40 --set run.output=again >again.txt 2>&1
python3 - >agrees.txt <<'END'
import json

first, again = (json.load(open(f"{run}/summary.json")) for run in ("adaptive", "again"))
rules = [line.partition("#")[0] for line in open("adaptive/adaptive.toml")]
lowers = any(f'use = "{dtype}"' in rule for rule in rules for dtype in ("bf16", "fp16", "fp8"))
counted = [run["amp"]["amp_steps"] > 0 for run in (first, again)]
print("a step counts as mixed exactly where something is lowered" if counted == [lowers, lowers] else
      f"LOWERS {lowers}, COUNTED {counted}")
END
