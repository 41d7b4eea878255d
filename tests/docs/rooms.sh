#!/bin/sh
# rooms.sh ROOT: no file of the SDK and the framework includes from a later room than its own.
#
# A room is a folder of sdk/src or framework. A public header (those of framework/include too) is of the room of the
# .cpp of its name, or else of core. Includes from another room are written "room/file.h", those of public headers
# <vernier/file.h>. sdk.h and toolkit.h are lists of all the others and in no room.
set -eu
cd "$1"
rooms="core http files text optim cpu trace amp memory data wiring run output embed replay cli"
sources=$(ls sdk/src/*/*.cpp framework/embed/*.cpp)

grep -nE '^ *# *include' sdk/include/vernier/*.h sdk/src/*/*.h sdk/src/*/*.cpp framework/*/*.h framework/*/*.cpp \
  framework/include/vernier/*.h |
  awk -v rooms="$rooms" -v sources="$sources" '
    function room_of_header(name) {
      sub(/^.*\//, "", name)
      sub(/\.h$/, "", name)
      if (name == "sdk" || name == "toolkit") return ""
      return name in room_of ? room_of[name] : "core"
    }
    BEGIN {
      count = split(rooms, names, " ")
      for (i = 1; i <= count; ++i) place[names[i]] = i
      count = split(sources, paths)
      for (i = 1; i <= count; ++i) {
        last = split(paths[i], part, "/")  # sdk/src/ROOM/NAME.cpp, framework/ROOM/NAME.cpp
        sub(/\.cpp$/, "", part[last])
        room_of[part[last]] = part[last - 1]
      }
    }
    {
      where = $0
      sub(/:[^:]*include.*$/, "", where)  # PATH:LINE
      path = where
      sub(/:[0-9]+$/, "", path)
      split(path, part, "/")
      is_public = part[2] == "include"
      own = is_public ? room_of_header(path) : part[1] == "framework" ? part[2] : part[3]
      if (own == "") next
      if (match($0, /<vernier\/[^>]+>/)) {
        included = substr($0, RSTART + 1, RLENGTH - 2)
        room = room_of_header(included)
        if (room == "") next
      } else if (match($0, /"[^"]+"/)) {
        included = substr($0, RSTART + 1, RLENGTH - 2)
        if (included !~ /\//) next  # of its own room
        room = included
        sub(/\/.*$/, "", room)
      } else {
        next
      }
      if (!(own in place)) {
        print where ": the room " own " is not known to rooms.sh"
      } else if (!(room in place)) {
        print where ": " included " is in no room"
      } else if (place[room] > place[own]) {
        print where ": " own " includes " included " of the later room " room
      } else {
        next
      }
      is_wrong = 1
    }
    END { exit is_wrong }
  '
