#!/bin/sh
# first_training.sh SOURCE BUILD: checks which targets `./vernier train` builds first. The script stands in a folder of its
# own here, beside the ninja file of BUILD, and `ninja` only writes down what it is asked for.
set -eu
source=$1 built=$(readlink -f "$2")
work=$(readlink -f "$(mktemp -d)")
trap 'rm -rf "$work"' EXIT
unset VERNIER_PRESET VERNIER_COMPONENTS VERNIER_CALLED_AS
export LIBTORCH="$built/lib/libtorch" PATH="$work/tools:$PATH"
mkdir -p "$work/build/release" "$work/sdk" "$work/tools"
cp "$source/vernier" "$source/CMakePresets.json" "$work"
cp "$source/sdk/components.tsv" "$work/sdk"
ln -s "$built/build.ninja" "$work/build/release"
cat >"$work/tools/ninja" <<EOF
#!/bin/sh
case " \$* " in *' -n '*) ;; *) echo "\$* " >>"$work/asked" ;; esac
EOF
cat >"$work/build/release/vernier" <<EOF
#!/bin/sh
[ "\$1" = train ] || exec "$built/vernier" "\$@"
EOF
chmod +x "$work/tools/ninja" "$work/build/release/vernier"
echo "$work with $(readlink -f "$LIBTORCH"): all" >"$work/build/release/.configured"

# expect 'TARGET...' 'OTHER...' FILE [OPTION]...: these targets are built, and not the others.
expect() {
  targets=$1 others=$2
  shift 2
  rm -f "$work/asked"
  (cd "$source" && "$work/vernier" train "$@")
  for each in $targets; do
    grep -q " $each " "$work/asked" || { echo "train $* does not build $each"; exit 1; }
  done
  for each in $others; do
    ! grep -q " $each " "$work/asked" || { echo "train $* builds $each"; exit 1; }
  done
}

rings=examples/inference/rings.toml
expect 'vernier task_gpt callback_clip_norm monitor_jsonl' 'app vernier_compile vernier-check' configs/quickstart.toml --quiet
expect 'task_tabular optimizer_adamw scaler_none monitor_progress' 'app vernier_compile' $rings --resume
expect 'precision_format quantizer_lsq' app $rings --set precision.use=format --set precision.operands.w=lsq
expect 'vernier_compile vernier-check' app $rings --set run.engine=compiled --set run.measure_savings=true
expect app '' $rings --set optimizer.use=addam
