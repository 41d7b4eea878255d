#include <vernier/model_adapter.h>

namespace vernier {

ModelAdapter::~ModelAdapter() = default;

}  // namespace vernier
