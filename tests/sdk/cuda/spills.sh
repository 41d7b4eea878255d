#!/bin/sh
# spills.sh LIBRARY: no CUDA kernel of the library has a stack or spills registers into memory. The build refuses a
# spill too, but not a stack, which an array with a computed index gets.
set -eu
if [ ! -e "$1" ]; then
  echo "skipped: there is no $1, because nvcc was not found"
  exit 0
fi
cuobjdump=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump 2>/dev/null || true)
if [ -z "$cuobjdump" ]; then
  echo "skipped: this CUDA toolkit has no cuobjdump; the build alone has refused spills"
  exit 0
fi
"$cuobjdump" --dump-resource-usage "$1" | awk '
  / Function / { name = $2 }
  / REG:/ {
    kernels++
    print name, $0
    if ($0 !~ / STACK:0 / || $0 !~ / LOCAL:0 /) { print name " uses memory for its variables"; is_wrong = 1 }
  }
  END {
    if (kernels == 0) print "cuobjdump names no kernel"
    exit is_wrong || kernels == 0
  }'
