#!/bin/sh
# The tables of options in docs/config.md are what the plugins themselves declare.
#
#   options.sh VERNIER FILE            fails where FILE says something else
#   options.sh VERNIER FILE --write    writes them into FILE
#
# Between the lines <!-- options --> and <!-- /options --> of FILE, from `vernier plugins run role/name…`.
set -eu
unset VERNIER_PLUGIN_PATH
vernier=$1 file=$2

tables() {
  ids=$("$vernier" plugins | awk '/^  / {print role "/" $1; next} !/^`/ {role = $1}')
  # shellcheck disable=SC2016,SC2086  # nothing is to expand in the script; each id is a word
  "$vernier" plugins run $ids | sed -nE '
    /^[a-z]/ {
      s/: no options$/\n\nNo options./
      /No options/ ! s/$/\n\n| key | default | takes | meaning |\n| --- | --- | --- | --- |/
      s/^/\n### /p
    }
    /^  [a-z]/ {
      N
      s/\|/\\|/g
      s/^  ([^ ]+) = (.*)   \(([^()]*|.*)\)\n +(.*)$/| `\1` | `\2` | \3 | \4 |/p
    }'
  echo
}

made=$(mktemp)
trap 'rm -f "$made"' EXIT
{
  sed '/^<!-- options -->$/q' "$file"
  tables
  sed -n '/^<!-- \/options -->$/,$p' "$file"
} >"$made"

if [ "${3:-}" = --write ]; then
  cat "$made" >"$file"
elif ! diff -u "$file" "$made"; then
  echo "docs/config.md and the plugins disagree: tests/docs/options.sh $vernier $file --write"
  exit 1
fi
