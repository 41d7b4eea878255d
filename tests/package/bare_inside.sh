#!/bin/sh
# bare_inside.sh WHEEL TORCH...: what bare.sh does in a bare system: installs the wheel with these packages for LibTorch,
# and uses it. It says each step before it begins. Exit status 77: the system's own packages could not be installed.
set -eu
wheel=$1
shift
step() { echo "- $*"; }
said() { "$@" >said 2>&1 || { tail -n 30 said; exit 1; }; }
step "packages: Python, and a compiler and CMake for the plugin"
export DEBIAN_FRONTEND=noninteractive
(apt-get update && apt-get install -y --no-install-recommends python3-venv python3-pip g++ cmake make) >/root/apt.log 2>&1 ||
  { tail -n 5 /root/apt.log; exit 77; }
rm -rf /root/venv /root/work /root/.cache /root/.local
mkdir -p /root/work
cd /root/work
touch /root/before
sleep 1
step "three commands to the first step"
python3 -m venv /root/venv
/root/venv/bin/pip install --quiet --no-deps --no-cache-dir "$@" "$wheel"
PATH=/root/venv/bin:$PATH
cat >run.toml <<END
[run]
steps = 3
[task]
use = "mlp"
[optimizer]
use = "sgd"
learning_rate = 0.1
[checkpoint]
use = "rolling"
every = 1
END
vernier train run.toml 2>&1 | tee said
grep -q "done after 3 steps" said
vernier --version
step "two ranks"
said vernier launch -n 2 run.toml --set distributed.use=ddp --set run.output=two
grep -q "done after 3 steps" said
step "a run goes on after kill -9"
vernier train run.toml --set run.steps=100000 --set run.output=killed --set checkpoint.every=10 --quiet &
until ls killed/checkpoints/step-*/ >/dev/null 2>&1; do sleep 0.1; done
kill -9 $!
wait || true
vernier checkpoint verify killed
for checkpoint in killed/checkpoints/step-*[0-9]; do last=${checkpoint##*step-}; done
steps=$(($(echo "$last" | sed "s/^0*//") + 5))
said vernier train run.toml --set run.steps=$steps --set run.output=killed --set checkpoint.every=10 --resume
grep -q "done after $steps steps" said
step "a plugin of a stranger"
said vernier new plugin callback mine
said cmake -S mine -B mine/build -DVernier_DIR="$(vernier --cmake-dir)"
said cmake --build mine/build -j 2
said ctest --test-dir mine/build --output-on-failure --no-tests=error
plugin=$(find /root/work/mine/build -name mine.so)
printf '[[callback]]\nuse = "%s"\n' "$plugin" >mine.toml
vernier train run.toml mine.toml --set run.output=with-mine --quiet
step "a program with the trainer in it"
said vernier new app embedded
said cmake -S embedded -B embedded/build -DVernier_DIR="$(vernier --cmake-dir)"
said cmake --build embedded/build -j 2
step "import vernier"
said python3 -c 'import vernier; assert vernier.train("run.toml", run={"output": "imported"}).summary["steps"] == 3'
step "no trace once it is removed"
pip uninstall --quiet --yes vernier
rm -rf /root/.local/state/vernier /root/.cache/vernier  # what docs/start/install.md names
left=$(find / -xdev -cnewer /root/before -iname '*vernier*' -not -path '/root/work/*' -not -path "$wheel")
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
