# vernier_add_plugin(role name source...)
#
# Builds plugins/<role>/<name>.so, which a TOML file names as  [role] use = "name",  and installs it where the program
# that is installed with the same prefix finds it. The library exports one symbol, the descriptor that VERNIER_PLUGIN()
# defines, and stays mapped once it is loaded (objects that it made may outlive any attempt to unload it). The target is
# called <role>_<name>.
function(vernier_add_plugin role name)
  set(target ${role}_${name})
  set(folder ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  if(NOT folder)
    set(folder ${PROJECT_BINARY_DIR})
  endif()
  add_library(${target} MODULE ${ARGN})
  target_link_libraries(${target} PRIVATE vernier::sdk)
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${folder}/plugins/${role}
    INSTALL_RPATH "$ORIGIN/../../..;${LIBTORCH_ROOT}/lib"
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON DEFINE_SYMBOL "")
  target_link_options(${target} PRIVATE -Wl,-z,nodelete
    -Wl,--version-script=${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugin.map)
  install(TARGETS ${target} LIBRARY DESTINATION lib/vernier/plugins/${role})
  set_property(GLOBAL APPEND PROPERTY VERNIER_PLUGIN_TARGETS ${target})
endfunction()
