#!/bin/sh
# step.sh ROOT: docs/architecture.md shows Step::step as it is: in the first block of C++ below "## The step".
set -eu
cd "$1"
document=docs/architecture.md source=framework/runner/run/step.cpp

of_the_step='/^void Step::step\(/ {shown = 1} shown {print} shown && /^}/ {exit}'
function=$(awk "$of_the_step" "$source")
[ -n "$function" ] || { echo "$source has no function Step::step"; exit 1; }
block=$(awk '
  /^## / {below = /^## The step$/; next}
  below && /^```cpp$/ {inside = 1; next}
  inside && /^```$/ {exit}
  inside {print}' "$document")

case "
$block
" in *"
$function
"*) exit 0 ;; esac

told=$(mktemp -d)
trap 'rm -rf "$told"' EXIT
printf '%s\n' "$block" | awk "$of_the_step" >"$told/shown"
printf '%s\n' "$function" >"$told/source"
diff -u "$told/shown" "$told/source" || true
echo "$document shows another Step::step than $source"
exit 1
