#!/bin/sh
# run.sh [--libtorch DIR] [--seconds N] [--again] [PART]...: tries Vernier on this machine's GPU (docs/guides/gpu.md).
#
# Needs a Python 3 with torch, and nothing else. Writes result.json, result.md and log/ beside this file.
set -eu
here=$(dirname "$(readlink -f "$0")")
exec "${PYTHON:-python3}" "$here/run.py" "$@"
