// The files of the dashboard, from page/. CMake puts their texts into page.cpp.in.
#pragma once

#include <span>

#include "service/http/page.h"

namespace control {

std::span<const vernier::PageFile> page_files();

}  // namespace control
