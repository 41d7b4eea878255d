#include <vernier/data/predictor.h>
#include <vernier/error.h>

namespace vernier {

TrainedModel::~TrainedModel() = default;
void TrainedModel::use_trained(const State&, bool) {}

Predictor::~Predictor() = default;
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
