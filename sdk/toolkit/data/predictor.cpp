#include <vernier/predictor.h>
#include <vernier/published_model.h>
#include <vernier/weighs_samples.h>

namespace vernier {

Predictor::~Predictor() = default;
PublishedModel::~PublishedModel() = default;
WeighsSamples::~WeighsSamples() = default;
std::vector<Predictor::Column> Predictor::predict(const Batch&) {
  return {};
}
std::string Predictor::description() const {
  return "";
}
std::string Predictor::python_model() const {
  return "";
}
bool Predictor::save_torchscript(const std::string&) const {
  return false;
}

}  // namespace vernier
