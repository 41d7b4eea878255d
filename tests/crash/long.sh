#!/bin/sh
# The crash test's long form: longer runs, and of every fault at every system call, of the states of a disk after a loss
# of power, and of kill -9 at random times, as many as can be tried in so many minutes (20), in random order. What was
# tried is told at the end of each case.
#
#   tests/crash/long.sh [MINUTES] [BUILD FOLDER]
set -eu
cd "$(dirname "$0")/../.."
VERNIER_CRASH_MINUTES=${1:-20} exec "${2:-build/release}/test_crash" --duration=true
