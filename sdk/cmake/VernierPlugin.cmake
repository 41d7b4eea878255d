# vernier_add_plugin(role name source...)
#
# Builds plugins/<role>/<name>.so, which a TOML file names as  [role] use = "name".  The library exports one symbol, the
# descriptor that VERNIER_PLUGIN() defines, and stays mapped once it is loaded (objects that it made may outlive any
# attempt to unload it). The target is called <role>_<name>.
function(vernier_add_plugin role name)
  set(target ${role}_${name})
  add_library(${target} MODULE ${ARGN})
  target_link_libraries(${target} PRIVATE vernier::sdk)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/plugins/${role}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON DEFINE_SYMBOL "")
  target_link_options(${target} PRIVATE -Wl,-z,nodelete -Wl,--version-script=${VERNIER_PLUGIN_VERSION_SCRIPT})
  set_property(GLOBAL APPEND PROPERTY VERNIER_PLUGIN_TARGETS ${target})
endfunction()

set(VERNIER_PLUGIN_VERSION_SCRIPT "${CMAKE_CURRENT_LIST_DIR}/plugin.map")
