#include "json.h"

#include <utility>
#include <vector>

#include "file.h"

namespace vernier {

namespace {

// Builds a value and checks it while it is parsed. nlohmann's own callback would take twice the time for the header of
// a model.
class Builder final : public Json::json_sax_t {
 public:
  Builder(const std::string& path, const std::string& what, std::size_t deepest)
      : path_(path), the_("the " + what), deepest_(deepest) {}
  ParsedJson take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // JSON has none
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  // Readers do not agree on which of two values counts.
  bool key(std::string& name) override {
    const auto [member, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) fail(path_, the_ + " has the key '" + name + "' twice");
    member_ = &*member;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 3, …"
    const auto place = what.find("at line");
    fail(path_, the_ + " is not JSON " + (place == std::string::npos ? ": " + what : what.substr(place)));
  }

 private:
  Json& place() {
    if (open_.empty()) return root_.value;
    return open_.back()->is_array() ? open_.back()->emplace_back() : *member_;
  }
  bool put(Json value) {
    place() = std::move(value);
    return true;
  }
  bool open(Json empty) {
    if (open_.size() == deepest_) fail(path_, the_ + " is nested too deeply");
    open_.push_back(&(place() = std::move(empty)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& path_;
  std::string the_;
  std::size_t deepest_;
  ParsedJson root_;
  std::vector<Json*> open_;  // each inside the one before; only the last one grows, so the addresses stay valid
  Json* member_ = nullptr;   // if the last one is an object: the member whose value comes next
};

// From the leaves up: a value without children is freed without memory.
void clear(Json& json) {
  if (!json.is_structured()) return;
  for (Json& child : json) clear(child);
  json.clear();
}

}  // namespace

ParsedJson::~ParsedJson() {
  clear(value);
}

ParsedJson parse_json(const std::string& path, const std::string& what, const std::string& text, std::size_t deepest) {
  // The parser would stop at a NUL and skip a byte-order mark.
  if (text.find('\0') != std::string::npos) fail(path, "the " + what + " is not JSON: it has a NUL");
  if (text.starts_with("\xEF\xBB\xBF")) fail(path, "the " + what + " is not JSON: it starts with a byte-order mark");
  Builder builder(path, what, deepest);
  Json::sax_parse(text, &builder);
  return builder.take();
}

std::string quoted(const std::string& path, const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    fail(path, "a name or text in it is not UTF-8");
  }
}

}  // namespace vernier
