#!/bin/sh
# included_headers.sh BUILD LIBTORCH: fails where a plugin built in BUILD included a library that the SDK must not expose.
set -eu
deps=$(ninja -C "$1" -t deps)
case $deps in *vernier/sdk.h*) ;; *) echo "no record of what was included in $1"; exit 1 ;; esac
# LibTorch brings copies of some of them in its own folder; those are its business.
if echo "$deps" | grep -vF "$2/include/" | grep -E '/(boost|toml\+\+|spdlog|fmt|nlohmann|doctest|xxh)'; then
  echo "the SDK includes more than LibTorch and the standard library"
  exit 1
fi
