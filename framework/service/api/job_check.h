// The rules for jobs: configurations of users, who are not trusted with all that the server's user may do.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "service/http/http_service.h"

namespace serve {

// Why something is refused, in a sentence for its user.
struct NotAllowed : vernier::HttpRefused {
  explicit NotAllowed(const std::string& why) : HttpRefused{422, why} {}
  const char* what() const { return detail.c_str(); }
};

// Returns the TOML of a configuration that is TOML text or a JSON object. Throws NotAllowed if it is not TOML, if it
// - includes files, or has references (${…}) to the environment or to other values
// - names a plugin by a path
// - listens at an address that other machines reach
// - has a text that could be a path and is neither below a data folder nor in the job's own folder: an absolute one,
// one
//   that begins with ~, one with .. in it, or a URL
// data: absolute paths.
std::string checked_configuration(const nlohmann::ordered_json& configuration,
                                  const std::vector<std::filesystem::path>& data);

// The same rules as JSON schemas, as far as schemas can express them: of a configuration as a JSON object, of a value
// in it, which is #/components/schemas/Value, and of a text.
nlohmann::ordered_json configuration_schema();
nlohmann::ordered_json value_schema(const std::vector<std::filesystem::path>& data);
nlohmann::ordered_json text_schema(const std::vector<std::filesystem::path>& data);

// The same rules for the texts in a command to a run.
void check_command(const nlohmann::ordered_json& command, const std::vector<std::filesystem::path>& data);

}  // namespace serve
