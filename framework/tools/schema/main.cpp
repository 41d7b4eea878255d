// `vernier config --schema`: a JSON Schema of configurations.
#include <vernier/error.h>
#include <vernier/json_text.h>

#include "cli/command.h"
#include "cli/program.h"
#include "schema.h"

namespace {

constexpr const char* usage = R"(usage: vernier config --schema [ROLE/NAME | run]… [--plugin-path FOLDER]…

Prints a JSON Schema of configurations, with which editors check and complete them. With names, it prints for each one
the schema of its table alone.
)";

int print_schema(const boost::program_options::variables_map& given) {
  vernier::print_result([&] {
    const auto host = vernier::cli::make_host(given);
    vernier::OrderedJson tables = vernier::OrderedJson::object();
    for (const auto& name : vernier::words_of(given)) {
      if (name.ends_with(".toml")) vernier::refuse("--schema is that of every configuration; name tables, not a file");
      tables[name] = vernier::schema_of_table(host, name);
    }
    return vernier::json_text(tables.empty() ? vernier::schema_of(host) : tables, 2) + '\n';
  });
  return 0;
}

}  // namespace

int vernier::call_schema(int argc, char** argv) {
  auto options = vernier::configuration_options();
  options.add_options()("schema", "");
  return vernier::call_run_verb({"config", usage, options, print_schema}, argc, argv);
}
