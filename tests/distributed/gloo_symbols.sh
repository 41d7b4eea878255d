#!/bin/sh
# gloo_symbols.sh PLUGIN…: the plugins call no function of Gloo, and no class of theirs derives from one of Gloo's. So
# the declarations in plugins/distributed/ddp/gloo_headers cannot disagree with LibTorch's Gloo.
set -eu
calls=' U ((vtable|typeinfo) for )?gloo::'
tables='[^U] (vtable|typeinfo) for (gloo::|c10d::ProcessGroupGloo)'
for plugin; do
  nm -C "$plugin" | grep -q 'U c10d::ProcessGroupGloo::ProcessGroupGloo' || {
    echo "$plugin does not create a ProcessGroupGloo, so this test looks at the wrong file"
    exit 1
  }
  if nm -C "$plugin" | grep -E "$calls|$tables"; then
    echo "$plugin depends on more of Gloo than its names; see plugins/distributed/ddp/gloo_headers/README.md"
    exit 1
  fi
done
