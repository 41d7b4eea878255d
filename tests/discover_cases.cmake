# Writes the tests of a program of doctest cases, one a case: cmake -D PROGRAM=... -D FOLDER=... -D LABEL=... -D PACKS=...
# -D COMPONENTS=... -D EVERY_PACK=... -D SKIPPED=... -D FILE=... -P discover_cases.cmake. doctest's own script cannot
# choose by suites.
#
# Cases in no suite of a pack get LABEL. Those in the suite of a pack that is built, PACKS, get its name. Cases of "every
# plugin" try the plugins of LABEL alone: one test more for each pack that is built, COMPONENTS, tries its plugins.
set(script)
function(write_tests label filter)
  execute_process(COMMAND ${PROGRAM} --list-test-cases ${filter} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${output}")
  foreach(case IN LISTS lines)
    if(case MATCHES "^(===|\\[doctest\\] )")
      continue()
    endif()
    string(REPLACE "," "\\," name "${case}")
    string(APPEND script "add_test([==[${FOLDER}: ${case}]==] [==[${PROGRAM}]==] [==[--test-case=${name}]==])\n"
      "set_tests_properties([==[${FOLDER}: ${case}]==] PROPERTIES TIMEOUT 900 LABELS ${label} "
      "SKIP_REGULAR_EXPRESSION [==[${SKIPPED}]==])\n")
    if(case MATCHES "every plugin" AND label STREQUAL LABEL)
      string(APPEND script
        "set_tests_properties([==[${FOLDER}: ${case}]==] PROPERTIES ENVIRONMENT VERNIER_TESTED_COMPONENT=${label})\n")
      set(has_every_plugin ON PARENT_SCOPE)
    endif()
  endforeach()
  set(script "${script}" PARENT_SCOPE)
endfunction()

write_tests(${LABEL} --test-suite-exclude=${EVERY_PACK})
foreach(pack IN LISTS PACKS)
  write_tests(${pack} --test-suite=${pack})
endforeach()
if(has_every_plugin)
  list(REMOVE_ITEM COMPONENTS ${LABEL})
  foreach(pack IN LISTS COMPONENTS)
    string(APPEND script "add_test([==[${FOLDER}: plugins of ${pack}]==] [==[${PROGRAM}]==] [==[--test-case=*every plugin*]==]"
      " --test-suite-exclude=${EVERY_PACK})\n"
      "set_tests_properties([==[${FOLDER}: plugins of ${pack}]==] PROPERTIES TIMEOUT 900 LABELS ${pack} "
      "ENVIRONMENT VERNIER_TESTED_COMPONENT=${pack})\n")
  endforeach()
endif()
file(WRITE ${FILE} "${script}")
