#!/bin/sh
# Trains one run on several machines that ssh reaches, each with as many ranks:
#
#   HOSTS="one two" sh ssh.sh -n 4 run.toml --set run.steps=1000
#
# The ranks meet on the first machine. All machines have this folder at the same path, as a shared file system gives it.
# Words are those of `vernier launch`. Ctrl-C stops all ranks after the same step, with a checkpoint.
#
# Environment:
#   HOSTS     names or addresses of the machines; each reaches the first one by the name that stands here
#   PORT      a port that is free on the first machine (29500)
#   VERNIER   the program (vernier)
#   SSH       the command that runs another one on a machine (ssh -tt)
set -eu

[ -n "${HOSTS:-}" ] || { echo 'name the machines, as in: HOSTS="one two" sh ssh.sh -n 4 run.toml' >&2; exit 2; }
[ $# -gt 0 ] || { echo 'name a TOML file, as in: HOSTS="one two" sh ssh.sh -n 4 run.toml' >&2; exit 2; }

# Quotes a word for the other machine's shell.
quoted() { printf "'%s' " "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }

words=
for word in "$@"; do words="$words$(quoted "$word")"; done
# shellcheck disable=SC2086
set -- $HOSTS
first=$1 count=$# node=0 processes=
for host in "$@"; do
  # A terminal (-tt) passes the end of this ssh on to the ranks, as SIGHUP: they stop with a checkpoint.
  ${SSH:-ssh -tt} "$host" "cd $(quoted "$PWD")&& exec ${VERNIER:-vernier} launch --nodes $count --node-rank $node \
--address $first:${PORT:-29500} $words" </dev/null &
  processes="$processes $!"
  node=$((node + 1))
done

# shellcheck disable=SC2086
trap 'kill $processes 2>/dev/null' INT TERM HUP
status=0
for process in $processes; do
  each=0
  wait "$process" || each=$?
  [ "$status" -ne 0 ] || status=$each
done
exit "$status"
