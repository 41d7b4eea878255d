#include <vernier/published_model.h>

namespace vernier {

PublishedModel::~PublishedModel() = default;
std::string PublishedModel::task_type() const {
  return "CAUSAL_LM";
}

}  // namespace vernier
