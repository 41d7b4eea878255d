#!/bin/sh
# other_languages.sh LANGUAGE VERNIER SOURCE BUILD: a program of examples/other_languages, built in BUILD, ends with the
# weights of `vernier` that reads the same numbers from files, to the last bit. LANGUAGE is c, fortran or ranks.
#
# Exit status 77 (skipped) where the program was not built, because there is no compiler for it.
set -eu
language=$1 vernier=$2 toml=$3/oscillator.toml program=$4/oscillator_$1
unset VERNIER_PLUGIN_PATH
fail() { echo "$1"; exit 1; }
if [ ! -x "$program" ]; then
  case $language in
    fortran) echo "skipped: gfortran is not installed" ;;
    ranks) echo "skipped: Open MPI is not installed (libopenmpi-dev, openmpi-bin)" ;;
    *) fail "$program was not built" ;;
  esac
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/files" "$work/program"
cd "$work/files"
python3 - <<'END'
import struct
rows, place, speed = 512, 1.5, 0.0
states, forces = [], []
for _ in range(rows):
    states += [place, speed]
    forces.append(-place - place * place * place - 0.05 * speed)
    speed += 0.05 * forces[-1]
    place += 0.05 * speed
for name, numbers, shape in (('states', states, '(%d, 2)' % rows), ('forces', forces, '(%d,)' % rows)):
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': %s, }" % shape
    header = header.ljust(117) + '\n'
    with open(name + '.npy', 'wb') as file:
        file.write(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header.encode())
        file.write(struct.pack('<%dd' % len(numbers), *numbers))
END

# The place of these tests among ranks does not count, where a launcher has started them.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
cd "$work/program"
if [ "$language" = ranks ]; then
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
  train="launch -n 2"
  set -- mpirun -n 2 "$program"
else
  train=train
  set -- "$program"
fi
"$@" "$toml" >"$work/printed" 2>&1 || { cat "$work/printed"; fail "$program failed"; }
cd "$work/files"
# shellcheck disable=SC2086  # two words
"$vernier" $train "$toml" >"$work/printed" 2>&1 || { cat "$work/printed"; fail "vernier $train failed"; }
digest() { grep -o '"digest": "[^"]*"' "$work/$1/runs/oscillator/summary.json"; }
[ -n "$(digest files)" ] || fail "summary.json has no digest"
[ "$(digest program)" = "$(digest files)" ] ||
  fail "the program ends with $(digest program), and vernier $train with $(digest files)"
