// Files of tokens and texts of every kind that people bring: each is read as what it is, and the log says as what, or
// refused in one line with what helps.
#include <doctest/doctest.h>
#include <vernier/text/tokenizer.h>

#include <cstring>

#include "loaded_task.h"
#include "log_lines.h"
#include "temporary_folder.h"

namespace odd_files_test {

namespace {

using namespace std::string_literals;

const std::string tokenizers = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

// 4000 tokens from 64 to 103.
template <class Number>
std::string tokens(std::size_t count = 4000) {
  std::vector<Number> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<Number>(64 + i % 40);
  return bytes_of(all);
}

std::string npy(const std::string& type, const std::string& shape, const std::string& elements,
                const std::string& fortran = "False") {
  auto header = "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': (" + shape + "), }";
  header.resize(117, ' ');
  return "\x93NUMPY\x01\x00"s + bytes_of<std::uint16_t>({118}) + header + '\n' + elements;
}

std::string llm_c(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& elements) {
  std::vector<std::int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = count;
  return bytes_of(header) + elements;
}

std::string megatron(char type) {
  return "MMIDIDX\0\0"s + bytes_of<std::uint64_t>({1}) + type + bytes_of<std::uint64_t>({1, 2});
}

std::string note(const std::string& type, int count, int vocabulary = 420, const std::string& tokenizer = "") {
  return R"({"format": "vernier tokens 1", "type": ")" + type + "\", \"tokens\": " + std::to_string(count) +
         ", \"vocabulary\": " + std::to_string(vocabulary) + ", \"tokenizer\": \"" + tokenizer + "\"}";
}

struct Case {
  const char* name;  // the file's name
  std::string bytes;
  const char* printed;  // in the log, or in the error
  const char* type = "auto";
  const char* beside = "";  // another file
  std::string bytes_beside = {};
};

// A small GPT-2 for so many tokens.
struct Model {
  explicit Model(std::int64_t vocabulary) {
    folder.write("g/config.json",
                 "{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 2, "
                 "\"n_positions\": 64, \"vocab_size\": " +
                     std::to_string(vocabulary) + "}");
  }
  // The line of the log on the file, or the error.
  std::string read(const std::string& file, const std::string& type, const std::string& tokenizer = "") const {
    const LogLines log;
    vernier::Table table = {
        {"folder", value(folder / "g")},  {"weights", value("random")}, {"data", list<std::string>({file})},
        {"tokenizer", value(tokenizer)},  {"context", value(32)},       {"batch_size", value(2)},
        {"validation_share", value(0.0)}, {"workers", value(0)}};
    if (type != "auto") table["token_type"] = value(type.c_str());
    const auto error = refusal([&] { LoadedTask("gpt", table); });
    if (!error.empty()) return error;
    return LogLines::lines().empty() ? "nothing" : LogLines::lines().front();
  }
  std::string read(const Case& odd) const {
    const auto path = folder.write(odd.name, odd.bytes);
    if (*odd.beside != '\0') folder.write(odd.beside, odd.bytes_beside);
    auto text = read(path, odd.type);
    std::filesystem::remove(path);
    if (*odd.beside != '\0') std::filesystem::remove(folder.path() / odd.beside);
    return text;
  }
  TemporaryFolder folder;
};

void check(const Model& model, const std::vector<Case>& cases) {
  for (const auto& odd : cases) {
    const auto text = model.read(odd);
    CHECK_MESSAGE(contains(text, odd.printed), std::string(odd.name), ": ", text,
                  "\n is printed, and should have: ", std::string(odd.printed));
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.find("exception") == std::string::npos);
  }
}

}  // namespace

TEST_CASE("odd files: of tokens, for a vocabulary of 16 bits") {
  const Model model(50257);
  check(
      model,
      {
          {"u16.bin", tokens<std::uint16_t>(),
           "u16.bin: 4000 tokens of uint16, by the size of the vocabulary, the largest 103"},
          {"asked.bin", tokens<std::uint16_t>(), "asked.bin: 4000 tokens of uint16, the largest 103", "uint16"},
          {"none", tokens<std::uint16_t>(), "none: 4000 tokens of uint16"},
          {"u32.bin", tokens<std::uint32_t>(),
           "looks like tokens of 32 bits: read as uint16, every second one is 0; set token_type = \"uint32\""},
          {"u32_asked.bin", tokens<std::uint32_t>(), "4000 tokens of uint32, the largest 103", "uint32"},
          {"i32_asked.bin", tokens<std::int32_t>(), "4000 tokens of int32, the largest 103", "int32"},
          {"trusted.bin", tokens<std::uint32_t>(), "8000 tokens of uint16, the largest 103", "uint16"},
          {"i64.bin", tokens<std::int64_t>(), "set token_type = \"int64\""},
          {"i64_asked.bin", tokens<std::int64_t>(), "4000 tokens of int64, the largest 103", "int64"},
          {"swapped.bin", bytes_of(std::vector<std::uint16_t>(100, 0x4100)), "looks like big-endian tokens"},
          {"negative.bin", bytes_of(std::vector<std::int64_t>(100, -5)),
           "has the token -5 at place 0, read as int64, and the vocabulary 50257", "int64"},
          {"large.bin", tokens<std::uint16_t>() + bytes_of<std::uint16_t>({50256, 50257}),
           "has the token 50257 at place 4001, read as uint16, and the vocabulary 50257; give the type of the tokens"},
          {"odd.bin", tokens<std::uint16_t>() + "x",
           "ends within a token: it has 8001 bytes, and a token of uint16 has 2; give their type with token_type"},
          {"short.bin", tokens<std::uint16_t>(20), "has 20 tokens; a window of length 32 needs 32"},
          {"empty.bin", "", "has 0 tokens"},
          {"text.bin", std::string(500, 'a') + "\n", "has text where tokens belong; name it .txt"},
          {"bytes.bin", std::string(500, 'a'), "500 tokens of uint8, the largest 97", "uint8"},
      });
}

TEST_CASE("odd files: of tokens that say their type, and of other kinds") {
  const Model model(50257);
  check(
      model,
      {
          {"i8.npy", npy("<i8", "4000,", tokens<std::int64_t>()),
           "4000 tokens of int64, as its header says, the largest 103"},
          {"u2.npy", npy("<u2", "4000,", tokens<std::uint16_t>()), "4000 tokens of uint16, as its header says"},
          {"rows.npy", npy("<i4", "40, 100", tokens<std::int32_t>()), "4000 tokens of int32, as its header says"},
          {"fortran.npy", npy("<i4", "40, 100", tokens<std::int32_t>(), "True"),
           "has an array of shape [40, 100] in Fortran order; save array.ravel()"},
          {"float.npy", npy("<f4", "4000,", tokens<float>()), "has an array of Float, and tokens are whole numbers"},
          {"big.npy", npy(">u2", "4000,", tokens<std::uint16_t>()), "has elements of type '>u2', which is not read"},
          {"cut.npy", npy("<i8", "4000,", tokens<std::int64_t>(3999)), "is cut short"},
          {"other.npy", npy("<i8", "4000,", tokens<std::int64_t>()),
           "has tokens of int64, as its header says, and token_type says uint16; leave token_type out", "uint16"},
          {"llmc.bin", llm_c(20240520, 1, 4000, tokens<std::uint16_t>()),
           "4000 tokens of uint16, as its header of llm.c says, the largest 103"},
          {"llmc3.bin", llm_c(20240801, 7, 4000, tokens<std::uint32_t>()),
           "4000 tokens of uint32, as its header of llm.c"},
          {"llmc_new.bin", llm_c(20240520, 9, 4000, tokens<std::uint16_t>()), "has the header of llm.c, version 9"},
          {"llmc_cut.bin", llm_c(20240520, 1, 4000, tokens<std::uint16_t>(3000)),
           "its header of llm.c says 4000 tokens of uint16, and behind it are 6000 bytes"},
          {"megatron.bin", tokens<std::int32_t>(), "4000 tokens of int32, as '", "auto", "megatron.idx", megatron(4)},
          {"float.bin", tokens<float>(), "gives the tokens the type 7, which is not whole", "auto", "float.idx",
           megatron(7)},
          {"megatron.idx", megatron(8), "is the index of Megatron; its tokens are in the .bin file"},
          {"noted.bin", tokens<std::uint32_t>(), "4000 tokens of uint32, as '", "auto", "noted.bin.json",
           note("uint32", 4000)},
          {"cut.bin", tokens<std::uint32_t>(3999), "says 4000 tokens of uint32, so one of them is another's", "auto",
           "cut.bin.json", note("uint32", 4000)},
          {"other.bin", tokens<std::uint32_t>(), "and token_type says uint16; leave token_type out", "uint16",
           "other.bin.json", note("uint32", 4000)},
          {"wide.bin", tokens<std::uint16_t>(), "was made by a tokenizer of 60000 tokens, as '", "auto",
           "wide.bin.json", note("uint16", 4000, 60000)},
          {"meta.bin", tokens<std::uint16_t>(), "is not a note of vernier tokenize", "auto", "meta.bin.json",
           "{\"rows\": 3}"},
          {"packed.gz", "\x1f\x8b\x08\x00"s + std::string(60, '\0'), "is packed by gzip; unpack it: gzip -dc '"},
          {"named.gz", tokens<std::uint16_t>(),
           "ends in .gz: texts end in .txt, .jsonl or .json, files of tokens in .bin or .npy"},
          {"packed.zst", "\x28\xb5\x2f\xfd"s + std::string(60, '\1'), "is packed by Zstandard; unpack it: zstd -dc '"},
          {"table.parquet", "PAR1" + std::string(60, '\1') + "PAR1", "is a Parquet file; convert it: python3 -c "},
          {"arrays.npz", "PK\x03\x04"s + std::string(60, '\1'), "is a ZIP archive; unpack it: mkdir -p '"},
          {"rows.arrow", "ARROW1\0\0"s + std::string(60, '\1'), "is an Arrow file"},
          {"x.sqlite", "SQLite format 3\0"s + std::string(60, '\1'),
           "is an SQLite database; write its tokens as an array"},
          {"notes.md", std::string(500, 'a'), "ends in .md: texts end in .txt, .jsonl or .json"},
          {"lines.JSONL", "{\"text\": \"a\"}\n", "ends in .JSONL: texts end in .txt, .jsonl or .json"},
          {"own.ext", tokens<std::uint16_t>(), "4000 tokens of uint16, the largest 103", "uint16"},
      });
}

TEST_CASE("odd files: of tokens of another tokenizer than the model's") {
  const Model model(420);
  const auto path = model.folder.write("noted.bin", tokens<std::uint16_t>());
  const auto read = [&](const std::string& checksum) {
    model.folder.write("noted.bin.json", note("uint16", 4000, 420, checksum));
    return model.read(path, "auto", tokenizers + "gpt2");
  };
  CHECK(contains(read("0123"), "was made by another tokenizer than the model's, as '"));
  const auto text = read(vernier::open_tokenizer(tokenizers + "gpt2")->checksum());
  CHECK_MESSAGE(contains(text, "4000 tokens of uint16, as '"), text);
}

TEST_CASE("odd files: of tokens, for a vocabulary of 32 bits") {
  const Model model(100000);
  check(
      model,
      {
          {"u32.bin", tokens<std::uint32_t>(), "4000 tokens of uint32, by the size of the vocabulary, the largest 103"},
          {"u16.bin", tokens<std::uint16_t>(),
           "has the token 4259904 at place 0, read as uint32, and the vocabulary 100000; give the type of the tokens"},
          {"u16_odd.bin", tokens<std::uint16_t>(3999), "ends within a token: it has 7998 bytes"},
          {"i64.bin", tokens<std::int64_t>(), "looks like tokens of 64 bits: read as uint32, every second one is 0"},
      });
}

TEST_CASE("odd files: of texts") {
  const Model model(420);
  const auto read = [&](const char* name, const std::string& bytes) {
    return model.read(model.folder.write(name, bytes), "auto", tokenizers + "gpt2");
  };
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"{\"text\": \"one two\"}\n\n{\"text\": \"three\"}\n{\"text\": \"x\"}\n", "3 texts in"},
      {"\xEF\xBB\xBF{\"text\": \"one two\"}\r\n{\"text\": \"b\"}\n", "2 texts in"},
      {"{\"text\": \"one\"\n", "line 1"},
      {"{\"text\": \"a\"}\n{\"instruction\": \"b\", \"output\": \"c\"}\n", "0 chats, 1 prompts"},
      {"{\"messages\": [{\"role\": \"robot\", \"content\": \"b\"}]}\n", "the tokenizer has no token '<|im_start|>'"},
      {"{\"text\": \"a\"}\n[1, 2]\n", "line 2 is not a JSON object, such as {\"text\": \"abc\"}"},
      {"{\"text\": 5}\n", "line 1: the field 'text' is not a text"},
      {"{\"text\": \"gr\xf6\"}\n", "line 1"},
      {"{\"text\": \"a\", \"text\": \"b\"}\n", "line 1"},
      {"{\"prompt\": \"a\"}\n", "line 1: the field 'completion' is missing"},
      {"{\"messages\": []}\n", "the field 'messages' is not an array of messages"},
      {"{\"messages\": [{\"role\": \"user\"}]}\n", "the field 'content' is missing"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n", "set chat to the style that it has"},
      {"", "has no text with a token to learn"},
      {"{\"text\": \"\"}\n", "has no text with a token to learn"},
      {"a\tb\n1\t2\n", "line 1"},
  };
  for (const auto& [bytes, printed] : cases) {
    const auto text = read("x.jsonl", bytes);
    CHECK_MESSAGE(contains(text, printed), text, "\n is printed, and should have: ", std::string(printed));
    CHECK(text.find('\n') == std::string::npos);
  }
  CHECK(contains(read("t.txt", "PAR1\x15\x04 and more"), "is a Parquet file, not a text; convert it: python3 -c "));
  CHECK(contains(read("t.jsonl",
                      "\xfd"
                      "7zXZ\0"s),
                 "is packed by xz, not a text; unpack it: xz -dc "));
  CHECK(contains(read("x.txt", "gr\xf6\xdf"), "is not UTF-8 at byte 2"));
  CHECK(contains(read("utf16.txt", "a\0b\0c\0"s), "byte 1 is 0; convert UTF-16 by iconv"));
  CHECK(read("mark.txt",
             "\xEF\xBB\xBF"
             "abc") == read("mark.txt", "abc"));
}

}  // namespace odd_files_test
