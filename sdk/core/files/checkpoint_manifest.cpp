#include "checkpoint_manifest.h"

#include <vernier/checksum.h>
#include <vernier/json_text.h>

#include <algorithm>

#include "file.h"
#include "json.h"

namespace vernier {

using Manifest = CheckpointManifest;

namespace {

constexpr std::size_t deepest_manifest = 64;  // the configuration is a table of tables
// A manifest ends with the checksum of all bytes before it.
constexpr std::string_view tail_begin = ",\"checksum\":\"", tail_end = "\"}\n";
constexpr std::size_t checksum_digits = 32;
constexpr std::size_t tail_size = tail_begin.size() + checksum_digits + tail_end.size();

std::string text_of(const std::string& path, const Manifest::File& file) {
  const auto tensors = joined("{", file.tensors, ",", "\n   }", [&](const auto& entry) {
    const auto& [name, tensor] = entry;
    const auto shape = joined("[", tensor.shape, ", ", "]", [](auto size) { return std::to_string(size); });
    return "\n    " + quoted(path, name) + ": {\"dtype\": " + quoted(path, tensor.dtype) + ", \"shape\": " + shape +
           ", \"checksum\": " + quoted(path, tensor.checksum) + "}";
  });
  return "{\n   \"bytes\": " + std::to_string(file.bytes) +
         ",\n   \"header_checksum\": " + quoted(path, file.header_checksum) + ",\n   \"tensors\": " + tensors + "\n  }";
}

// A value of the type T. key: for the message.
template <class T>
T value_as(const std::string& path, const Json& value, const char* key) {
  bool is_right = false;
  if constexpr (std::is_same_v<T, std::string>) is_right = value.is_string();
  if constexpr (std::is_same_v<T, std::uint64_t>) is_right = value.is_number_unsigned();
  if constexpr (std::is_same_v<T, std::int64_t>) {
    is_right = value.is_number_unsigned() && value.get<std::uint64_t>() <= INT64_MAX;
  }
  if (!is_right) fail(path, std::string("its '") + key + "' is not what it must be: " + json_text(value).substr(0, 80));
  return value.get<T>();
}

template <class T>
T member(const std::string& path, const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) fail(path, std::string("has no '") + key + "'");
  return value_as<T>(path, *found, key);
}

const Json& structure(const std::string& path, const Json& object, const char* key, bool is_array = false) {
  const auto found = object.find(key);
  if (found == object.end()) fail(path, std::string("has no '") + key + "'");
  if (is_array ? !found->is_array() : !found->is_object()) {
    fail(path, std::string("its '") + key + "' is not an " + (is_array ? "array" : "object"));
  }
  return *found;
}

std::string checksum_in(const std::string& path, const Json& object, const char* key) {
  auto digits = member<std::string>(path, object, key);
  const bool is_hexadecimal = digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (digits.size() != checksum_digits || !is_hexadecimal)
    fail(path, std::string("its '") + key + "' is not a checksum");
  return digits;
}

Manifest::Tensor tensor_in(const std::string& path, const std::string& name, const Json& json) {
  if (!json.is_object()) fail(path, name, "its entry is not an object");
  const std::string place = path + ": tensor '" + name + "'";
  Manifest::Tensor tensor{member<std::string>(place, json, "dtype"), {}, checksum_in(place, json, "checksum")};
  for (const Json& size : structure(place, json, "shape", /*is_array=*/true)) {
    tensor.shape.push_back(value_as<std::int64_t>(place, size, "shape"));
  }
  return tensor;
}

Manifest::File file_in(const std::string& path, const Json& json) {
  Manifest::File file{member<std::uint64_t>(path, json, "bytes"), checksum_in(path, json, "header_checksum"), {}};
  for (const auto& [name, tensor] : structure(path, json, "tensors").items()) {
    file.tensors[name] = tensor_in(path, name, tensor);
  }
  return file;
}

// "format", "version" and the checksum at the end are the same in every version of the format.
void check_version(const std::string& path, const Json& json) {
  // Json's own == with a text allocates memory, and ends the process if there is none.
  const auto* format =
      json.is_object() && json.contains("format") ? json["format"].get_ptr<const std::string*>() : nullptr;
  if (format == nullptr || *format != checkpoint_format_name) fail(path, "is not the manifest of a checkpoint");
  const auto version = member<std::int64_t>(path, json, "version");
  if (version != checkpoint_format_version) {
    refuse(path + ": its format is version " + std::to_string(version) + ", and this Vernier reads version " +
           std::to_string(checkpoint_format_version) + "; read it with the Vernier that wrote it");
  }
}

void check_own_checksum(const std::string& path, std::string_view text) {
  const std::string_view tail = text.size() < tail_size ? "" : text.substr(text.size() - tail_size);
  if (!tail.starts_with(tail_begin) || !tail.ends_with(tail_end)) {
    fail(path, "is cut short or changed: it does not end in its checksum");
  }
  const std::string_view said = tail.substr(tail_begin.size(), checksum_digits);
  const std::string is = checksum_of(std::string(text.substr(0, text.size() - tail_size)));
  if (is != said) fail(path, "was changed: its checksum is " + is + ", and it says " + std::string(said));
}

// The names that the files of the model must have.
std::vector<std::string> model_files(const Json& files) {
  std::vector<std::string> names;
  for (std::size_t count = 2; count <= files.size(); ++count) {
    if (!files.contains(checkpoint_model_part(1, count))) continue;
    for (std::size_t i = 1; i <= count; ++i) names.push_back(checkpoint_model_part(i, count));
    return names;
  }
  return {files.contains(checkpoint_shared_file) ? checkpoint_shared_file : checkpoint_model_file};
}

}  // namespace

std::string manifest_text(const std::string& path, const Manifest& manifest) {
  const auto configuration = parse_json(path, "configuration", manifest.configuration, deepest_manifest - 1);
  if (!configuration.value.is_object()) fail(path, "the configuration is not an object");
  const auto versions = joined("{", manifest.versions, ", ", "}", [&](const auto& entry) {
    return quoted(path, entry.first) + ": " + quoted(path, entry.second);
  });
  const auto plugins = joined("[", manifest.plugins, ", ", "]", [&](const auto& plugin) {
    return "{\"id\": " + quoted(path, plugin.id) + ", \"version\": " + quoted(path, plugin.version) + "}";
  });
  const std::string text =
      "{\n \"format\": " + quoted(path, checkpoint_format_name) +
      ",\n \"version\": " + std::to_string(manifest.version) + ",\n \"step\": " + std::to_string(manifest.step) +
      ",\n \"run\": " + quoted(path, manifest.run) + ",\n \"versions\": " + versions + ",\n \"plugins\": " + plugins +
      ",\n \"configuration\": " + manifest.configuration + ",\n \"files\": " + files_text(path, manifest.files);
  return text + std::string(tail_begin) + checksum_of(text) + std::string(tail_end);
}

Manifest parse_manifest(const std::string& path, const std::string& text) {
  check_own_checksum(path, text);
  const auto parsed = parse_json(path, "manifest", text, deepest_manifest);
  const Json& json = parsed.value;
  check_version(path, json);
  Manifest manifest;
  manifest.version = member<std::int64_t>(path, json, "version");
  manifest.step = member<std::int64_t>(path, json, "step");
  manifest.run = member<std::string>(path, json, "run");
  for (const auto& [name, version] : structure(path, json, "versions").items()) {
    manifest.versions[name] = member<std::string>(path, json["versions"], name.c_str());
  }
  for (const Json& plugin : structure(path, json, "plugins", /*is_array=*/true)) {
    if (!plugin.is_object()) fail(path, "one of its 'plugins' is not an object");
    manifest.plugins.push_back({member<std::string>(path, plugin, "id"), member<std::string>(path, plugin, "version")});
  }
  manifest.configuration = json_text(structure(path, json, "configuration"));
  const Json& files = structure(path, json, "files");
  const auto take = [&](const std::string& name) {
    manifest.files[name] = file_in(path, structure(path, files, name.c_str()));
  };
  std::ranges::for_each(model_files(files), take);
  take(checkpoint_state_file);
  for (std::int64_t rank = 1; manifest.files.size() < files.size(); ++rank) take(checkpoint_shard_file(rank));
  return manifest;
}

std::string checkpoint_shard_file(std::int64_t rank) {
  return "state-rank-" + std::to_string(rank) + ".safetensors";
}

std::string checkpoint_model_shard_file(std::int64_t rank) {
  return "model-rank-" + std::to_string(rank) + ".safetensors";
}

std::string checkpoint_model_part(std::size_t number, std::size_t count) {
  const auto five_digits = [](std::size_t value) { return std::to_string(100'000 + value).substr(1); };
  return "model-" + five_digits(number) + "-of-" + five_digits(count) + ".safetensors";
}

std::string index_text(const std::string& path, std::uint64_t bytes, const std::map<std::string, std::string>& files) {
  return "{\n \"metadata\": {\"total_size\": " + std::to_string(bytes) +
         "},\n \"weight_map\": " + joined("{", files, ",", "\n }\n}\n", [&](const auto& entry) {
           return "\n  " + quoted(path, entry.first) + ": " + quoted(path, entry.second);
         });
}

std::string files_text(const std::string& path, const std::map<std::string, Manifest::File>& files) {
  return joined("{", files, ",", "\n }", [&](const auto& entry) {
    return "\n  " + quoted(path, entry.first) + ": " + text_of(path, entry.second);
  });
}

std::map<std::string, Manifest::File> parse_files(const std::string& path, const std::string& text) {
  const auto parsed = parse_json(path, "files", text, deepest_manifest);
  std::map<std::string, Manifest::File> files;
  for (const auto& [name, file] : parsed.value.items()) files[name] = file_in(path, file);
  return files;
}

}  // namespace vernier
