#!/bin/sh
# links.sh ROOT: every relative link in the documents leads to a file that is there, and to a heading that it has. Each
# path in backquotes is there, too.
set -eu
cd "$1"
for document in README.md docs/*.md docs/decisions/*.md examples/*/README.md; do
  awk '/^ *```/ {code = !code} !code' "$document" | grep -oE '\]\([^)]+\)' | sed 's/^](//; s/)$//' | grep -vE '^https?:' | while read -r link; do
    target=${link%%#*}
    file=$document
    [ -z "$target" ] || file=$(dirname "$document")/$target
    [ -e "$file" ] || { echo "$document: $link leads nowhere"; exit 1; }
    case $link in
      *#*)
        # As hosts make anchors: lower case, no punctuation, spaces to hyphens.
        grep -E '^#+ ' "$file" | sed -E 's/^#+ //' | tr '[:upper:] ' '[:lower:]-' | tr -cd 'a-z0-9_\n-' | grep -qx "${link#*#}" ||
          { echo "$document: $link: no such heading"; exit 1; }
        ;;
    esac
  done
  # shellcheck disable=SC2016  # backquotes of Markdown
  grep -oE '`(framework|sdk|plugins|tests|configs)/[A-Za-z0-9_./-]+`' "$document" | tr -d '`' | grep -vE '/(mine|my_|x[._])' | while read -r path; do
    [ -e "$path" ] || { echo "$document: there is no $path"; exit 1; }
  done
done
