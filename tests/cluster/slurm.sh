#!/bin/sh
# slurm.sh BUILD SOURCE: the scripts of examples/slurm, as jobs of a real Slurm on this machine alone.
#
# It needs root and Debian's packages: apt-get install --no-install-recommends slurm-wlm munge. Without them it is
# skipped, with exit code 77. SLURM_ROOT may name a folder into which the packages were only unpacked (dpkg -x).
# Nothing of the machine's own Slurm is touched: configuration, keys, ports and folders are the test's own.
set -eu
build=$1 source=$2
root=${SLURM_ROOT:-}
folder=$root/usr/lib/$(uname -m)-linux-gnu
export PATH="$build:$root/usr/bin:$root/usr/sbin:$PATH"
[ -z "$root" ] || export LD_LIBRARY_PATH="$folder:$folder/slurm-wlm"
unset VERNIER_PLUGIN_PATH OMP_NUM_THREADS

skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip 'only root can start the daemons of Slurm'
for program in munged slurmctld-wlm slurmd-wlm slurmstepd-wlm sbatch srun; do
  command -v $program >/dev/null || skip "there is no $program: apt-get install --no-install-recommends slurm-wlm munge"
done

work=$(mktemp -d)
chmod 755 "$work"
finish() {
  status=$?
  if [ "$status" -ne 0 ]; then
    echo "test: failed with $status" >&2
    tail -n 30 "$work"/log/*.log "$work"/jobs/*.log >&2 || true
  fi
  [ ! -e "$SLURM_CONF" ] || scancel --user=root 2>/dev/null || true
  [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
  for daemon in slurmd slurmctld munge; do
    [ ! -e "$work/run/$daemon.pid" ] || kill "$(cat "$work/run/$daemon.pid")" || true
  done
  rm -rf "$work"
  exit "$status"
}
export SLURM_CONF="$work/slurm.conf"
trap finish EXIT
fail() { echo "$*" >&2; exit 1; }

# --- a cluster of one machine -------------------------------------------------------------------------

mkdir -p "$work/run" "$work/log" "$work/spool/ctld" "$work/spool/d" "$work/jobs"
dd if=/dev/urandom of="$work/munge.key" bs=1 count=1024 2>/dev/null
chmod 400 "$work/munge.key"
munged --key-file="$work/munge.key" --socket="$work/run/munge.sock" --pid-file="$work/run/munge.pid" \
  --log-file="$work/log/munged.log" --seed-file="$work/run/munge.seed" --num-threads=1
host=$(hostname)
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/run/munge.sock,cred_expire=5
PluginDir=$folder/slurm-wlm
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$work/spool/ctld
SlurmdSpoolDir=$work/spool/d
SlurmctldPidFile=$work/run/slurmctld.pid
SlurmdPidFile=$work/run/slurmd.pid
SlurmctldLogFile=$work/log/slurmctld.log
SlurmdLogFile=$work/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
slurmctld-wlm -i
sleep 1
slurmd-wlm -d "$(command -v slurmstepd-wlm)"

# wait_until SECONDS COMMAND...
wait_until() {
  left=$1
  shift
  until "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    [ "$left" -gt 0 ] || fail "waited in vain for: $*"
    sleep 1
  done
}
is_idle() { sinfo --noheader --format=%T | grep -qx idle; }
has_ended() { ! squeue --noheader --format=%i | grep -q .; }
wait_until 60 is_idle

# --- jobs ---------------------------------------------------------------------------------------------

cd "$work/jobs"
cat >run.toml <<'TOML'
[run]
steps = 60
device = "cpu"
[task]
use = "mlp"
samples = 256
[optimizer]
use = "adamw"
[[callback]]
use = "inject"
what = "slow"
milliseconds = 100
at_step = 1
every = 1
[[monitor]]
use = "jsonl"
TOML

# said RUN KEY: a value of its summary.json, as JSON.
said() {
  python3 -c 'import json, sys
value = json.load(open(sys.argv[1] + "/summary.json"))
for key in sys.argv[2].split("."): value = value[key]
print(json.dumps(value))' "$1" "$2"
}
# expect RUN KEY VALUE
expect() {
  value=$(said "$1" "$2")
  [ "$value" = "$3" ] || fail "$1: $2 is $value, and not $3"
}
# submit WORD...: the number of the job.
submit() { sbatch --parsable "$@"; }

echo 'the environment chooses precision and batch'
scripts=$source/examples/slurm
PRECISION=bf16 BATCH_SIZE=16 submit "$scripts/train.sbatch" run.toml --set run.steps=5 --set run.name=first >/dev/null
wait_until 60 has_ended
expect runs/first ended_by '"done"'
expect runs/first configuration.precision.use '"bf16"'
expect runs/first configuration.task.batch_size 16

# preempt TASKS COMMAND...: the command trains the same as the job would if nothing stopped it.
preempt() {
  tasks=$1
  shift
  echo "a preempted job with --ntasks=$tasks saves, goes back into the queue, and ends with the same bits"
  OMP_NUM_THREADS=1 "$@" --quiet --set run.output="plain-$tasks"
  name=tasks-$tasks run=runs/tasks-$tasks
  job=$(submit --job-name="$name" --ntasks="$tasks" "$scripts/train.sbatch" run.toml --set run.name="$name")
  wait_until 60 has_trained
  scancel --signal=USR1 "$job"
  wait_until 60 was_requeued
  expect "$run" ended_by '"signal 10"'
  wait_until 150 has_ended
  grep -q 'resumed after step' "$name-$job.log" || fail 'the job has not resumed its run'
  expect "$run" ended_by '"done"'
  expect "$run" steps 60
  expect "$run" digest "$(said "plain-$tasks" digest)"
  [ ! -e "$run-2" ] || fail 'the tasks have trained two runs'
}
has_trained() { [ "$(wc -l <"$run/losses.jsonl")" -ge 10 ]; }
was_requeued() { scontrol show job "$job" | grep -q 'Restarts=1'; }
preempt 1 vernier train run.toml
preempt 2 vernier launch -n 2 run.toml

echo 'each task of an array has its settings'
array=$(submit --array=1-2 "$scripts/sweep.sbatch" run.toml \
  'optimizer.learning_rate=0.25 run.steps=3' 'precision.use=bf16 run.steps=4')
wait_until 90 has_ended
expect "runs/sweep-$array/1" configuration.optimizer.learning_rate 0.25
expect "runs/sweep-$array/1" steps 3
expect "runs/sweep-$array/2" configuration.precision.use '"bf16"'
expect "runs/sweep-$array/2" steps 4
echo 'vernier serve --slurm hands jobs over, which train, are cancelled with a checkpoint, and go on from it'
cp run.toml served.toml
vernier serve "$work/served" --listen 127.0.0.1:0 --slurm --sbatch=--partition=main 2>"$work/log/served.log" &
server=$!
wait_until 20 test -e "$work/served/server.url"
jobs() { vernier jobs --folder "$work/served" "$@"; }
[ "$(jobs submit served.toml)" = 'job 1 is queued' ] || fail 'the job was not taken'
[ "$(jobs submit served.toml --cores 2 --set run.steps=3)" = 'job 2 is queued' ] || fail 'the second was not taken'
is() { jobs show "$1" | grep -q "^state *$2$"; }
run=$work/served/jobs/1/run
wait_until 60 has_trained
is 1 running || fail 'the first does not run'
is 2 queued || fail 'the second, which needs all cores, does not wait'
jobs cancel 1
wait_until 60 is 1 cancelled
jobs retry 1
wait_until 150 is 1 "done"
jobs logs 1 | grep -q 'resumed after step' || fail 'the served job has not resumed its run'
expect "$run" digest "$(said plain-1 digest)"
wait_until 60 is 2 "done"
echo 'all is well'
