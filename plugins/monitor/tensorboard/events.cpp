#include "events.h"

#include <boost/crc.hpp>

#include <bit>

namespace vernier::tensorboard {

namespace {

// The numbers of fields, from the .proto files.
namespace event {
constexpr int wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace session_log {
constexpr int status = 1, start = 1;
}
namespace summary {
constexpr int value = 1;
}
namespace value {
constexpr int tag = 1, simple_value = 2, histogram = 5, tensor = 8, metadata = 9;
}
namespace metadata {
constexpr int plugin_data = 1, description = 3;
constexpr int plugin_name = 1, content = 2;  // fields of plugin_data
}  // namespace metadata
namespace histogram {
constexpr int min = 1, max = 2, num = 3, sum = 4, sum_squares = 5, bucket_limit = 6, bucket = 7;
}
namespace tensor {
constexpr int dtype = 1, shape = 2, string_value = 8;
constexpr int dtype_string = 7;
constexpr int dimension = 2, size = 1;  // dimension: a field of shape; size: a field of dimension
}  // namespace tensor
namespace hparams {
constexpr int start_info = 3, end_info = 4;                        // fields of HParamsPluginData
constexpr int values = 1, group_name = 4, start_time = 5;          // fields of SessionStartInfo
constexpr int status = 1, end_time = 2, success = 1, failure = 2;  // fields and values of SessionEndInfo
constexpr int map_key = 1, map_value = 2;
constexpr int number = 2, text = 3, flag = 4;  // fields of google.protobuf.Value
}  // namespace hparams

template <class T>
void append(std::string& bytes, T value) {
  static_assert(std::endian::native == std::endian::little);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(static_cast<std::uint32_t>(crc.checksum()), 15) + 0xa282ead8U;
}

Message plugin_metadata(const char* plugin, const std::string& content = "") {
  Message data;
  data.bytes(metadata::plugin_name, plugin);
  if (!content.empty()) data.bytes(metadata::content, content);
  return Message().part(metadata::plugin_data, data);
}

void add_session(Message& to, const char* tag, const Message& info) {
  Message one;
  one.bytes(value::tag, tag).part(value::metadata, plugin_metadata("hparams", info.text()));
  to.part(summary::value, one);
}

}  // namespace

void Message::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
  bytes_ += static_cast<char>(value);
}

void Message::key(int field, int type) {
  varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
}

Message& Message::integer(int field, std::int64_t value) {
  key(field, 0);
  varint(static_cast<std::uint64_t>(value));
  return *this;
}

Message& Message::real(int field, double value) {
  key(field, 1);
  append(bytes_, value);
  return *this;
}

Message& Message::real32(int field, float value) {
  key(field, 5);
  append(bytes_, value);
  return *this;
}

Message& Message::bytes(int field, std::string_view value) {
  key(field, 2);
  varint(value.size());
  bytes_ += value;
  return *this;
}

Message& Message::reals(int field, const std::vector<double>& values) {
  std::string packed;
  for (const double each : values) append(packed, each);
  return bytes(field, packed);
}

std::string framed(const std::string& data) {
  std::string record;
  append(record, static_cast<std::uint64_t>(data.size()));
  append(record, masked_crc32c(record));
  record += data;
  append(record, masked_crc32c(data));
  return record;
}

std::string version_event(double time) {
  return framed(Message().real(event::wall_time, time).bytes(event::file_version, "brain.Event:2").text());
}

std::string restart_event(double time, std::int64_t step) {
  const auto log = Message().integer(session_log::status, session_log::start);
  return framed(Message().real(event::wall_time, time).integer(event::step, step).part(event::session_log, log).text());
}

std::string summary_event(double time, std::int64_t step, const Message& values) {
  return framed(Message().real(event::wall_time, time).integer(event::step, step).part(event::summary, values).text());
}

void add_scalar(Message& to, const std::string& tag, double number, const std::string& description) {
  Message one;
  one.bytes(value::tag, tag).real32(value::simple_value, static_cast<float>(number));
  if (!description.empty()) {
    one.part(value::metadata, plugin_metadata("scalars").bytes(metadata::description, description));
  }
  to.part(summary::value, one);
}

void add_histogram(Message& to, const Histogram& from) {
  const double width = (from.max - from.min) / static_cast<double>(from.counts.size());
  std::vector<double> limits;
  for (std::size_t i = 1; i <= from.counts.size(); ++i) limits.push_back(from.min + width * static_cast<double>(i));
  Message proto;
  proto.real(histogram::min, from.min).real(histogram::max, from.max).real(histogram::num, from.count);
  proto.real(histogram::sum, from.sum).real(histogram::sum_squares, from.sum_of_squares);
  proto.reals(histogram::bucket_limit, limits).reals(histogram::bucket, from.counts);
  to.part(summary::value, Message().bytes(value::tag, from.name).part(value::histogram, proto));
}

void add_text(Message& to, const std::string& tag, const std::string& markdown) {
  const auto shape = Message().part(tensor::dimension, Message().integer(tensor::size, 1));
  Message strings;
  strings.integer(tensor::dtype, tensor::dtype_string).part(tensor::shape, shape).bytes(tensor::string_value, markdown);
  Message one;
  one.bytes(value::tag, tag + "/text_summary").part(value::tensor, strings);
  to.part(summary::value, one.part(value::metadata, plugin_metadata("text")));
}

void add_hyper_parameters(Message& to, const std::vector<HyperParameter>& all, const std::string& run, double time) {
  Message info;
  for (const auto& [name, parameter] : all) {
    Message one;
    if (const auto* number = std::get_if<double>(&parameter)) {
      one.real(hparams::number, *number);
    } else if (const auto* flag = std::get_if<bool>(&parameter)) {
      one.integer(hparams::flag, *flag ? 1 : 0);
    } else {
      one.bytes(hparams::text, std::get<std::string>(parameter));
    }
    info.part(hparams::values, Message().bytes(hparams::map_key, name).part(hparams::map_value, one));
  }
  info.bytes(hparams::group_name, run).real(hparams::start_time, time);
  add_session(to, "_hparams_/session_start_info", Message().part(hparams::start_info, info));
}

void add_end(Message& to, bool has_failed, double time) {
  Message info;
  info.integer(hparams::status, has_failed ? hparams::failure : hparams::success).real(hparams::end_time, time);
  add_session(to, "_hparams_/session_end_info", Message().part(hparams::end_info, info));
}

}  // namespace vernier::tensorboard
