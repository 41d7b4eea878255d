#include <vernier/model_adapter.h>
#include <vernier/published_model.h>

namespace vernier {

PublishedModel::~PublishedModel() = default;
ModelAdapter::~ModelAdapter() = default;

}  // namespace vernier
