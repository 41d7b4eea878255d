#!/bin/sh
# Doxygen reads each file through this. Our comments are plain ones and may say '\t', '\n' and <random>, and those that begin
# with three blanks are code. Of a page's links only those of the web and to whole pages of the reference stay.
case $1 in
  *.h)
    sed -e '\|//|{s|\\t|\\\\t|g; s|\\n|\\\\n|g; s|//\(.*\)<\([a-z]*\)>|//\1\&lt;\2\&gt;|}' -e '/^ *\/\/   /s/vernier::/%vernier::/g' \
      -e '1s|^// |/// \\file\n/// |; t' -e 's|^\( *\)// |\1/// |; t' -e 's|\([;,{}(] *\)// |\1///< |' "$1"
    ;;
  *)
    sed -z -E -e 's/(\]\([^)#]*)#[^)]*\)/\1)/g; s/\]\((toolkit|embedding|write-a-plugin|data|tasks)\.md\)/](@\1)/g' \
      -e 's/\[([^][]*)\]\(([^@h)][^)]*)?\)/\1/g; s/\]\(@([^)]*)\)/](\1.md)/g; s/\\t/\\\\t/g' "$1"
    ;;
esac
