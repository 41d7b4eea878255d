#include <vernier/published_model.h>

namespace vernier {

PublishedModel::~PublishedModel() = default;

}  // namespace vernier
