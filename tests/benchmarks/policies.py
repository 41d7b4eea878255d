#!/usr/bin/env python3
"""The table of docs/guides/precision.md: the quickstart under every precision policy, by speed, memory and loss.

    python3 tests/benchmarks/policies.py            prints the table
    python3 tests/benchmarks/policies.py --write    writes it into docs/guides/precision.md

Each policy trains configs/quickstart.toml for --steps updates from the same seed, one after another, on a machine that
should do nothing else. Policies are the overlays in configs/precision, and the variants below whose options the build has.
Speed is of the whole step, after the mean of all; memory is callback/memory's peak in the tenth step; losses are compared
batch by batch over the last tenth of the steps. Standard library only.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = "configs/quickstart.toml"

# Cases that the overlays leave out: label, overlay, options.
VARIANTS = [
    ("bf16, LibTorch's attention kernel", "bf16", {"attention": "fused"}),
    ("bf16, weight casts kept over an update", "bf16", {"weight_casts": "update"}),
    ("bf16, O3, rounded to nearest", "bf16", {"level": "O3", "rounding": "nearest"}),
    ("bf16, O3, Kahan", "bf16", {"level": "O3", "rounding": "kahan"}),
]


def options_of(program, plugin):
    """What a plugin takes: name -> its choices, [] where it takes anything; {} where there is no such plugin."""
    told = subprocess.run([program, "plugins", plugin], cwd=ROOT, capture_output=True, text=True)
    found = re.findall(r"^  (\S+) = .*   \(([^\n]*)\)$", told.stdout, re.M)
    return {name: re.findall(r"\w+", takes.partition(": ")[2]) for name, takes in found} if told.returncode == 0 else {}


def policies(program):
    """(label, overlay, options) of all there are, float32 first."""
    overlays = sorted(path.stem for path in (ROOT / "configs/precision").glob("*.toml"))
    overlays.remove("fp32")
    found = [("fp32", "fp32", {})] + [(name, name, {}) for name in overlays]
    for label, overlay, options in VARIANTS:
        known = options_of(program, "precision/" + overlay)
        if all(key in known and value in known[key] for key, value in options.items()):
            found.append((label, overlay, options))
    text = (ROOT / "configs/precision/fp8.toml").read_text() if "fp8" in overlays else ""
    for recipe in options_of(program, "precision/fp8").get("recipe", []) if text else []:
        if f'recipe = "{recipe}"' not in text:
            found.append((f"fp8, {recipe}", "fp8", {"recipe": recipe}))
    return found


def train(program, steps, overlay, options, sets, folder):
    """The run's figures, or what refused it."""
    command = [program, "train", BASE, f"configs/precision/{overlay}.toml", "--quiet"]
    settings = [f"run.steps={steps}", f"run.output={folder}/run", "run.validate_every=0", "task.sample_bytes=0",
                "checkpoint.use=none", f"callback.memory.step={min(10, steps)}", f"monitor.progress.every={steps}"]
    settings += [f"precision.{key}={value}" for key, value in options.items()] + sets
    config = (ROOT / BASE).read_text()  # checkpoint.every is not an option of checkpoint/none
    base = pathlib.Path(folder) / "quickstart.toml"
    base.write_text(re.sub(r"\[checkpoint\]\n(?:\w.*\n)*", '[checkpoint]\nuse = "none"\n', config))
    command[2] = str(base)
    settings.remove("checkpoint.use=none")
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        return {"refused": done.stderr.strip().splitlines()[-1]}
    run = pathlib.Path(folder) / "run"
    lines = [json.loads(line) for line in (run / "losses.jsonl").read_text().splitlines()]
    memory = dict(line.rsplit("\t", 1) for line in (run / "memory.tsv").read_text().splitlines())
    summary = json.loads((run / "summary.json").read_text())
    return {"losses": [float(line["loss"]) for line in lines if "loss" in line], "peak": int(memory["peak"]),
            "speed": summary["this_process"]["steps_per_second"], "skipped": summary["updates_skipped"],
            "validation": summary["validation_loss"]["final"], "summary": summary}


def row(label, overlay, result, reference):
    if "refused" in result:
        return f"| {label} | refused: {result['refused'].replace('|', chr(92) + '|')} | | | | |"
    last = max(1, len(result["losses"]) // 10)
    pairs = list(zip(result["losses"], reference["losses"]))[-last:]
    gap = statistics.mean(mine - theirs for mine, theirs in pairs)
    gap_of_validation = result["validation"] - reference["validation"]
    emulated = overlay.startswith("fp8") and result["summary"]["device"] == "cpu"
    ratio = result["speed"] / reference["speed"]
    speed = f"{result['speed']:.2f}" + (" (emulated)" if emulated else f" ({ratio:.2f}x)")
    memory = f"{result['peak'] / 1e6:.1f} MB ({100 * result['peak'] / reference['peak']:.0f} %)"
    return f"| {label} | {speed} | {memory} | {gap:+.4f} | {gap_of_validation:+.4f} | {result['skipped']} |"


def processor():
    try:
        found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found.group(1) if found else "unknown processor"


def table(program, steps, sets, only):
    rows, reference = [], None
    for label, overlay, options in policies(program):
        if only and label not in only and reference is not None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = train(program, steps, overlay, options, sets, folder)
        if reference is None:
            if "refused" in result:
                sys.exit(f"policies.py: fp32 does not train: {result['refused']}")
            reference = result
        rows.append(row(label, overlay, result, reference))
        print(rows[-1], file=sys.stderr)
    run = reference["summary"]
    where = processor() if run["device"] == "cpu" else run["device"]
    last = max(1, steps // 10)
    head = [f"`{BASE}`, {steps} steps, seed {run['seed']}, {where}, {run['threads']} threads, LibTorch {run['versions']['libtorch']}.",
            f"float32 ends at a training loss of {statistics.mean(reference['losses'][-last:]):.4f} (mean of the last {last} steps) "
            f"and a validation loss of {reference['validation']:.4f}; the gaps are to these, in nats.", "",
            "| policy | steps/s | peak memory of a step | loss gap | validation gap | skipped |",
            "| --- | --- | --- | --- | --- | --- |"]
    return "\n".join(head + rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--program", default=str(ROOT / "vernier"), help="default: the wrapper, which builds first")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run")
    parser.add_argument("--only", action="append", default=[], metavar="POLICY", help="a row of the table; float32 is always there")
    parser.add_argument("--write", action="store_true", help="into docs/guides/precision.md")
    given = parser.parse_args()
    made = table(given.program, given.steps, given.set, given.only)
    if not given.write:
        return print(made)
    path = ROOT / "docs/guides/precision.md"
    text = path.read_text()
    begin, end = "<!-- policies -->\n", "<!-- /policies -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if not rest or not after and not rest.endswith(end):
        sys.exit(f"policies.py: {path} has no lines {begin.strip()} and {end.strip()}")
    path.write_text(before + begin + "\n" + made + "\n\n" + end + after)
    return None


if __name__ == "__main__":
    main()
