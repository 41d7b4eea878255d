#include <vernier/error.h>
#include <vernier/predictor.h>
#include <vernier/published_model.h>

namespace vernier {

Predictor::~Predictor() = default;
PublishedModel::~PublishedModel() = default;
std::string PublishedModel::task_type() const {
  return "CAUSAL_LM";
}
DatasetPtr Predictor::read_several(const std::vector<std::string>& paths) {
  if (paths.size() == 1) return read_inputs(paths[0]);
  refuse("the model takes one input, and --input is given " + std::to_string(paths.size()) + " times");
}
std::vector<Predictor::Column> Predictor::predict(const Batch&) {
  return {};
}
std::string Predictor::description() const {
  return "";
}
std::vector<std::string> Predictor::classes() const {
  return {};
}

std::string Predictor::python_model() const {
  return "";
}
bool Predictor::save_pt2(const std::string&) const {
  return false;
}

bool Predictor::save_torchscript(const std::string&) const {
  return false;
}

}  // namespace vernier
