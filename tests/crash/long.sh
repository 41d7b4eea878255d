#!/bin/sh
# The crash test's long form: every fault at every system call of longer runs, many more states of a disk after a loss
# of power, and kill -9 at random times for so many minutes (10).
#
#   tests/crash/long.sh [MINUTES] [BUILD FOLDER]
set -eu
cd "$(dirname "$0")/../.."
VERNIER_CRASH=long VERNIER_CRASH_MINUTES=${1:-10} exec "${2:-build/release}/test_crash" --duration=true
