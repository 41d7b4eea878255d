// The files of the dashboard, from page/. CMake puts their texts into page.cpp.in.
#pragma once

#include <span>

namespace control {

struct PageFile {
  const char *path, *id, *type, *text;
};
std::span<const PageFile> page_files();

}  // namespace control
