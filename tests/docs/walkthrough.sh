#!/bin/sh
# walkthrough.sh PAGE SOURCE BUILD: runs the commands of a page in an empty folder and compares what they print.
#
# A block of ```sh is run by one shell for the whole page, so `cd` lasts. The block of ```text after it is what it prints.
# There, "..." in a line stands for any text, and a line of it alone for any lines. A block of ```toml that begins with
# "# NAME" is written to that file.
set -eu
page=$1
VERNIER_SOURCE=$2 VERNIER_BUILD=$3
export VERNIER_SOURCE VERNIER_BUILD
PATH=$VERNIER_BUILD:$PATH
unset VERNIER_PLUGIN_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export CCACHE_BASEDIR="$work"  # another folder each time, and the same objects

# One script of all commands, with a mark before the output of each; and a file of expected lines for each.
awk -v work="$work" '
  /^```/ && kind == "" { kind = substr($0, 4); lines = 0; file = ""; if (kind == "sh") ++block
    if (kind == "sh") printf "printf \"%%s\\n\" \"@@ %d\"\n", block
    next }
  /^```/ { kind = ""; next }
  kind != "" { ++lines }
  kind == "cpp" { print > (work "/.shown.cpp") }
  kind == "sh" { print }
  kind == "text" { print > (work "/.expected-" block) }
  kind == "toml" { if (lines == 1 && /^# [^ ]+$/) file = substr($0, 3); if (file) print > (work "/" file) }
' "$page" >.script
sh -eu .script >.printed 2>.errors || { cat .printed .errors; echo "$page: a command failed"; exit 1; }
awk -v work="$work" '/^@@ / { out = work "/.printed-" $2; printf "" > out; next } { print > out }' .printed

# The source that the page shows is the one that `vernier new` has written.
[ ! -e .shown.cpp ] || diff -u .shown.cpp points/points.cpp || { echo "$page shows another source"; exit 1; }

# Compares a file of lines with a pattern file.
matches() {
  awk -v expected="$1" '
    function fits(line, pattern,  parts, count, i, at) {
      count = split(pattern, parts, "[.][.][.]")
      if (substr(line, 1, length(parts[1])) != parts[1]) return 0
      line = substr(line, length(parts[1]) + 1)
      for (i = 2; i <= count; ++i) {
        if (i == count && parts[i] == "") return 1
        at = index(line, parts[i])
        if (at == 0) return 0
        line = substr(line, at + length(parts[i]))
      }
      return count > 1 || line == ""
    }
    function all_fit(row, at) {
      for (; at <= wanted; ++at) {
        if (want[at] == "...") {
          for (; row <= NR + 1; ++row) if (all_fit(row, at + 1)) return 1
          return 0
        }
        if (row > NR || !fits(have[row], want[at])) return 0
        ++row
      }
      return row == NR + 1
    }
    BEGIN { while ((getline line < expected) > 0) want[++wanted] = line }
    { have[NR] = $0 }
    END { exit all_fit(1, 1) ? 0 : 1 }' "$2"
}
for expected in .expected-*; do
  printed=.printed-${expected#.expected-}
  matches "$expected" "$printed" && continue
  echo "$page: wanted"
  cat "$expected"
  echo "but it printed"
  cat "$printed"
  exit 1
done
