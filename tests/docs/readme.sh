#!/bin/sh
# readme.sh VERNIER ROOT: the README and the pages that it stands for show what is there. The README is short, its plugin
# is that of examples/custom_precision, and its figures are rows of the page on performance. The page of the toolkit
# shows the loop of examples/own_loop, and that of plugins every plugin. The README's commands run in their order.
set -eu
unset VERNIER_PLUGIN_PATH
vernier=$1
cd "$2"

shown=$(mktemp) source=$(mktemp) work=$(mktemp -d)
trap 'rm -rf "$shown" "$source" "$work"' EXIT
# Prints the block of C++ in PAGE that has PATTERN.
block() { # PAGE PATTERN
  awk -v pattern="$2" '/^```/ {if (block ~ pattern) printf "%s", block; cpp = /^```cpp$/; block = ""; next}
    cpp {block = block $0 "\n"}' "$1"
}

[ "$(wc -c <README.md)" -le 6000 ] || { echo "README.md has more than 6000 bytes"; exit 1; }

plugin=examples/custom_precision/warm_bf16.cpp
block README.md VERNIER_PLUGIN >"$shown"
diff -u "$shown" $plugin || { echo "README.md shows something else than $plugin"; exit 1; }

# The block without its #include; the function's body, without its indentation.
page=docs/guides/toolkit.md loop=examples/own_loop/train.h
block $page '^#include <vernier/toolkit.h>' | sed 1,2d >"$shown"
awk '/^inline void train/ {inside = 1} /^}/ {inside = 0} body {sub(/^  /, ""); if (inside) print}
  inside && /{$/ {body = 1}' $loop >"$source"
[ -s "$source" ] || { echo "$loop has no function train"; exit 1; }
diff -u "$shown" "$source" || { echo "$page shows another loop than $loop"; exit 1; }

page=docs/design/performance.md
grep -E '^\| .*[0-9]x\)' README.md >"$shown"
[ "$(wc -l <"$shown")" -ge 3 ] || { echo "README.md has no table of figures"; exit 1; }
while IFS= read -r row; do
  grep -qxF "$row" $page || { echo "$page does not have the figures of README.md: $row"; exit 1; }
done <"$shown"

page=docs/reference/plugins.md
"$vernier" plugins | awk '/^  / {print role, $1; next} !/^`/ {role = $1}' | while read -r role name; do
  grep -qE "^\| \`$role\` .*\`$name\`" $page || { echo "$page: the table of plugins lacks $role/$name"; exit 1; }
done

# Three steps on a page for the quickstart. `./vernier test` runs this.
cp -r README.md configs "$work"
sh examples/data/flats.sh 200 >"$work/flats.csv"
awk '/^```/ {sh = /^```sh$/; next} sh && /^\.\/vernier/ && !/vernier test/' README.md |
  sed "s|^\./vernier|$vernier|; s/train flats.toml/& --set run.epochs=2/
    s|quickstart.toml|& --set run.steps=3 --set callback.schedule.warmup_steps=1 --set 'task.data=[\"README.md\"]'|" >"$shown"
[ "$(wc -l <"$shown")" -ge 7 ] || { echo "README.md has fewer commands"; exit 1; }
(cd "$work" && head -n 20 flats.csv >new.csv && sh -eu "$shown" >"$source" 2>&1 && head -n 1 rents.csv | grep -qx rent) ||
  { cat "$source"; echo "README.md: a command failed"; exit 1; }
