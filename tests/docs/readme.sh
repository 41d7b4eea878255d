#!/bin/sh
# readme.sh VERNIER README PLUGIN LOOP: the README shows the plugin and the body of the loop's function as they are, and
# names every plugin that there is.
set -eu
unset VERNIER_PLUGIN_PATH
vernier=$1 readme=$2 example=$3 loop=$4

shown=$(mktemp) source=$(mktemp)
trap 'rm -f "$shown" "$source"' EXIT
# The block of C++ that makes a plugin.
awk '/^```/ {if (block ~ /VERNIER_PLUGIN/) printf "%s", block; cpp = /^```cpp$/; block = ""; next}
  cpp {block = block $0 "\n"}' "$readme" >"$shown"
diff -u "$shown" "$example" || { echo "$readme shows something else than $example"; exit 1; }

# The block of C++ that has a loop, without its #include; the function's body, without its indentation.
awk '/^```/ {if (block ~ /GradScaler scaler/) printf "%s", block; cpp = /^```cpp$/; block = ""; next}
  cpp {block = block $0 "\n"}' "$readme" | sed 1,2d >"$shown"
awk '/^inline void train/ {inside = 1} /^}/ {inside = 0} body {sub(/^  /, ""); if (inside) print} inside && /{$/ {body = 1}' \
  "$loop" >"$source"
diff -u "$shown" "$source" || { echo "$readme shows another loop than $loop"; exit 1; }

"$vernier" plugins | awk '/^  / {print role, $1; next} !/^`/ {role = $1}' | while read -r role name; do
  grep -qE "^\| \`$role\` .*\`$name\`" "$readme" || { echo "$readme: the table of plugins lacks $role/$name"; exit 1; }
done
