#!/bin/sh
# cxx17.sh COMPILER SOURCE LIBTORCH: fails where a header of the contract says anything but one clear sentence to C++17.
set -eu
includes=$(find "$2/sdk" "$2/framework/embed" -type d -name include | sed 's/^/-I/')
for header in sdk plugin error roles trainer toolkit; do
  # shellcheck disable=SC2086  # each folder is a word
  if said=$(echo "#include <vernier/$header.h>" | "$1" -std=c++17 -fsyntax-only -x c++ $includes \
    -isystem "$3/include" -isystem "$3/include/torch/csrc/api/include" - 2>&1); then
    echo "<vernier/$header.h> compiles as C++17"; exit 1
  fi
  errors=$(echo "$said" | grep 'error:' | grep -v 'needs_cxx20.h') || true
  case $errors in
    *"
"*) echo "$said"; exit 1 ;;
    *'Vernier needs C++20: compile with -std=c++20'*) ;;
    *) echo "$said"; exit 1 ;;
  esac
done
