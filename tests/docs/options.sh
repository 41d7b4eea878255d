#!/bin/sh
# The tables of options in docs/reference/config are what the plugins themselves declare.
#
#   options.sh VERNIER FOLDER            fails if a page says something else, or a role has no page
#   options.sh VERNIER FOLDER --write    writes them into the pages
#
# <role>.md has the plugins of its role, README.md has [run]: between the lines <!-- options --> and <!-- /options -->,
# from `vernier plugins run` and `vernier plugins role/name…`.
set -eu
unset VERNIER_PLUGIN_PATH
vernier=$1 folder=$2

tables() { # ID...
  # shellcheck disable=SC2016  # nothing is to expand in the script
  "$vernier" plugins "$@" | sed -nE '
    /^[a-z]/ {
      s/: no options$/\n\nNo options./
      /No options/ ! s/$/\n\n| key | default | takes | meaning |\n| --- | --- | --- | --- |/
      s/^/\n## /p
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
ids=$("$vernier" plugins | awk '/^  / {print role "/" $1; next} !/^`/ {role = $1}')
failed=0
for role in README $(echo "$ids" | sed 's|/.*||' | sort -u); do
  page=$folder/$role.md
  [ -e "$page" ] || { echo "there is no $page"; failed=1; continue; }
  {
    sed '/^<!-- options -->$/q' "$page"
    # shellcheck disable=SC2046  # each id is a word
    case $role in README) tables run ;; *) tables $(echo "$ids" | grep "^$role/") ;; esac
    sed -n '/^<!-- \/options -->$/,$p' "$page"
  } >"$made"
  if [ "${3:-}" = --write ]; then
    cat "$made" >"$page"
  elif ! diff -u "$page" "$made"; then
    echo "$page and the plugins disagree: tests/docs/options.sh $vernier $folder --write"
    failed=1
  fi
done
exit $failed
