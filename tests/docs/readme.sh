#!/bin/sh
# readme.sh VERNIER README EXAMPLE: the README shows the example as it is, and names every plugin that there is.
set -eu
unset VERNIER_PLUGIN_PATH
vernier=$1 readme=$2 example=$3

shown=$(mktemp)
trap 'rm -f "$shown"' EXIT
# The block of C++ that makes a plugin.
awk '/^```/ {if (block ~ /VERNIER_PLUGIN/) printf "%s", block; cpp = /^```cpp$/; block = ""; next}
  cpp {block = block $0 "\n"}' "$readme" >"$shown"
diff -u "$shown" "$example" || { echo "$readme shows something else than $example"; exit 1; }

"$vernier" plugins | awk '/^  / {print role, $1; next} !/^`/ {role = $1}' | while read -r role name; do
  grep -qE "^\| \`$role\` .*\`$name\`" "$readme" || { echo "$readme: the table of plugins lacks $role/$name"; exit 1; }
done
