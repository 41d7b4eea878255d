#!/bin/sh
# shown.sh PAGE SOURCE [LANGUAGE]: the page shows the source as it is, in its first block of C++ or that language.
set -eu
page=$1 source=$2 language=${3:-cpp}
shown=$(mktemp)
trap 'rm -f "$shown"' EXIT
awk -v begin="\`\`\`$language" '/^```/ { if (inside) exit; inside = $0 == begin; next } inside' "$page" >"$shown"
diff -u "$shown" "$source" || { echo "$page shows something else than $source"; exit 1; }
