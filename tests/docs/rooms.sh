#!/bin/sh
# rooms.sh ROOT: every file includes only from the rooms that its own room may use.
#
# A room is a folder with what is below it. `allowed` lists for each room the rooms that it may include, besides itself.
# A public header of the SDK belongs to the room of the .cpp of its name, or else to core if it is of the contract, and
# to base if it is of the toolkit. Includes from another room are written "room/file.h" ("tools/common/file.h"), those of
# public headers <vernier/file.h>. sdk.h and toolkit.h are lists of other headers and belong to no room.
#
# A plugin may include public headers, its role's folder and plugins/shared. Two plugins serve HTTP, and may include it.
set -eu
cd "$1"
find sdk framework plugins -name '*.cpp' -o -name '*.h' | LC_ALL=C sort | grep -vE "/templates?(_task)?/" |
  xargs grep -nHE '^ *# *include' |
  awk -v sources="$(ls sdk/plugin/core/*.cpp sdk/toolkit/*/*.cpp sdk/toolkit/*/*/*.cpp framework/embed/*.cpp)" \
    -v toolkit="$(ls sdk/toolkit/include/vernier)" '
    BEGIN {
      # In each line, a room may include those before it.
      sdk = "core base files text cuda optim cpu trace amp memory advice data readers graph"
      runner = "wiring process state capture run output cli"
      service = "service/http service/queue service/audit service/api service/jobs service"
      count = split(sdk, names, " ")
      for (i = 1; i <= count; ++i) { allowed[names[i]] = before; before = before " " names[i] }
      allowed["tools/common"] = " core base"  # whole_file.h
      before = sdk " tools/common"
      count = split(runner, names, " ")
      for (i = 1; i <= count; ++i) { allowed[names[i]] = before; before = before " " names[i] }
      allowed["embed"] = sdk " tools/common wiring process state capture run output"
      allowed["trained_run"] = sdk " tools/common " runner
      tools = sdk " tools/common trained_run " runner  # each tool
      before = "base tools/common"  # headers that need no library
      count = split(service, names, " ")
      for (i = 1; i <= count; ++i) { allowed[names[i]] = before; before = before " " names[i] }
      count = split(toolkit, names)
      for (i = 1; i <= count; ++i) { sub(/\.h$/, "", names[i]); room_of[names[i]] = "base" }
      room_of["unfinished_checkpoint"] = "files"  # in checkpoint_folder.cpp
      count = split(sources, paths)
      for (i = 1; i <= count; ++i) {
        last = split(paths[i], part, "/")
        if (part[1] == "sdk" && last == 5) subroom[part[3] "/" part[4]] = part[3]
        sub(/\.cpp$/, "", part[last])
        room_of[part[last]] = part[1] == "sdk" ? part[3] : part[2]
      }
    }
    function room_of_header(name) {
      sub(/^.*\//, "", name)
      sub(/\.h$/, "", name)
      if (name == "sdk" || name == "toolkit") return ""
      return name in room_of ? room_of[name] : "core"
    }
    # A path without "..".
    function plain(path) {
      while (sub(/[^\/]+\/\.\.\//, "", path)) {}
      return path
    }
    function plugin_may_include(path, included, part) {
      if (included !~ /\// || included ~ /^shared\//) return 1
      if (included ~ /^service\/http\//) return path ~ /^plugins\/(monitor\/prometheus|callback\/control)/
      split(path, part, "/")
      sub(/[^\/]*$/, "", path)
      return index(plain(path included), "plugins/" part[2] "/") == 1 && part[2] != "shared"
    }
    function room_of_file(path, part, n) {
      n = split(path, part, "/")
      if (path ~ /\/include\//) return room_of_header(path)
      if (path ~ /^framework\/tools\/common\/model\//) return "trained_run"
      if (part[2] == "cuda") return "cuda"
      if (part[2] == "tools") return "tools/" part[3]
      if (part[2] == "embed") return "embed"
      if (part[2] == "service") return n == 3 ? "service" : "service/" part[3]
      if (part[3] == "run" && n == 5) return part[4]  # run/process, run/state and run/capture are rooms of their own
      return part[3]
    }
    {
      where = $0
      sub(/:[^:]*include.*$/, "", where)  # PATH:LINE
      path = where
      sub(/:[0-9]+$/, "", path)
      if (path ~ /^plugins\//) {
        if (!match($0, /"[^"]+"/) || plugin_may_include(path, substr($0, RSTART + 1, RLENGTH - 2))) next
        print where ": a plugin may not include " substr($0, RSTART + 1, RLENGTH - 2)
        is_wrong = 1
        next
      }
      own = room_of_file(path)
      if (own == "") next
      if (match($0, /<vernier\/[^>]+>/)) {
        included = substr($0, RSTART + 1, RLENGTH - 2)
        room = room_of_header(included)
        if (room == "") next
      } else if (match($0, /"[^"]+"/)) {
        included = substr($0, RSTART + 1, RLENGTH - 2)
        if (included !~ /\//) next  # of its own room
        room = included
        sub(/\/[^\/]*$/, "", room)
        sub(/^tools\/common\/(page|text|trials)$/, "tools/common", room)
        sub(/^tools\/common\/model$/, "trained_run", room)
        sub(/^run\//, "", room)
        sub(/^(\.\.\/)+/, "", room)
        if (room in subroom) room = subroom[room]
      } else {
        next
      }
      if (room ~ /^cli\//) room = "cli"
      may = own ~ /^tools\// && own != "tools/common" ? tools : allowed[own]
      if (own == "tools/generate") may = may " service/http"
      if (!(own in allowed) && own !~ /^tools\//) {
        print where ": the room " own " is not known to rooms.sh"
      } else if (room != own && index(" " may " ", " " room " ") == 0) {
        print where ": " own " may not include " included
      } else {
        next
      }
      is_wrong = 1
    }
    END { exit is_wrong }
  '
