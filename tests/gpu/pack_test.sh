#!/bin/sh
# pack_test.sh SOURCE BUILD LIBTORCH OUT: the pack is made, and runs: parts without a GPU pass, others say what is missing.
set -eu
source=$1 build=$2 libtorch=$3 out=$4
fail() { echo "$*"; cat "$out"/result.md "$out"/log/*.log 2>/dev/null || true; exit 1; }
sh "$source/tests/gpu/pack.sh" "$source" "$build" "$out"
ls "$out"/vernier/lib/libspdlog.so.* "$out/vernier/lib/vernier/plugins/optimizer/adamw.so" >/dev/null ||
  fail "something is missing from the pack"
sh "$out/run.sh" --libtorch "$libtorch" --seconds 200 machine resume kernels || fail "a part failed"
python3 - "$out/result.json" <<'END' || fail "result.json"
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    parts = json.load(file)["parts"]
assert parts["machine"]["state"] == "passed" and parts["resume"]["values"]["digest"], parts
without = parts["kernels"]["state"] == "skipped"
assert parts["kernels"]["reason"] == ("there is no GPU here" if without else ""), parts
END
sh "$out/run.sh" --libtorch "$libtorch" --seconds 4 | grep -q "no time is left" || fail "it went on without time"
said=$(sh "$out/run.sh" --libtorch nowhere 2>&1) && fail "a LibTorch that is not there is taken"
case $said in *"nowhere has no lib/libtorch_cpu.so"*) ;; *) fail "$said" ;; esac
