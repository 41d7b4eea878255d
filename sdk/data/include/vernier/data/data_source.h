// Data that a TOML names in a string, for tasks. Such a string is called a source:
//
//   "x.npy"                 the array of a NumPy file
//   "x.npz:images"          an array of a NumPy archive
//   "x.safetensors:images"  a tensor of a safetensors file
//   "x.csv"                 all columns of a CSV file: float64 [rows, columns]
//   "x.csv:price,size"      these columns, in this order
//   "x.csv:price"           one column: float64 [rows], or for a column of words their codes, int64 [rows]
//
// All functions throw Error::Kind::configuration with the source, where possible the sample, and what is wrong.
#pragma once

#include <vernier/abi.h>
#include <vernier/data/csv.h>
#include <vernier/data/dataset.h>
#include <vernier/data/transforms.h>
#include <vernier/options.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace vernier {

struct Source {
  std::string name;  // the name in the TOML
  // On the CPU, dimension 0 the sample. Decimal numbers are float32 or float64, unsigned integers above 8 bits int64.
  torch::Tensor tensor;
  std::vector<std::string> columns;                         // CSV file: its column names
  std::vector<std::string> words;                           // column of words: the code i stands for words[i]
  std::function<std::string(std::int64_t row)> where = {};  // CSV file: "'x.csv' line 17"
};

// words: of another file, if a column of words is to have the same codes. columns: of another file: a CSV file whose
// columns the source does not name gives these, and one that names them in another order is refused. form: how CSV
// files are read, from csv_options().
VERNIER_API Source read_source(const std::string& name, const std::vector<std::string>& words = {},
                               const std::vector<std::string>& columns = {}, const CsvOptions& form = {});

// The same part of another file: "x.npz:images" and "y.npz" give "y.npz:images". A file that names its part keeps it.
VERNIER_API std::string same_part(const std::string& name, const std::string& file);
// The file of a source: "x.npz:images" gives "x.npz".
VERNIER_API std::string file_of(const std::string& name);

// Logs a warning of the plugin `id` for each file or array of `validation` that is in `data` too. Logs none if a source
// of `validation` shares nothing with `data`, because it has other samples. An entry of both lists is a source, or a
// pattern of CSV files.
VERNIER_API void warn_if_in_both(const std::string& id, const std::vector<std::string>& data,
                                 const std::vector<std::string>& validation);

// The data that a task's options name, and the rule of what its trained model is evaluated on: "What is evaluated" in
// docs/guides/tasks.md.
struct VERNIER_API NamedData {
  struct Files {
    std::vector<std::string> names;  // sources of an option such as `data`
    std::string targets;             // source of one such as `targets`; "": none
    bool is_given() const { return !names.empty() && !names[0].empty(); }
    bool is_one_file() const { return is_given() && file_of(targets) == file_of(names[0]); }
  };
  Files training, validation;
  std::string option, targets_option;  // names of those of `validation`, for errors
  bool is_list = false;                // the first is a list

  // For set_learned(). contents: identify the files of `training`, one by one or together. held_out: those of their
  // samples that are held out, or null.
  State facts(const std::vector<std::string>& contents, const DatasetPtr& held_out) const;
  // Reads what a trained model is evaluated on: all of the files that `read` gets last, or what hold_out() then holds
  // out of them, as training did. read: returns their contents. hold_out: may return null.
  void read_again(const State& learned, const std::function<std::vector<std::string>(const Files& files)>& read,
                  const std::function<DatasetPtr()>& hold_out) const;
};

// Refuses a source with a number that is NaN or infinite.
VERNIER_API void require_finite(const Source& source);

// The classes of a target.
struct Classes {
  std::int64_t count = 0;          // 0: not known yet
  std::vector<std::string> words;  // their names; none: class i is the number i
};
// Returns the labels of a source as codes, int64 [samples]. If `classes` is not known yet, it becomes that of the
// source: its words, its numbers if they are 0, 1, … without a gap, or else words for its different whole numbers in
// ascending order. Refuses fractions, a label that known classes lack, and more different labels than half the samples.
// for_numbers: how to predict numbers instead, for that error: "set kind = \"regression\"".
VERNIER_API torch::Tensor codes_of(const Source& source, Classes& classes, const std::string& for_numbers);
// Returns labels of any shape as int64: 0 to classes - 1, and -100 in the place of `left_out`. Refuses all others.
VERNIER_API torch::Tensor codes_of(const Source& source, std::int64_t classes, std::int64_t left_out);
// The name of each class.
VERNIER_API std::vector<std::string> names_of(const Classes& classes);
// Returns the different numbers in order if they look like classes and not like measurements: at most 20 whole ones,
// of six samples each, or of three where they are 0, 1, 2, … or 1, 2, 3, …. Undefined otherwise, and for counts: more
// than about nine numbers that become more and then less frequent, with rare ones at the ends.
VERNIER_API torch::Tensor class_numbers(const torch::Tensor& numbers);
// Returns whether numbers are at most 50 different whole ones, so that they might be meant as classes.
VERNIER_API bool are_few_whole(const torch::Tensor& numbers);
// Returns a phrase on two words that differ in their case or in blanks at their ends alone, or that are one number (1
// and 1.0); "" if there are none.
VERNIER_API std::string alike_words(const std::vector<std::string>& words);
// Returns a line such as "3 classes: ant 20, bee 31, cat 9", with the samples of each.
VERNIER_API std::string counted(const Classes& classes, const torch::Tensor& codes);

// Returns the cross-entropy of logits and labels in which all classes count the same in sum. counts: the training
// samples of each class. It is a mean over samples, not over weights, so micro-batches add up to the batch.
VERNIER_API std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& target)>
balanced_cross_entropy(const torch::Tensor& counts);

// Texts in a State, under one name.
VERNIER_API void put_words(State& state, const std::string& name, const std::vector<std::string>& words);
VERNIER_API std::vector<std::string> words_of(const State& state, const std::string& name);

// An XXH3 checksum of tensors, so that a run is not resumed with others.
VERNIER_API std::string fingerprint_of(const std::vector<torch::Tensor>& tensors);

// Sample i has entry i of each tensor. name: for messages. where: names a sample; without it "'name' sample i" does.
VERNIER_API DatasetPtr dataset_of(std::vector<torch::Tensor> tensors, std::string name, std::string fingerprint,
                                  std::function<std::string(std::int64_t index)> where = {});

// Images without classes: one file, those that a CSV file lists in its column `file`, or the PNG, JPEG and WebP files
// of a folder by name, without those whose names begin with a dot. Sample: {uint8 [channels, height, width], int64
// number of the file in `names`}. With options.frames clips as of image_folder(): a .npy file, a folder of frames, or a
// folder of both.
struct ImageOptions;
struct ImageFiles {
  DatasetPtr dataset;
  std::vector<std::string> names;
  std::string left_out;  // a sentence about what is left out: see ImageFolder
};
VERNIER_API ImageFiles image_files(const std::string& path, const ImageOptions& options);

// The middle square of each image or frame as size x size pixels; 0: images stay, and one of another size than the
// first is refused.
VERNIER_API DatasetPtr of_one_size(const DatasetPtr& images, std::int64_t size, Pixels pixels = Pixels::colours);

}  // namespace vernier
