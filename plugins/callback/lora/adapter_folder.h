// A folder of PEFT with an adapter: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <vernier/state.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lora {

struct Shape {
  std::int64_t rank = 8;
  double alpha = 8, dropout = 0;
  bool rslora = false, dora = false, fan_in_fan_out = false;
};

class AdapterFolder {
 public:
  // Throws Error with file and key for what callback/lora does not know and what changes numbers.
  explicit AdapterFolder(const std::string& path);

  const Shape& shape() const { return shape_; }
  // Sorts the layers of a model, by their own names, into those with matrices and those that were trained whole.
  // A name of the file may have a prefix more or less than the model's. Throws Error for a layer that is not there.
  void find_layers(const std::vector<std::string>& layers);
  bool has_matrices(const std::string& layer) const { return matrices_.count(layer) > 0; }
  const std::vector<std::string>& whole() const { return whole_; }

  // Copies a tensor into one of the model: "lora_A.weight" of a layer. Throws Error if it is missing or does not fit.
  void put(const std::string& layer, const std::string& part, torch::Tensor into);
  void refuse_unused() const;  // tensors that put() has not taken

 private:
  [[noreturn]] void refuse(const std::string& reason) const;
  const std::string& own_name(const std::vector<std::string>& layers, const std::string& name) const;

  std::string path_;
  Shape shape_;
  bool is_tied_ = false;                               // tied layers have their tensors under each of their names
  vernier::Tensors tensors_;                           // without "base_model.model."
  std::map<std::string, std::string> matrices_;        // own name of a layer, name in the file
  std::map<std::string, std::string> names_of_whole_;  // the same
  std::vector<std::string> whole_;
};

}  // namespace lora
