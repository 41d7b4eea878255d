#include <vernier/checkpoint_split.h>

#include <sstream>
#include <string>
#include <utility>

namespace vernier {

namespace {

constexpr const char* configuration_key = "run/configuration";
constexpr const char* versions_key = "run/versions";  // a line "optimizer/adamw 1.0.0" for each plugin
const std::string model_prefix = "model/";

}  // namespace

StoredCheckpoint split_snapshot(const State& snapshot) {
  StoredCheckpoint split;
  for (const auto& [name, tensor] : snapshot.tensors) {
    if (name.starts_with(model_prefix)) {
      split.model.put(name.substr(model_prefix.size()), tensor);
    } else if (name != configuration_key && name != versions_key) {
      split.state.put(name, tensor);
    }
  }
  if (snapshot.has(configuration_key)) split.manifest.configuration = snapshot.text(configuration_key);
  if (snapshot.has(versions_key)) {
    std::istringstream lines(snapshot.text(versions_key));
    for (std::string id, version; lines >> id >> version;) split.manifest.plugins.push_back({id, version});
  }
  return split;
}

State join_snapshot(StoredCheckpoint stored) {
  State snapshot = std::move(stored.state);
  for (auto& [name, tensor] : stored.model.tensors) snapshot.put(model_prefix + name, std::move(tensor));
  snapshot.put(configuration_key, stored.manifest.configuration);
  std::string versions;
  for (const auto& [id, version] : stored.manifest.plugins) versions += id + ' ' + version + '\n';
  snapshot.put(versions_key, versions);
  return snapshot;
}

}  // namespace vernier
