#!/bin/sh
# code_hash.sh HEADER...: prints a hash of the headers' code as 8 hexadecimal digits. Comments and white space do not
# count, nor does the line that defines VERNIER_ABI.
#
# With --abi alone, prints the value of VERNIER_ABI for the contract's headers as they are now. With --write alone,
# writes it into abi.h if another one is there: a header that is written anew makes everything compile again.
set -eu
contract=$(dirname "$0")/../plugin/include/vernier
code_hash() {
  printf '%s\n' "$@" | LC_ALL=C sort | while read -r header; do
    sed -e '/^#define VERNIER_ABI /d' -e 's,//.*,,' "$header" | tr -d ' \t\n'
  done | cksum | { read -r sum rest; printf '%08x\n' "$sum"; }
}
case $1 in
  --abi) echo "0x$(code_hash "$contract"/*.h)" ;;
  --write)
    line="#define VERNIER_ABI 0x$(code_hash "$contract"/*.h)"
    grep -q "^$line\$" "$contract/abi.h" || sed -i "s/^#define VERNIER_ABI .*/$line/" "$contract/abi.h"
    ;;
  *) code_hash "$@" ;;
esac
