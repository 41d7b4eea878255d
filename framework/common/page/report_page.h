// One page of HTML about runs and comparisons. It needs no other file and no network.
#pragma once

#include <string>
#include <vector>

#include "common/run_files.h"
#include "comparison_view.h"

namespace vernier {

// Every page begins so, by which `vernier report` knows a page of its own.
constexpr const char* report_head =
    "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=generator content=\"vernier report\">\n";

// runs: those of the comparisons too. Throws Refused where a comparison is damaged.
std::string report_page(const std::vector<RunFiles>& runs, const std::vector<nlohmann::ordered_json>& comparisons);

}  // namespace vernier
