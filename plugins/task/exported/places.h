// Labels that a sample has one of for each pixel or token, of task/graph and task/script.
#pragma once

#include <vernier/data/data_source.h>
#include <vernier/options.h>
#include <vernier/state.h>

#include <cstdint>
#include <string>
#include <vector>

namespace exported {

class Places {
 public:
  explicit Places(vernier::Options& options);  // reads ignore_index

  // Returns true if labels are read by read(). output: of the model for two samples, where it is known.
  bool take(const vernier::Source& labels, const torch::Tensor& output, bool of_classes) const;
  // Returns the labels in the shape that the model learned. Classes are int64, and -100 where they are left out; others
  // are float32. count: the number of classes, or of labels of a place; 0: it is learned, as the shape is. input: the
  // shape of a sample's first input.
  torch::Tensor read(const vernier::Source& labels, const torch::Tensor& output, c10::IntArrayRef input,
                     bool of_classes, std::int64_t& count);
  // Returns logits [samples, …, classes] as losses and metrics take them: [samples, classes, …].
  torch::Tensor classes_first(const torch::Tensor& output) const;

  const std::vector<std::int64_t>& shape() const { return shape_; }  // shape of a sample's labels; empty: no places
  std::int64_t left_out() const { return left_out_; }
  bool are_left_out() const { return are_left_out_; }  // labels of classes that read() has read
  const std::string& doubt() const { return doubt_; }  // a warning about what was learned; "": none
  void recall(const vernier::State& learned);          // shape() of a run
  void refuse_ignore_index(const char* reason) const;  // if it was given

 private:
  void learn(const vernier::Source& labels, c10::IntArrayRef output, c10::IntArrayRef input, bool of_classes,
             std::int64_t& count);

  std::int64_t left_out_;
  bool is_given_, are_left_out_ = false;
  std::vector<std::int64_t> shape_;
  std::string doubt_;
};

// Returns the sizes that a State has as a tensor.
std::vector<std::int64_t> sizes_in(const torch::Tensor& saved);

// A folder of pictures, in float32 from 0 to 1, and the numbers of their masks' pixels, uint8 [samples, height, width].
// A picture and its mask have the same name, but for its ending. size: as of of_one_size().
struct MaskedPictures {
  vernier::DatasetPtr pictures;
  vernier::Source masks;
  std::string left_out;  // the same as ImageFiles::left_out
};
MaskedPictures masked_pictures(const std::string& pictures, const std::string& masks, std::int64_t size);
// Returns {picture, labels}. Labels of classes may be int16.
vernier::DatasetPtr with_labels(vernier::DatasetPtr pictures, torch::Tensor labels);

}  // namespace exported
