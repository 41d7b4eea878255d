#!/bin/sh
# Doxygen reads each header through this. Our comments are plain ones and may say '\t', '\n' and <random>, and those that begin
# with three blanks are code.
sed -e '\|//|{s|\\t|\\\\t|g; s|\\n|\\\\n|g; s|//\(.*\)<\([a-z]*\)>|//\1\&lt;\2\&gt;|}' -e '/^ *\/\/   /s/vernier::/%vernier::/g' \
  -e '1s|^// |/// \\file\n/// |; t' -e 's|^\( *\)// |\1/// |; t' -e 's|\([;,{}(] *\)// |\1///< |' "$1"
