#include <vernier/predictor.h>

namespace vernier {

Predictor::~Predictor() = default;
std::vector<Predictor::Column> Predictor::predict(const Batch&) {
  return {};
}
std::string Predictor::python_model() const {
  return "";
}
bool Predictor::save_torchscript(const std::string&) const {
  return false;
}

}  // namespace vernier
