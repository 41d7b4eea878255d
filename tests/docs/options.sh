#!/bin/sh
# The tables of options in docs/config.md are what the plugins themselves declare.
#
#   options.sh VERNIER FILE            fails where FILE says something else
#   options.sh VERNIER FILE --write    writes them into FILE
#
# Between the lines <!-- options --> and <!-- /options --> of FILE, from `vernier plugins run` and `vernier plugins role/name`.
set -eu
unset VERNIER_PLUGIN_PATH
vernier=$1 file=$2

rows() {
  # shellcheck disable=SC2016  # nothing is to expand in it
  "$vernier" plugins "$1" | sed -nE '
    s/.*: no options$/No options./p
    /^  [a-z]/ {
      N
      s/\|/\\|/g
      s/^  ([^ ]+) = (.*)   \(([^()]*|.*)\)\n +(.*)$/| `\1` | `\2` | \3 | \4 |/p
    }'
}

tables() {
  ids=$("$vernier" plugins | awk '/^  / {print role "/" $1; next} !/^`/ {role = $1}')
  for id in run $ids; do
    rows=$(rows "$id")
    printf '### %s\n\n' "$id"
    case $rows in '|'*) printf '| key | default | takes | meaning |\n| --- | --- | --- | --- |\n' ;; esac
    printf '%s\n\n' "$rows"
  done
}

made=$(mktemp)
trap 'rm -f "$made"' EXIT
{
  sed '/^<!-- options -->$/q' "$file"
  echo
  tables
  sed -n '/^<!-- \/options -->$/,$p' "$file"
} >"$made"

if [ "${3:-}" = --write ]; then
  cat "$made" >"$file"
elif ! diff -u "$file" "$made"; then
  echo "docs/config.md and the plugins disagree: tests/docs/options.sh $vernier $file --write"
  exit 1
fi
