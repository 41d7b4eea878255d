#include "reworded_error.h"

#include <regex>

namespace vernier {

namespace {

struct Phrase {
  const char *theirs, *ours;  // a regular expression of the whole text, and its replacement
  bool is_mistake = false;    // the mistake is the code's, not its user's
};

constexpr const char *cut = "it is cut short", *damaged = "its data are damaged", *unread = "it is of a kind not read";

constexpr Phrase phrases[] = {
    // std::filesystem, and what it throws through.
    {R"(filesystem error: (?:recursive )?directory iterator cannot (?:open directory|advance): (.+) \[(.+)\])",
     "$2: the folder cannot be read: $1"},
    {R"(filesystem error: (?:recursive )?directory iterator cannot (?:open directory|advance): (.+))",
     "a folder cannot be read: $1"},
    {R"(filesystem error: (?:in )?([^:]+): (.+) \[(.+)\] \[(.+)\])", "$3: $1, to $4: $2"},
    {R"(filesystem error: (?:in )?([^:]+): (.+) \[(.+)\])", "$3: $1: $2"},
    {R"(filesystem error: ([^]*))", "$1"},
    // Memory and numbers.
    {R"([^]*DefaultCPUAllocator: [^]*you tried to allocate (\d+) bytes[^]*)",
     "there is no memory left for $1 bytes more"},
    {R"((?:std::)?bad[_ ](?:array_new_length|alloc|allocation))", "there is no memory left"},
    {R"([^]*(?:max_size\(\)|_M_default_append|_M_fill_insert|_M_create|_M_realloc_insert)[^]*)",
     "a size is larger than any memory"},
    {R"(sto(?:i|u?ll?|f|l?d)|bad lexical cast[^]*)", "a text is not a number, or is too large"},
    // Errors of the C++ library and Boost that come from wrong use by the code.
    {R"([^]*(?:vector::reserve|basic_string::(?:append|assign|insert|replace|reserve|resize|_M_replace[a-z_]*)))",
     "a size is larger than any memory"},
    {R"([a-z_]+::[A-Za-z_]+: __n \(which is (\d+)\) >= [^(]+(?:\(\) )?\(which is (\d+)\))",
     "element $1 of $2 is asked for, counted from 0", true},
    {R"([a-z_]+::[A-Za-z_]+: __pos \(which is (\d+)\) > [^(]+\(\) \(which is (\d+)\))",
     "place $1 of a text of $2 characters is asked for", true},
    {R"((?:[a-z_]*map|_Map_base|vector|deque|array|span|bitset|basic_string[a-z_]*):(?::[A-Za-z_]+)?[^]*)",
     "an entry is asked for that is not there", true},
    {R"((?:std::|boost::)?(?:bad_cast|bad_typeid|bad[_ ]any_cast[^]*|bad[_ ]variant[_ ]access|get: [^]*))",
     "a value is taken for one of another type", true},
    {R"((?:std::)?(?:bad[_ ]optional[_ ]access|bad_function_call|bad_weak_ptr|bad_exception|exception))",
     "a value is used that is not there", true},
    {R"((?:std::)?future_error: [^]*|basic_(?:ios|[a-z]*buf)::[a-z_]+[^]*)", "a file or a stream cannot be used"},
    {R"re(boost::filesystem::[a-z_:]+: (.+): "(.+)")re", "$2: $1"},
    // JSON and TOML.
    {R"(\[json\.exception\.[a-z_]+\.\d+\] parse error at line (\d+), column (\d+): [^]*)",
     "line $1, column $2 is not JSON"},
    {R"(\[json\.exception\.[a-z_]+\.\d+\] ([^]*))", "$1"},
    {R"(Error while parsing [^:]*: ([^]*))", "it is not TOML: $1"},
    // libjpeg.
    {R"(Premature end of (?:JPEG|input) file|Empty input file|JPEG datastream contains no image)", cut},
    {R"(Not a JPEG file[^]*)", "it does not begin as a JPEG does"},
    {R"((?:Unsupported JPEG (?:process|data precision)|Sorry, )[^]*|Unsupported color conversion request)", unread},
    {R"((?:Maximum supported image dimension|Image too wide)[^]*)", "its sides are too long"},
    {R"(Empty JPEG image[^]*)", "it has no rows"},
    {R"((?:Corrupt JPEG data|Invalid JPEG file structure|Bogus|Huffman table|Quantization table)[^]*)", damaged},
    // libpng; the first is of the reader of its bytes.
    {R"(it is cut short|Not enough (?:image|compressed) data|Read Error)", cut},
    {R"(Not a PNG file|PNG file corrupted by ASCII conversion)", "it does not begin as a PNG does"},
    {R"((?:IHDR: |Invalid IHDR|Image (?:width|height))[^]*)", "its header is damaged"},
    {R"([^]*(?:CRC error|bad (?:parameters|adaptive)|zlib|invalid (?:chunk|distance|code|block|bit)|out of place)[^]*)",
     damaged},
};

}  // namespace

std::string reworded_error(const std::string& foreign, const std::string& otherwise) {
  constexpr std::size_t most = 2000;  // std::regex recurses for each character, and a stranger's text may be long
  const auto head = foreign.substr(0, most);
  static const auto patterns = [] {  // to make them takes longer than to use them
    std::vector<std::regex> all;
    for (const auto& phrase : phrases) all.emplace_back(phrase.theirs);
    return all;
  }();
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const auto& [theirs, ours, is_mistake] = phrases[i];
    std::smatch match;
    if (!std::regex_match(head, match, patterns[i])) continue;
    return match.format(ours) + (is_mistake ? "; that is a mistake in the code, so report it with this command" : "");
  }
  return otherwise.empty() ? foreign : otherwise;
}

}  // namespace vernier
