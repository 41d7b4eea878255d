#include "service/queue/journal.h"

#include <sys/stat.h>

#include <algorithm>
#include <iomanip>
#include <random>
#include <sstream>
#include <stdexcept>

#include "service/database/sqlite.h"
#include "service/http/http_service.h"

namespace serve {

namespace {

constexpr int format = 3;  // version of the table

constexpr const char* schema = R"(CREATE TABLE IF NOT EXISTS job(
  id INTEGER PRIMARY KEY AUTOINCREMENT, identity TEXT NOT NULL, user TEXT NOT NULL, name TEXT NOT NULL, key TEXT,
  priority INT NOT NULL, cores INT NOT NULL, gpus INT NOT NULL, time_limit INT NOT NULL, memory_limit INT NOT NULL,
  retries INT NOT NULL,
  state TEXT NOT NULL DEFAULT 'queued' CHECK(state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
  attempt INT NOT NULL DEFAULT 1, failures INT NOT NULL DEFAULT 0, losses INT NOT NULL DEFAULT 0,
  is_cancelled INT NOT NULL DEFAULT 0, gpu_list TEXT NOT NULL DEFAULT '', created TEXT NOT NULL,
  slurm TEXT NOT NULL DEFAULT '', started TEXT NOT NULL DEFAULT '', ended TEXT NOT NULL DEFAULT '',
  error TEXT NOT NULL DEFAULT '',
  UNIQUE(user, key)) STRICT;
CREATE INDEX IF NOT EXISTS job_state ON job(state);
CREATE TABLE IF NOT EXISTS request(
  id INTEGER PRIMARY KEY REFERENCES job(id), config TEXT NOT NULL, texts_name TEXT NOT NULL, texts TEXT NOT NULL
) STRICT;)";

constexpr const char* columns =
    "id, user, name, key, identity, priority, cores, gpus, time_limit, memory_limit, retries, state, attempt, "
    "failures, "
    "losses, is_cancelled, gpu_list, created, started, ended, error, slurm";

std::string text_of(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : " ") + std::to_string(number);
  return text;
}

std::vector<int> numbers_in(const std::string& text) {
  std::istringstream words(text);
  std::vector<int> numbers;
  for (int number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

Job job_of(Statement& row) {
  Job job;
  job.id = row.integer(0);
  job.identity = row.text(4);
  job.request = {.user = row.text(1),
                 .name = row.text(2),
                 .key = row.text(3),
                 .config = "",
                 .texts_name = "",
                 .texts = "",
                 .priority = row.integer(5),
                 .cores = row.integer(6),
                 .gpus = row.integer(7),
                 .time_limit = row.integer(8),
                 .memory_limit = row.integer(9),
                 .retries = row.integer(10)};
  job.state = static_cast<State>(std::ranges::find(state_names, row.text(11)) - state_names.begin());
  job.attempt = row.integer(12);
  job.failures = row.integer(13);
  job.losses = row.integer(14);
  job.is_cancelled = row.integer(15) != 0;
  job.gpus = numbers_in(row.text(16));
  job.created = row.text(17);
  job.started = row.text(18);
  job.ended = row.text(19);
  job.error = row.text(20);
  job.slurm = row.text(21);
  return job;
}

std::vector<Job> jobs_of(Statement& statement) {
  std::vector<Job> jobs;
  while (statement.step()) jobs.push_back(job_of(statement));
  return jobs;
}

// 32 random digits.
std::string new_identity() {
  std::random_device random;
  std::ostringstream text;
  for (int i = 0; i < 4; ++i) text << std::hex << std::setw(8) << std::setfill('0') << random();
  return text.str();
}

void refuse_damage(sqlite3* database) {
  Statement check(database, "PRAGMA quick_check(1)");
  check.step();
  auto found = check.text(0);
  std::ranges::replace(found, '\n', ' ');
  if (found != "ok") throw std::runtime_error("is damaged: " + found);
}

std::string select(const std::string& rest) {
  return std::string("SELECT ") + columns + " FROM job " + rest;
}

}  // namespace

Journal::Journal(const std::filesystem::path& file) {
  sqlite3* opened = nullptr;
  const auto mask = ::umask(077);  // for the two files that SQLite puts beside it, too
  const int result = ::sqlite3_open_v2(file.c_str(), &opened,
                                       SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  database_.reset(opened, &::sqlite3_close);
  try {
    if (result != SQLITE_OK) throw DatabaseError(opened);
    ::sqlite3_busy_timeout(opened, 5000);
    refuse_damage(opened);
    run("PRAGMA journal_mode = WAL");
    run("PRAGMA synchronous = FULL");
    Statement version(opened, "PRAGMA user_version");
    version.step();
    if (version.integer(0) != 0 && version.integer(0) != format) {
      throw std::runtime_error(file.string() + ": is a journal of another version of vernier; use another folder");
    }
    run(schema);
    run("PRAGMA user_version = " + std::to_string(format));
    Statement(opened, select("LIMIT 1")).step();
  } catch (const std::exception& error) {
    ::umask(mask);
    throw std::runtime_error(file.string() + ": " + error.what() +
                             "; put a backup in its place, or move it and its -wal and -shm away to begin a new one");
  }
  ::umask(mask);
}

void Journal::run(const std::string& statement) const {
  execute(database_.get(), statement);
}

Job Journal::add(const JobRequest& request, bool& is_new) {
  std::int64_t id = 0;
  transaction(database_.get(), [&] {
    Statement insert(
        database_.get(),
        "INSERT INTO job(user, name, key, identity, priority, cores, gpus, time_limit, memory_limit, retries, "
        "created) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(user, key) DO NOTHING");
    insert.bind(request.user).bind(request.name);
    request.key.empty() ? insert.bind_null() : insert.bind(request.key);
    insert.bind(new_identity()).bind(request.priority).bind(request.cores).bind(request.gpus);
    insert.bind(request.time_limit).bind(request.memory_limit).bind(request.retries).bind(vernier::time_text()).step();
    is_new = ::sqlite3_changes(database_.get()) == 1;
    id = ::sqlite3_last_insert_rowid(database_.get());
    if (!is_new) return;
    Statement texts(database_.get(),
                    "INSERT OR REPLACE INTO request(id, config, texts_name, texts) VALUES(?, ?, ?, ?)");
    texts.bind(id).bind(request.config).bind(request.texts_name).bind(request.texts).step();
  });
  if (is_new) return find(id).value();
  Statement same(database_.get(), select("WHERE user = ? AND key = ?"));
  same.bind(request.user).bind(request.key).step();
  return job_of(same);
}

std::optional<Job> Journal::find(std::int64_t id) const {
  Statement one(database_.get(), select("WHERE id = ?"));
  if (!one.bind(id).step()) return std::nullopt;
  auto job = job_of(one);
  Statement texts(database_.get(), "SELECT config, texts_name, texts FROM request WHERE id = ?");
  if (texts.bind(id).step()) {
    job.request.config = texts.text(0);
    job.request.texts_name = texts.text(1);
    job.request.texts = texts.text(2);
  }
  return job;
}

void Journal::update(const Job& job) {
  Statement change(database_.get(),
                   "UPDATE job SET state = ?, attempt = ?, failures = ?, losses = ?, is_cancelled = ?, gpu_list = ?, "
                   "slurm = ?, started = ?, ended = ?, error = ? WHERE id = ?");
  change.bind(name_of(job.state)).bind(job.attempt).bind(job.failures).bind(job.losses);
  change.bind(std::int64_t{job.is_cancelled}).bind(text_of(job.gpus)).bind(job.slurm);
  change.bind(job.started).bind(job.ended).bind(job.error).bind(job.id).step();
}

void Journal::remove(std::int64_t id) {
  Statement(database_.get(), "DELETE FROM request WHERE id = ?").bind(id).step();
  Statement(database_.get(), "DELETE FROM job WHERE id = ?").bind(id).step();
}

void Journal::count_on_from(std::int64_t id) {
  run("INSERT INTO sqlite_sequence(name, seq) SELECT 'job', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence)");
  Statement(database_.get(), "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'job'").bind(id).step();
}

std::vector<Job> Journal::queued(std::int64_t limit) const {
  Statement all(database_.get(), select("WHERE state = 'queued' ORDER BY priority DESC, id LIMIT ?"));
  all.bind(limit);
  return jobs_of(all);
}

std::vector<Job> Journal::running() const {
  Statement all(database_.get(), select("WHERE state = 'running' ORDER BY id"));
  return jobs_of(all);
}

std::vector<Job> Journal::ended_before(const std::string& time) const {
  Statement all(database_.get(), select("WHERE state NOT IN ('queued', 'running') AND ended < ? ORDER BY id"));
  all.bind(time);
  return jobs_of(all);
}

std::vector<Job> Journal::list(const Page& page) const {
  Statement all(database_.get(), select("WHERE (?1 = 0 OR id < ?1) AND (?2 = '' OR state = ?2) AND "
                                        "(?3 = '' OR user = ?3) ORDER BY id DESC LIMIT ?4"));
  all.bind(page.before).bind(page.state).bind(page.user).bind(page.limit);
  return jobs_of(all);
}

std::int64_t Journal::count(State state) const {
  Statement one(database_.get(), "SELECT count(*) FROM job WHERE state = ?");
  one.bind(name_of(state)).step();
  return one.integer(0);
}

}  // namespace serve
