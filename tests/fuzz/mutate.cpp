// Runs a fuzzer's entry point without clang's libFuzzer: over the files of folders, and over changes of them that are
// drawn from a fixed seed. Less clever, but on every machine, and the same each time.
//
//   mutate_NAME COUNT FOLDER…     COUNT changes of each file
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

std::mt19937 engine(1);

std::size_t below(std::size_t bound) {
  return bound == 0 ? 0 : engine() % bound;
}

std::vector<Bytes> seeds(int count, char** folders) {
  std::vector<fs::path> files;
  for (int i = 0; i < count; ++i) {
    for (const auto& entry : fs::directory_iterator(folders[i])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> all;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return all;
}

}  // namespace

// A small version of libFuzzer's function: flips a bit, changes a digit, cuts, doubles or moves a piece.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
  constexpr char telling[] = "0123456789-+eE.{}[]\",:\\ \0\x7f\xff";
  for (auto changes = 1 + below(4); changes > 0; --changes) {
    const auto at = below(size), length = std::min(below(16) + 1, size - at);
    switch (below(5)) {
      case 0:
        if (size > 0) data[at] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        if (size > 0) data[at] = static_cast<std::uint8_t>(telling[below(sizeof telling)]);
        break;
      case 2:
        std::copy(data + at + length, data + size, data + at);
        size -= length;
        break;
      case 3:
        if (size + length > most) break;
        std::copy_backward(data + at, data + size, data + size + length);
        size += length;
        break;
      default:
        if (size > 0)
          std::copy_n(Bytes(data + at, data + at + length).begin(), length, data + below(size - length + 1));
    }
  }
  return size;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s COUNT FOLDER…\n", argv[0]);
    return 2;
  }
  const auto all = seeds(argc - 2, argv + 2);
  if (all.empty()) {
    std::fprintf(stderr, "%s: the folders hold no file\n", argv[0]);
    return 2;
  }
  const int count = std::atoi(argv[1]);
  for (const auto& seed : all) {
    LLVMFuzzerTestOneInput(seed.data(), seed.size());
    const std::size_t most = seed.size() + 256;
    for (int i = 0; i < count; ++i) {
      Bytes changed = seed;
      changed.resize(most);
      changed.resize(LLVMFuzzerCustomMutator(changed.data(), seed.size(), most, static_cast<unsigned>(engine())));
      LLVMFuzzerTestOneInput(changed.data(), changed.size());
    }
  }
  std::printf("%zu files, %d changes of each\n", all.size(), count);
}
