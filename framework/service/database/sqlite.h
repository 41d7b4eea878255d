// Statements of SQLite, for the journal of jobs and monitor/mlflow.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace serve {

// code: SQLite's, such as SQLITE_FULL.
struct DatabaseError : std::runtime_error {
  explicit DatabaseError(sqlite3* database)
      : std::runtime_error(std::string("the database cannot be used: ") + ::sqlite3_errmsg(database)),
        code(::sqlite3_errcode(database)) {}
  int code;
};

inline void execute(sqlite3* database, const std::string& statements) {
  if (::sqlite3_exec(database, statements.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    throw DatabaseError(database);
  }
}

// Calls body between BEGIN and COMMIT. After an exception the database is as it was before.
template <class Body>
void transaction(sqlite3* database, const Body& body) {
  execute(database, "BEGIN IMMEDIATE");
  try {
    body();
    execute(database, "COMMIT");
  } catch (...) {
    ::sqlite3_exec(database, "ROLLBACK", nullptr, nullptr, nullptr);
    throw;
  }
}

class Statement {
 public:
  Statement(sqlite3* database, const std::string& text) : database_(database) {
    if (::sqlite3_prepare_v2(database, text.c_str(), -1, &statement_, nullptr) != SQLITE_OK) {
      throw DatabaseError(database);
    }
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() { ::sqlite3_finalize(statement_); }

  Statement& bind(const std::string& text) {
    ::sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(std::int64_t number) {
    ::sqlite3_bind_int64(statement_, ++bound_, number);
    return *this;
  }
  Statement& bind(double number) {
    ::sqlite3_bind_double(statement_, ++bound_, number);
    return *this;
  }
  Statement& bind_null() {
    ::sqlite3_bind_null(statement_, ++bound_);
    return *this;
  }
  // Runs the statement to its next row. Returns false if there are no more rows.
  bool step() {
    const int result = ::sqlite3_step(statement_);
    if (result != SQLITE_ROW && result != SQLITE_DONE) throw DatabaseError(database_);
    return result == SQLITE_ROW;
  }
  // Runs a statement that returns no row; the next values are bound from the first place on.
  void run() {
    step();
    ::sqlite3_reset(statement_);
    bound_ = 0;
  }
  std::string text(int column) {
    const auto* text = reinterpret_cast<const char*>(::sqlite3_column_text(statement_, column));
    return text == nullptr ? ""
                           : std::string(text, static_cast<std::size_t>(::sqlite3_column_bytes(statement_, column)));
  }
  std::int64_t integer(int column) { return ::sqlite3_column_int64(statement_, column); }

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

}  // namespace serve
