// Datasets of files: JSON Lines, IDX and safetensors. csv.h, numpy.h and images.h have the others.
//
//   auto digits = vernier::idx_dataset("train-images.gz", "train-labels.gz");
//
// Any thread may call the functions. The datasets map their files into memory, except for IDX, and throw Error if a
// file has changed since it was opened. All errors name the file, and the line or sample if there is one. The
// fingerprint has the size and an XXH3 checksum of each file; of a file over 256 MB, the checksum of 256 blocks of 1
// MB.
#pragma once

#include <vernier/abi.h>
#include <vernier/data/dataset.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

// "1024 bytes, XXH3 0123…", as the fingerprints of datasets have it of each file.
VERNIER_API std::string file_fingerprint(const std::string& path);

// A field of JSON Lines and what becomes of it:
//   kFloat32, kFloat64, kInt64, kBool   a number, whole number or bool: a tensor without dimensions; or an array of
//                                       them, or of arrays of the same length, of any depth: a tensor of that shape
//   kUInt8                              a text: its bytes in UTF-8
struct JsonField {
  std::string name;
  torch::ScalarType type = torch::ScalarType::Float;
};

// Sample i is the fields of line i + 1, which is a JSON object (https://jsonlines.org). The beginnings of the lines are
// found when the file is opened, 8 bytes of memory for each; get() parses a line. It throws Error if the line is no
// JSON, or a field is missing, null or of another type.
VERNIER_API DatasetPtr json_lines_dataset(const std::string& path, std::vector<JsonField> fields);

// The unsigned bytes of an IDX file, the format of MNIST (LeCun, http://yann.lecun.com/exdb/mnist), with so many
// dimensions, packed by gzip or not: bytes 0, 0, type, number of dimensions, then a big-endian 32-bit size for each
// dimension, then the elements, the last dimension running fastest. Throws Error for another type, too few or too many
// bytes, a damaged gzip stream, and, before it reads them, for elements of more than max_bytes bytes.
VERNIER_API torch::Tensor read_idx(const std::string& path, std::int64_t dimensions,
                                   std::int64_t max_bytes = 4'000'000'000);

// Images and their labels in memory. Sample: {uint8 [height, width], int64 label}. Throws Error if the numbers of
// images and labels differ, or if a label is not below `classes`.
VERNIER_API DatasetPtr idx_dataset(const std::string& images, const std::string& labels, std::int64_t classes = 256);

// Sample i has entry i of each of these tensors of a safetensors file: {a[i], b[i], …}. Throws Error if a tensor is
// missing or if they differ in their first dimension.
VERNIER_API DatasetPtr safetensors_dataset(const std::string& path, const std::vector<std::string>& names);

// A format that no reader of tables, texts or tokens reads.
struct OtherFormat {
  std::string name;    // "a Parquet file"
  std::string remedy;  // "convert it: python3 -c …", a line for a shell; "" if there is none
};
enum class ConvertTo { table, text, tokens };
// Returns the format of a file by its first bytes: 512 of them are enough, or all of a shorter file. Of no bytes,
// the format is by the name alone.
VERNIER_API std::optional<OtherFormat> other_format(std::string_view begin, const std::string& path, ConvertTo kind);

}  // namespace vernier
