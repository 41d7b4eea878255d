# vernier_link(target): links the contract and VERNIER_LIBRARIES, the last one first, since each needs those before it.
function(vernier_link target)
  set(libraries ${VERNIER_LIBRARIES})
  list(REVERSE libraries)
  list(TRANSFORM libraries PREPEND vernier::)
  target_link_libraries(${target} PRIVATE ${libraries} vernier::sdk)
endfunction()

# vernier_add_plugin(role name source...)
#
# Builds plugins/<role>/<name>.so, which a TOML file names as  [role] use = "name",  and installs it where the program
# that is installed with the same prefix finds it. The library exports one symbol, the descriptor that VERNIER_PLUGIN()
# defines, and stays mapped once it is loaded (objects that it made may outlive any attempt to unload it). The target is
# called <role>_<name>. The library needs those of VERNIER_LIBRARIES that its code uses, and no others: core and the
# packs that find_package(Vernier COMPONENTS ...) named. The program has loaded LibTorch before it loads a plugin.
function(vernier_add_plugin role name)
  set(target ${role}_${name})
  set(folder ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  if(NOT folder)
    set(folder ${PROJECT_BINARY_DIR})
  endif()
  add_library(${target} MODULE ${ARGN})
  vernier_link(${target})
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${folder}/plugins/${role}
    INSTALL_RPATH "$ORIGIN/../../.."
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON DEFINE_SYMBOL "")
  target_link_options(${target} PRIVATE -Wl,--as-needed -Wl,-z,nodelete
    -Wl,--version-script=${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugin.map)
  install(TARGETS ${target} LIBRARY DESTINATION lib/vernier/plugins/${role})
  set_property(GLOBAL APPEND PROPERTY VERNIER_PLUGIN_TARGETS ${target})
endfunction()

# vernier_test_plugin(role name)
#
# Tests for the project of one plugin: the laws of plugins (`vernier check <name>.so`), `vernier check` and `vernier train`
# of its run.toml with the plugins that are built here, and the program of <name>_test.cpp, if doctest is installed.
function(vernier_test_plugin role name)
  add_test(NAME laws COMMAND vernier::vernier check $<TARGET_FILE:${role}_${name}> --task run.toml
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set(run run.toml --plugin-path ${PROJECT_BINARY_DIR}/plugins --set run.output=${PROJECT_BINARY_DIR}/runs/${name})
  foreach(verb IN ITEMS check train)
    add_test(NAME ${verb} COMMAND vernier::vernier ${verb} ${run} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  endforeach()
  find_package(doctest QUIET)
  if(NOT doctest_FOUND)
    message(STATUS "doctest is not installed, so ${name}_test.cpp is left out (Debian: doctest-dev)")
    return()
  endif()
  add_executable(${name}_test ${name}_test.cpp)
  vernier_link(${name}_test)
  target_link_libraries(${name}_test PRIVATE doctest::doctest)
  add_test(NAME rule COMMAND ${name}_test)
  # A program that checked nothing fails, as one whose CHECK is LibTorch's.
  set_tests_properties(rule PROPERTIES FAIL_REGULAR_EXPRESSION "assertions: +0 ")
endfunction()
