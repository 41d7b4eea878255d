# Reads sdk/components.tsv, the one list of components, and what VERNIER_COMPONENTS asks of it. A row has the name, the
# tier (stable, or draft: may change in any release), the components that it needs, its budget of lines, Debian's
# packages with what shows that each is there (for ./vernier), and its folders and plugins. Gives
#
#   VERNIER_ALL_COMPONENTS                 their names; each follows those that it needs
#   VERNIER_BUILT_COMPONENTS               those of this build
#   vernier_component_of(variable path)    the component of a file or folder
#   vernier_build(variable path)           whether this build has it; else an error of the program can name the component
#   vernier_all_needs(variable name)       the component, and what it needs, transitively
set(VERNIER_COMPONENTS all CACHE STRING "core, all, or a list of components of sdk/components.tsv")
set(components_file ${CMAKE_CURRENT_LIST_DIR}/../components.tsv)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${components_file})
file(STRINGS ${components_file} rows)
list(POP_FRONT rows)
set(VERNIER_ALL_COMPONENTS)
foreach(row IN LISTS rows)
  string(REPLACE "\t" ";" fields ${row})
  list(GET fields 0 name)
  list(GET fields 2 needs)
  list(GET fields 5 folders)
  string(REPLACE "-" "" needs ${needs})
  string(REPLACE " " ";" VERNIER_NEEDS_OF_${name} "${needs}")
  string(REPLACE " " ";" VERNIER_FOLDERS_OF_${name} ${folders})
  list(APPEND VERNIER_ALL_COMPONENTS ${name})
endforeach()

function(vernier_all_needs variable name)
  set(all ${name})
  foreach(need IN LISTS VERNIER_NEEDS_OF_${name})
    vernier_all_needs(of_need ${need})
    list(PREPEND all ${of_need})
  endforeach()
  list(REMOVE_DUPLICATES all)
  set(${variable} ${all} PARENT_SCOPE)
endfunction()

set(VERNIER_BUILT_COMPONENTS core)
foreach(name IN LISTS VERNIER_COMPONENTS)
  if(name STREQUAL all)
    set(VERNIER_BUILT_COMPONENTS ${VERNIER_ALL_COMPONENTS})
  elseif(name IN_LIST VERNIER_ALL_COMPONENTS)
    vernier_all_needs(needed ${name})
    list(APPEND VERNIER_BUILT_COMPONENTS ${needed})
  else()
    list(JOIN VERNIER_ALL_COMPONENTS ", " names)
    message(FATAL_ERROR "VERNIER_COMPONENTS: there is no component '${name}'; write all, or some of ${names}")
  endif()
endforeach()
list(REMOVE_DUPLICATES VERNIER_BUILT_COMPONENTS)

function(vernier_component_of variable path)
  foreach(name IN LISTS VERNIER_ALL_COMPONENTS)
    foreach(folder IN LISTS VERNIER_FOLDERS_OF_${name})
      cmake_path(IS_PREFIX folder ${path} is_inside)
      if(is_inside OR folder STREQUAL "${path}.cpp")
        set(${variable} ${name} PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  message(FATAL_ERROR "${path} belongs to no component: add it to sdk/components.tsv")
endfunction()

# vernier_leave_out(component what...): the program names the component if somebody asks for this plugin or verb.
function(vernier_leave_out component)
  foreach(what IN LISTS ARGN)
    set_property(GLOBAL APPEND_STRING PROPERTY VERNIER_LEFT_OUT "    {\"${what}\", \"${component}\"},\n")
  endforeach()
endfunction()

function(vernier_build variable path)
  vernier_component_of(component ${path})
  if(component IN_LIST VERNIER_BUILT_COMPONENTS)
    set(${variable} ON PARENT_SCOPE)
    return()
  endif()
  set(${variable} OFF PARENT_SCOPE)
  string(REGEX REPLACE "^(plugins|framework/tools)/" "" what ${path})
  vernier_leave_out(${component} ${what})
endfunction()

# vernier_add_pack(name SOURCES source... UNITY folder... LIBRARIES private...): the library vernier_<name> of a pack.
function(vernier_add_pack name)
  cmake_parse_arguments(arg "" "" "SOURCES;UNITY;LIBRARIES" ${ARGN})
  set(target vernier_${name})
  add_library(${target} SHARED ${arg_SOURCES})
  vernier_unity(${target} ${arg_UNITY})
  foreach(library IN LISTS arg_LIBRARIES)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${library}>)
  endforeach()
  foreach(need IN LISTS VERNIER_NEEDS_OF_${name})
    target_link_libraries(${target} PUBLIC vernier_${need})
  endforeach()
  vernier_library(${name})
endfunction()

# The properties that the libraries of core and of the packs share. The number in a file's name is a hash of the public
# headers of the library and of those that it needs, without comments and white space. The loader refuses a program or
# a plugin that was built with other headers, because it does not find the file.
function(vernier_library name)
  set(target vernier_${name})
  vernier_all_needs(needed ${name})
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/sdk/plugin/include/vernier/*.h)
  foreach(need IN LISTS needed)
    file(GLOB_RECURSE of_need CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/sdk/${need}/*.h)
    list(FILTER of_need INCLUDE REGEX "/include/vernier/")
    list(APPEND headers ${of_need})
  endforeach()
  execute_process(COMMAND sh ${PROJECT_SOURCE_DIR}/sdk/cmake/code_hash.sh ${headers} OUTPUT_VARIABLE hash
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})

  add_library(vernier::${name} ALIAS ${target})
  file(GLOB folders ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/*/include)
  foreach(folder IN LISTS folders)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${folder}>)
    install(DIRECTORY ${folder}/vernier DESTINATION include)
  endforeach()
  target_include_directories(${target} PUBLIC $<INSTALL_INTERFACE:include>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:vernier_house>)
  target_precompile_headers(${target} REUSE_FROM vernier_sdk)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    target_link_options(${target} PRIVATE LINKER:-z,defs)  # a function of another library must be exported
  endif()
  set_target_properties(${target} PROPERTIES SOVERSION ${hash}
    DEFINE_SYMBOL "" EXPORT_NAME ${name} INSTALL_RPATH "${VERNIER_LIBRARY_RPATH}")
  install(TARGETS ${target} EXPORT Vernier LIBRARY DESTINATION lib)
  set_property(GLOBAL APPEND PROPERTY VERNIER_LIBRARIES ${name})
endfunction()
