#!/bin/sh
# lists.sh VERNIER ROOT: lists in the documents are those of the tree and of the program: rooms, verbs, and the
# order of `prepare`.
# shellcheck disable=SC2016  # backquotes are Markdown's
set -eu
vernier=$1
cd "$2"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
failed=0
differ() { # FIRST SECOND MESSAGE
  diff -u "$made/$1" "$made/$2" || { echo "$3"; failed=1; }
}

# Rooms: each table of "## The rooms" is headed by a folder, and its rows name the folders in it that have sources.
page=docs/architecture.md
rooms=$(awk '/^## / {below = /^## The rooms$/} below' "$page")
for folder in sdk sdk/core framework framework/runner framework/tools framework/service; do
  printf '%s\n' "$rooms" | awk -v head="| \`$folder/\` | content |" '
    $0 == head {inside = 1; next}
    !/^\|/ {inside = 0}
    inside {split($0, cell, "|"); print cell[2]}' | grep -oE '`[a-z_]+`' | tr -d '`' | sort >"$made/rooms"
  for room in "$folder"/*/; do
    name=$(basename "$room")
    case $name in include | shell | cmake | template*) continue ;; esac
    find "$room" -name '*.cpp' -o -name '*.h' | grep -q . && echo "$name"
  done | sort >"$made/folders"
  differ rooms folders "$page: the table of $folder/ and the folders in it differ"
done

# Verbs: the table of docs/reference/command-line.md has those that the program completes.
page=docs/reference/command-line.md
awk '/^## / {below = /^## Verbs and options$/}
  below && /^\| `(vernier )?[a-z]/ {split($0, cell, / \| /); print cell[1]}' "$page" | grep -oE '`[^`]+`' |
  sed -E 's/^`(vernier )?([a-z-]+).*/\2/' | sort -u >"$made/shown"
"$vernier" complete '' | sort >"$made/verbs"
differ shown verbs "$page: the table of verbs and the program differ"

# The order of prepare: distributed before the roles in the order of roles_and_defaults(), then the plugins without role.
order=$(awk '/roles_and_defaults\(\) \{/ {inside = 1} /^}/ {inside = 0} inside' framework/runner/wiring/wiring.cpp |
  grep -oE '[A-Z][a-z]+::role' | sed 's/::role//' | tr '[:upper:]' '[:lower:]' | grep -vx distributed | tr '\n' ' ')
order="distributed $order""callbacks monitors"
for page in docs/architecture.md docs/guides/write-a-plugin.md sdk/plugin/include/vernier/plugin.h; do
  tr -s '/ \n' ' ' <"$page" | tr -d ',' | grep -qF "in the order $order" ||
    { echo "$page does not say the order of prepare: $order"; failed=1; }
done

exit $failed
