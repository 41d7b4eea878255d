// `vernier config --schema`: a JSON Schema of configurations.
#include <vernier/error.h>
#include <vernier/json_text.h>

#include <iostream>

#include "cli/command.h"
#include "cli/program.h"
#include "schema.h"

namespace {

constexpr const char* usage = R"(usage: vernier config --schema [--plugin-path FOLDER]…

Prints a JSON Schema of configurations, with which editors check and complete them.
)";

int print_schema(const boost::program_options::variables_map& given) {
  if (!vernier::words_of(given).empty()) vernier::refuse("--schema is that of every configuration; name no file");
  std::cout << vernier::json_text(vernier::schema_of(vernier::cli::make_host(given)), 2) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto options = vernier::configuration_options();
  options.add_options()("schema", "");
  return vernier::call_run_verb({"config", usage, options, print_schema}, argc, argv);
}
