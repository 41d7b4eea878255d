#!/bin/sh
# classes.sh ROOT: no class has over 20 functions; constructors count, and overloads are one. In the runner and the
# contract there is no exception. Elsewhere classes.allow has those that are larger, each with its count, which only shrinks.
#
# Exit status 77 (skipped) where universal-ctags is missing.
set -eu
cd "$1"
ctags --version 2>/dev/null | grep -q 'Universal Ctags' || { echo "skipped: universal-ctags is not installed"; exit 77; }
find framework sdk plugins -name '*.h' | grep -vE '/templates?(_task)?/' | LC_ALL=C sort |
  ctags -x --kinds-C++=pf --language-force=C++ --_xformat='%{scopeKind}|%{scope}|%F|%N' -L - |
  awk -F'|' -v allowed=tests/docs/classes.allow '
    BEGIN {
      while ((getline line <allowed) > 0) if (line !~ /^#/ && split(line, part, " ") == 2) most[part[2]] = part[1]
    }
    $1 == "class" || $1 == "struct" { ++functions[$3 ~ /^(framework\/runner|sdk\/plugin)\// ? "!" $2 : $2] }
    END {
      for (name in functions) {
        class = name
        sub(/^!/, "", class)
        if (functions[name] <= 20) continue
        large[class] = 1
        if (name != class) {
          print class " has " functions[name] " functions, and in the runner and the contract no class has over 20"
        } else if (functions[name] != most[class]) {
          print class " has " functions[name] " functions, and " allowed " says " (class in most ? most[class] : "at most 20") \
            (functions[name] < most[class] ? ": lower its line" : ": take some out")
        } else {
          continue
        }
        is_wrong = 1
      }
      for (class in most) {
        if (class in large) continue
        print class " has at most 20 functions now: take its line out of " allowed
        is_wrong = 1
      }
      exit is_wrong
    }
  '
