#include "journal.h"

#include <fcntl.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/json_in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shared/hyper_parameters.h"

namespace control {

using vernier::Error;
using vernier::Json;

std::vector<Recorded> read_journal(const std::filesystem::path& file, std::int64_t& next_id) {
  std::vector<Recorded> all;
  next_id = 1;
  const auto text = vernier::text_in(file);
  int number = 0;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    number += 1;
    try {
      const auto line = vernier::json_in<Json>(text.substr(begin, end - begin));
      const auto id = line.at("id").get<std::int64_t>();
      next_id = std::max(next_id, id + 1);
      if (!line.contains("command")) continue;
      auto command = command_of(line.at("command"));
      if (command.steers()) all.push_back({id, line.at("moment").get<std::int64_t>(), std::move(command)});
    } catch (...) {
      throw Error(file.string() + ": line " + std::to_string(number) +
                  " is not a command of a run, so the run cannot be repeated; restore the file");
    }
  }
  std::ranges::stable_sort(all, {}, &Recorded::moment);
  return all;
}

Journal::Journal(std::filesystem::path file) : file_(std::move(file)) {
  descriptor_ = ::open(file_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor_ < 0) throw Error(file_.string() + ": cannot be written: " + std::strerror(errno));
  const auto text = vernier::text_in(file_);
  const auto whole = text.rfind('\n') + 1;  // 0 if there is none
  if (whole != text.size() && ::ftruncate(descriptor_, static_cast<off_t>(whole)) != 0) {
    throw Error(file_.string() + ": half a line cannot be cut off: " + std::strerror(errno));
  }
}

Journal::~Journal() {
  ::close(descriptor_);
}

void Journal::asked(const Board::Asked& asked, std::int64_t step, std::int64_t moment) {
  write({{"id", asked.id},
         {"time", vernier::time_text()},
         {"who", asked.who},
         {"command", asked.command.body},
         {"step", step},
         {"moment", moment}});
}

void Journal::answered(std::int64_t id, const Result& result) {
  write({{"id", id},
         {"time", vernier::time_text()},
         {"state", result.is_done ? "done" : "refused"},
         {"answer", result.text}});
}

void Journal::write(const Json& line) {
  const auto text = vernier::json_text(line) + "\n";
  const auto written = ::write(descriptor_, text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size()) && ::fdatasync(descriptor_) == 0) return;
  const std::string why = std::strerror(errno);
  // Half a line would be one with the next.
  const auto end = ::lseek(descriptor_, 0, SEEK_END);
  if (written > 0 && ::ftruncate(descriptor_, end - written) != 0) throw Error(file_.string() + ": is damaged: " + why);
  throw Error(file_.string() + ": cannot be written: " + why);
}

}  // namespace control
