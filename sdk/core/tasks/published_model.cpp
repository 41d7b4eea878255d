#include <vernier/published_model.h>

namespace vernier {

PublishedModel::~PublishedModel() = default;
std::map<std::string, std::string> PublishedModel::ties() const {
  return {};
}

std::string PublishedModel::task_type() const {
  return "CAUSAL_LM";
}

}  // namespace vernier
