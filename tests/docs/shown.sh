#!/bin/sh
# shown.sh PAGE SOURCE: the page shows the source as it is, in its first block of C++.
set -eu
page=$1 source=$2
shown=$(mktemp)
trap 'rm -f "$shown"' EXIT
awk '/^```/ { if (inside) exit; inside = /^```cpp$/; next } inside' "$page" >"$shown"
diff -u "$shown" "$source" || { echo "$page shows something else than $source"; exit 1; }
