#!/bin/sh
# pack.sh SOURCE BUILD OUT: fills the folder OUT with what is built, for a machine that has Python, torch and a GPU alone.
#
# The programs are those of an installation, stripped, with the libraries that they need, except LibTorch's and those of
# the C library and the compiler. run.sh there tries everything.
set -eu
source=$1 build=$2 out=$3
most=62914560  # bytes: 60 MiB, so that it fits through a narrow door
rm -rf "$out"
mkdir -p "$out"
cmake --install "$build" --prefix "$out/vernier" --strip >"$out/install.log" || { tail "$out/install.log"; exit 1; }
rm -r "$out/install.log" "$out/vernier/lib/libtorch" "$out/vernier/include" "$out/vernier/lib/cmake" "$out/vernier/share"
for verb in audit data digits evaluate export formats generate jobs new new-toml predict quickstart schema serve tokenize watch; do  # nobody calls them there
  rm -f "$out/vernier/bin/vernier-$verb"
done
cp "$build/test_sdk_apart" "$out/vernier/bin"
sh "$source/packaging/bundle.sh" "$out/vernier" >"$out/bundled.log"
rm "$out/bundled.log"

cp "$source"/tests/gpu/run.sh "$source"/tests/gpu/run.py "$source"/tests/gpu/parts.py "$source"/tests/gpu/gpt_pytorch.py \
  "$source"/docs/guides/gpu.md "$out"
git -C "$source" describe --always --dirty --tags >"$out/VERSION" 2>/dev/null || echo unknown >"$out/VERSION"

size=$(du -sb "$out" | cut -f 1)
[ "$size" -le "$most" ] || { echo "the pack has $size bytes, and $most at most may be sent"; exit 1; }
echo "$out: $((size / 1048576)) MiB; there: sh run.sh"
