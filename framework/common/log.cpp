#include "log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "common/text/terminal.h"

namespace vernier {

namespace {

constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                spdlog::level::err};

// The text of a message, broken into lines of the terminal.
class WrappedText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const auto text = wrapped({message.payload.data(), message.payload.size()}, screen_of(STDERR_FILENO).columns, 2);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<WrappedText>(); }
};

// A progress bar may stand in the terminal's last line: each log line first clears it.
std::unique_ptr<spdlog::formatter> terminal_format() {
  auto format = std::make_unique<spdlog::pattern_formatter>();
  format->add_flag<WrappedText>('*').set_pattern(isatty(STDERR_FILENO) != 0 ? "\r\x1b[K%^%*%$" : "%v");
  return format;
}

// https://no-color.org
spdlog::color_mode colours() {
  const char* no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || *no_color == '\0' ? spdlog::color_mode::automatic : spdlog::color_mode::never;
}

spdlog::logger& logger() {
  static const auto instance = [] {
    auto terminal = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(colours());
    terminal->set_formatter(terminal_format());
    auto made = std::make_shared<spdlog::logger>("vernier", terminal);
    made->set_level(spdlog::level::debug);
    terminal->set_level(spdlog::level::info);
    // A log that cannot be written (a full disk) is not a reason to say more than what was to be logged.
    made->set_error_handler([](const std::string&) {});
    return made;
  }();
  return *instance;
}

std::mutex file_mutex;
std::shared_ptr<spdlog::logger> file_logger;

}  // namespace

void write_log(int level, const std::string& who, const std::string& text) {
  logger().log(levels[level], "{}: {}", who, text);
  write_log_file(level, who, text);
}

void set_log_level(int level) {
  logger().sinks().front()->set_level(levels[level]);
}

void open_log_file(const std::string& path) {
  auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  sink->set_pattern("%Y-%m-%d %H:%M:%S %l %v");
  auto made = std::make_shared<spdlog::logger>("vernier file", std::move(sink));
  made->flush_on(spdlog::level::info);
  made->set_error_handler([](const std::string&) {});
  const std::lock_guard lock(file_mutex);
  file_logger = std::move(made);
}

void write_log_file(int level, const std::string& who, const std::string& text) {
  const std::lock_guard lock(file_mutex);
  if (file_logger != nullptr) file_logger->log(levels[level], "{}: {}", who, text);
}

void close_log_file() {
  const std::lock_guard lock(file_mutex);
  file_logger.reset();
}

}  // namespace vernier
