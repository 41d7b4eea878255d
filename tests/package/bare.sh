#!/bin/sh
# bare.sh WHEEL WORK [SUITE]...: uses a wheel, or the one in a folder, on bare systems that it makes in folders of WORK:
# trixie (Debian 13) and noble (Ubuntu 24.04), or these suites of debootstrap. On each: the first step in three
# commands, two ranks, a run that goes on after kill -9, a stranger's plugin and program, import vernier, and no trace
# once it is removed. debootstrap of Debian 13 or newer knows noble.
#
# It needs root, debootstrap, and a network for debootstrap and pip; 0.7 GB are downloaded and 2 GB written for each
# system. MIRROR: of the packages, where it is not the suite's own. A system that is there from an earlier call is used
# again. Exit status: 0 all worked, 1 something did not, 77 no system or not all of them could be made; it says why.
set -u
here=$(dirname "$(readlink -f "$0")")
wheel=$1 work=$2
shift 2
[ $# -gt 0 ] || set -- trixie noble
# LibTorch, with what it needs of CUDA on a machine without it.
wheels="torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85"

skip() { echo "bare.sh: not run: $*"; exit 77; }
[ ! -d "$wheel" ] || wheel=$(echo "$wheel"/vernier-*.whl)
[ -f "$wheel" ] || skip "there is no wheel $wheel; ./vernier wheel makes one"
wheel=$(readlink -f "$wheel")
[ "$(id -u)" = 0 ] || skip "only root makes a system in a folder"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
unshare -m true 2>/dev/null || skip "this system allows no namespace of mounts"
mkdir -p "$work"
work=$(readlink -f "$work")

# make SUITE FOLDER: a minimal system, with this machine's name server, certificates and settings of apt and pip.
make_system() {
  [ ! -e "$2/.made" ] || return 0
  rm -rf --one-file-system "$2"
  components=main
  [ "$1" != noble ] || components=main,universe  # which has Python's venv
  debootstrap --variant=minbase --include=ca-certificates --components=$components "$1" "$2" ${MIRROR:+"$MIRROR"} >"$2.log" 2>&1 || return 1
  cp /etc/resolv.conf "$2/etc/resolv.conf"
  cp -r /etc/ssl/certs/. "$2/etc/ssl/certs/"
  for file in /etc/apt/apt.conf.d/* /etc/apt/auth.conf.d/* /etc/pip.conf; do
    case $file in *docker* | *packagekit*) continue ;; esac
    [ ! -f "$file" ] || { mkdir -p "$2${file%/*}" && cp "$file" "$2$file"; }
  done
  touch "$2/.made"
}

# inside FOLDER WORD...: runs a command there as root, with this machine's settings of pip and no others.
# shellcheck disable=SC2016  # expanded by the inner shell
inside() {
  unshare -m sh -eu -c 'root=$1; shift
    mount --bind /dev "$root/dev"; mount -t proc proc "$root/proc"; mount -t tmpfs tmpfs "$root/tmp"
    unset XDG_CACHE_HOME LD_LIBRARY_PATH PYTHONPATH PIP_FIND_LINKS TMPDIR
    HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb exec chroot "$root" "$@"' sh "$@"
}

failed=0 missing=0
for suite; do
  root=$work/$suite
  if ! make_system "$suite" "$root"; then
    echo "bare.sh: $suite: not tried, because debootstrap failed: $(tail -n 1 "$root.log")"
    missing=1
    continue
  fi
  cp "$wheel" "$here/bare_inside.sh" "$root/root/"
  # shellcheck disable=SC1091  # of the new system
  name=$(. "$root/etc/os-release" && echo "$PRETTY_NAME")
  echo "bare.sh: $suite, $name"
  # shellcheck disable=SC2086  # several words
  inside "$root" sh /root/bare_inside.sh "/root/${wheel##*/}" $wheels
  case $? in
    0) echo "bare.sh: $suite, $name: all of it worked" ;;
    77) echo "bare.sh: $suite: not tried, because its packages could not be installed" && missing=1 ;;
    *) echo "bare.sh: $suite, $name: failed in the last step above" && failed=1 ;;
  esac
done
[ $failed = 0 ] || exit 1
[ $missing = 0 ] || exit 77
