// TensorBoard's event files: protocol buffers in the frames of TFRecord. Written by hand, since a library of protocol
// buffers would collide with LibTorch's own (docs/decisions/0012).
//
// Sources, all in github.com/tensorflow/tensorboard: compat/proto/event.proto, summary.proto, tensor.proto;
// plugins/text/metadata.py; plugins/hparams/plugin_data.proto; and the comment in TensorFlow's lib/io/record_writer.h.
#pragma once

#include <vernier/record.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "shared/hyper_parameters.h"

namespace vernier::tensorboard {

// A message of protocol buffers, field by field.
class Message {
 public:
  Message& integer(int field, std::int64_t value);
  Message& real(int field, double value);
  Message& real32(int field, float value);
  Message& bytes(int field, std::string_view value);
  Message& part(int field, const Message& value) { return bytes(field, value.bytes_); }
  Message& reals(int field, const std::vector<double>& values);  // packed
  const std::string& text() const { return bytes_; }

 private:
  void key(int field, int type);
  void varint(std::uint64_t value);
  std::string bytes_;
};

// A record of TFRecord: length, its checksum, the data, its checksum.
std::string framed(const std::string& data);

// Events. time: seconds since 1970. Each returns the bytes to append to the file.
std::string version_event(double time);  // first in the file
// Marks all events of this step and later ones as superseded, after a resume or a rewind.
std::string restart_event(double time, std::int64_t step);
// summary: of the values below.
std::string summary_event(double time, std::int64_t step, const Message& summary);

// Values of a summary.
void add_scalar(Message& summary, const std::string& tag, double value, const std::string& description);
void add_histogram(Message& summary, const Histogram& histogram);
void add_text(Message& summary, const std::string& tag, const std::string& markdown);
// The run's options, for the page HPARAMS, when it begins; and how it ended.
void add_hyper_parameters(Message& summary, const std::vector<HyperParameter>& all, const std::string& run,
                          double time);
void add_end(Message& summary, bool has_failed, double time);

}  // namespace vernier::tensorboard
