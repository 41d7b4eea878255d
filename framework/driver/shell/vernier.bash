# bash: completion of vernier's verbs, options, plugins and their keys. Installed, it loads by itself; from a source tree:
# . framework/driver/shell/vernier.bash
_vernier() {
  local IFS=$'\n'
  # shellcheck disable=SC2207  # a candidate has no blanks to split at
  COMPREPLY=($("${COMP_WORDS[0]}" complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  case ${COMPREPLY[0]-} in
    *= | *.) compopt -o nospace ;;
  esac
}
complete -o default -F _vernier vernier
