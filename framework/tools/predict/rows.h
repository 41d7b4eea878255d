// Rows that stand in a command or in a request, as files that a task reads.
#pragma once

#include <vernier/options.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/scratch_folder.h"

namespace vernier {

// Returns the row of words "carat=0.3" and "colour=E"; a name that comes again begins the next row. A word that begins
// with { or [ is JSON: a row, or a list of objects. Throws Error for others.
nlohmann::ordered_json rows_of_words(const std::vector<std::string>& words);
// Returns the rows of JSON Lines or of a JSON array; null for any other text, such as CSV.
nlohmann::ordered_json rows_of_text(const std::string& text);
// Returns what to --set for a run, so that it reads the CSV files that GivenRows writes, however its own are written.
std::vector<std::string> plain_form(const Table& config);

class GivenRows {
 public:
  // name: how an error calls row 2: "instances[1]" for "instances", else "row 2".
  GivenRows(const Table& config, std::string name);
  // Writes the rows, and returns the files for Predictor::read_several(). The rows before are gone. An object has a
  // value for each column, a list the numbers of a sequence or an array, and a string a text or an image in base64.
  std::vector<std::string> write(const nlohmann::ordered_json& rows);
  std::vector<std::string> write(const std::string& text);  // the text is CSV, or bytes of NumPy
  // Returns an error about these files with the row in the place of the file and the line.
  std::string reworded(std::string error) const;

 private:
  [[noreturn]] void refuse_row(std::size_t row, const std::string& why) const;
  std::string called(std::size_t row) const;
  std::string file(const std::string& name, const std::string& bytes) const;
  std::string lines(const nlohmann::ordered_json& rows) const;
  std::string table(const nlohmann::ordered_json& rows);
  std::string array(const nlohmann::ordered_json& rows, const std::string& key) const;
  std::string images(const std::vector<std::string>& rows) const;

  Table task_;
  std::string name_;
  void forget();  // the rows before

  ScratchFolder scratch_;
  std::vector<std::size_t> first_lines_;  // the lines where the rows of a CSV file begin
};

}  // namespace vernier
