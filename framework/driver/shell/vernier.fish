# fish: completion of vernier's verbs, options, plugins and their keys; of files where the program offers nothing.
function __vernier_complete
  set -l words (commandline -opc)
  set -l program $words[1]
  set -e words[1]
  set -l now (commandline -ct)
  set -l found (command $program complete $words "$now" 2>/dev/null)
  if set -q found[1]
    printf '%s\n' $found
  else
    __fish_complete_path "$now"
  end
end
complete -c vernier -f -a '(__vernier_complete)'
