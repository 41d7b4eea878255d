#include <doctest/doctest.h>
#include <sys/stat.h>
#include <torch/types.h>
#include <vernier/data/supervised_task.h>
#include <zlib.h>

#include <cstring>
#include <set>
#include <tuple>

#include "loaded_task.h"
#include "temporary_folder.h"

namespace images_test {

using vernier::Batch;
using vernier::Table;

namespace {

std::string idx(const std::vector<std::uint32_t>& sizes, const std::string& elements, char type = 8) {
  std::string bytes = {0, 0, type, static_cast<char>(sizes.size())};
  for (const auto size : sizes) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift & 255);
  }
  return bytes + elements;
}

std::string packed(const TemporaryFolder& folder, const std::string& name, const std::string& bytes) {
  const auto path = folder / name;
  auto* file = gzopen(path.c_str(), "wb");
  CHECK(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
  CHECK(gzclose(file) == Z_OK);
  return path;
}

// Images of class 0 are dark on the left, those of class 1 on the right. The first byte is the image's number.
std::string pictures(std::uint32_t count, std::uint32_t height, std::uint32_t width) {
  std::string bytes;
  for (std::uint32_t n = 0; n < count; ++n) {
    for (std::uint32_t i = 0; i < height * width; ++i) {
      const bool left = i % width < width / 2;
      bytes += static_cast<char>(i == 0 ? n : left == (n % 2 == 0) ? 10 + n % 7 : 200);
    }
  }
  return bytes;
}

std::string alternating(std::uint32_t count) {
  std::string bytes;
  for (std::uint32_t n = 0; n < count; ++n) bytes += static_cast<char>(n % 2);
  return bytes;
}

Table table_of(const std::string& images, const std::string& labels, Table more = {}) {
  Table table = {{"images", value(images)},
                 {"labels", value(labels)},
                 {"classes", value(10)},
                 {"batch_size", value(7)},
                 {"channels", value(4)}};
  if (!more.contains("validation_images")) table["validation_share"] = value(0.0);
  for (auto& [key, entry] : more) table[key] = entry;
  return table;
}

Table small(const TemporaryFolder& folder, Table more = {}) {
  return table_of(folder.write("images", idx({20, 6, 8}, pictures(20, 6, 8))),
                  folder.write("labels", idx({20}, alternating(20))), std::move(more));
}

}  // namespace

TEST_CASE("images: reads sizes from the files, packed or not, and trains on each image once an epoch") {
  const TemporaryFolder folder;
  const auto images = idx({20, 6, 8}, pictures(20, 6, 8)), labels = idx({20}, alternating(20));
  for (const bool zip : {false, true}) {
    const auto table = zip ? table_of(packed(folder, "i.gz", images), packed(folder, "l.gz", labels)) : small(folder);
    const LoadedTask task("images", table);
    CHECK(task->batches_per_epoch() == 3);
    std::set<int> seen;
    for (int i = 0; i < 3; ++i) {
      const Batch batch = task->next();
      REQUIRE(batch.samples == (i < 2 ? 7 : 6));
      REQUIRE(has_shape(batch.tensors[0], {batch.samples, 6, 8}));
      for (std::int64_t row = 0; row < batch.samples; ++row) {
        const int number = batch.tensors[0][row][0][0].item<int>();
        seen.insert(number);
        CHECK(batch.tensors[1][row].item<int>() == number % 2);
        const auto expected = images.substr(static_cast<std::size_t>(16 + number * 48), 48);
        CHECK(std::memcmp(batch.tensors[0][row].data_ptr(), expected.data(), 48) == 0);
      }
    }
    CHECK(seen.size() == 20);
  }
}

TEST_CASE("images: the network has its statistics as buffers and learns") {
  const TemporaryFolder folder;
  LoadedTask task("images",
                  small(folder, {{"validation_images", value(folder.write("vi", idx({9, 6, 8}, pictures(9, 6, 8))))},
                                 {"validation_labels", value(folder.write("vl", idx({9}, alternating(9))))}}));
  CHECK(has_shape(task.parameter("conv_2.weight"), {8, 4, 3, 3}));
  CHECK(has_shape(task.parameter("classify.weight"), {10, 16}));
  CHECK(task.run.model->named_buffers().contains("norm_1.running_mean"));
  CHECK(task.run.model->named_buffers().contains("norm_2.num_batches_tracked"));

  const double before = task.validate();
  for (int step = 0; step < 60; ++step) task.descend(task->next(), 0.1);
  CHECK(task.validate() < before / 2);
  CHECK(*task.run.metrics.value("accuracy") == 1.0);
}

TEST_CASE("images: a seed gives one start and one order, save and load go on in it") {
  const TemporaryFolder folder;
  const LoadedTask first("images", small(folder), 3), second("images", small(folder), 3),
      other("images", small(folder), 4);
  for (const auto& parameter : first.run.parameters) {
    CHECK(torch::equal(parameter.model, second.parameter(parameter.name)));
  }
  CHECK_FALSE(torch::equal(first.parameter("conv_1.weight"), other.parameter("conv_1.weight")));
  for (int i = 0; i < 10; ++i) CHECK(torch::equal(first->next().tensors[0], second->next().tensors[0]));
  const LoadedTask resumed("images", small(folder), 3);
  resumed->load(first->save());
  for (int i = 0; i < 10; ++i) CHECK(torch::equal(first->next().tensors[0], resumed->next().tensors[0]));
}

TEST_CASE("images: a run goes on with the same data only, however they are packed") {
  const TemporaryFolder folder;
  const auto images = idx({20, 6, 8}, pictures(20, 6, 8)), labels = idx({20}, alternating(20));
  const auto held_out = [&](const std::string& bytes) {
    return Table{{"validation_images", value(folder.write("vi", idx({9, 6, 8}, pictures(9, 6, 8))))},
                 {"validation_labels", value(folder.write("vl", idx({9}, bytes)))}};
  };
  const auto state = LoadedTask("images", small(folder, held_out(alternating(9))))->save();
  const auto resumed_with = [&](Table table) {
    const LoadedTask task("images", std::move(table));
    return refusal([&] { task->load(state); });
  };
  CHECK(resumed_with(table_of(packed(folder, "i.gz", images), packed(folder, "l.gz", labels), held_out(alternating(9))))
            .empty());
  auto other_images = images, other_labels = labels;
  other_images.back() ^= 1;
  other_labels.back() ^= 1;
  const std::string remedy = "; give the same files, give --allow-inexact to resume all the same, or start a new run";
  CHECK(contains(
      resumed_with(table_of(folder.write("i", other_images), folder.write("l", labels), held_out(alternating(9)))),
      remedy));
  CHECK(contains(
      resumed_with(table_of(folder.write("i", images), folder.write("l", other_labels), held_out(alternating(9)))),
      remedy));
  CHECK(contains(
      resumed_with(table_of(folder.write("i", images), folder.write("l", labels), held_out(std::string(9, '\1')))),
      remedy));
}

TEST_CASE("images: computes in the dtype of its weights") {
  const TemporaryFolder folder;
  const LoadedTask task("images", small(folder));
  task.run.model->to(torch::kBFloat16);
  auto& supervised = static_cast<vernier::SupervisedTask&>(*task.task);
  CHECK((supervised.forward(task->next()).scalar_type() == torch::kBFloat16));
}

TEST_CASE("images: sizes of any file come back as they were written") {
  const TemporaryFolder folder;
  for (const auto& [count, height, width] :
       std::vector<std::tuple<int, int, int>>{{1, 4, 4}, {3, 5, 7}, {11, 28, 28}, {2, 300, 4}}) {
    const auto n = static_cast<std::uint32_t>(count), h = static_cast<std::uint32_t>(height),
               w = static_cast<std::uint32_t>(width);
    const auto table =
        table_of(packed(folder, "i.gz", idx({n, h, w}, pictures(n, h, w))), folder.write("l", idx({n}, alternating(n))),
                 {{"batch_size", value(64)}, {"order", value("sequential")}});
    const Batch batch = LoadedTask("images", table)->next();
    CHECK(has_shape(batch.tensors[0], {count, height, width}));
    CHECK(std::memcmp(batch.tensors[0].data_ptr(), pictures(n, h, w).data(), batch.tensors[0].nbytes()) == 0);
  }
}

TEST_CASE("images: refuses a damaged file and names it") {
  const TemporaryFolder folder;
  const auto images = idx({20, 6, 8}, pictures(20, 6, 8));
  const auto refused = [&](const std::string& bytes) {
    auto table = small(folder);
    table["images"] = value(folder.write("broken", bytes));
    const auto reason = refusal([&] { const LoadedTask task("images", table); });
    CHECK(contains(reason, folder.path().string() + "/broken'"));
    return reason;
  };
  CHECK(contains(refused(""), "is not an IDX file"));
  CHECK(contains(refused("<html>not here</html>"), "is not an IDX file"));
  CHECK(contains(refused(idx({20, 6, 8}, pictures(20, 6, 8), 13)), "holds IDX type 13"));
  CHECK(contains(refused(idx({20}, alternating(20))), "has 1 dimensions; wanted are 3"));
  CHECK(contains(refused(images.substr(0, 11)), "ends within its header"));
  CHECK(contains(refused(images.substr(0, images.size() - 1)), "is cut short"));
  CHECK(contains(refused(images + "x"), "is too long"));
  CHECK(contains(refused(idx({0xffffffff, 0xffffffff, 0xffffffff}, "")), "is cut short"));
  CHECK(contains(refused(idx({19, 6, 8}, pictures(19, 6, 8))), "has 19 images"));
  CHECK(contains(refused(idx({20, 3, 8}, pictures(20, 3, 8))), "two poolings need 4 x 4"));

  const auto zipped = read_text(packed(folder, "whole.gz", images));
  CHECK(contains(refused(zipped.substr(0, zipped.size() / 2)), "is a damaged or unfinished gzip file"));
  auto flipped = zipped;
  flipped[flipped.size() - 6] ^= 1;  // in its checksum
  CHECK(contains(refused(flipped), "is a damaged or unfinished gzip file"));
  CHECK(contains(refused(read_text(packed(folder, "short.gz", images.substr(0, 100)))), "is cut short"));
}

TEST_CASE("images: no regular file, or more than max_bytes, is refused before it is read") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& path, Table more = {}) {
    auto table = small(folder, std::move(more));
    table["images"] = value(path);
    return refusal([&] { const LoadedTask task("images", table); });
  };
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(contains(refused(pipe), "'" + pipe + "' cannot be read: it is a pipe; name a regular file"));
  CHECK(contains(refused("/dev/zero"), "'/dev/zero' cannot be read: it is a device; name a regular file"));

  const std::string terabyte =
      "' has sizes [1048576, 1024, 1024], which are 1099511627776 bytes, and max_bytes is "
      "4000000000; raise max_bytes if the memory has room for them";
  const auto header = idx({1 << 20, 1 << 10, 1 << 10}, "");
  const auto sparse = folder.write("sparse", header);
  std::filesystem::resize_file(sparse, header.size() + (std::uintmax_t{1} << 40));
  CHECK(contains(refused(sparse), sparse + terabyte));
  CHECK(contains(refused(packed(folder, "promise.gz", header)), "promise.gz" + terabyte));
  const auto bomb = packed(folder, "bomb.gz", idx({20, 6, 8}, std::string(20'000'000, '\0')));
  CHECK(contains(refused(bomb), bomb + "' is too long: its sizes [20, 6, 8] need 960 bytes, it has more"));

  const auto whole = folder.write("whole", idx({20, 6, 8}, pictures(20, 6, 8)));
  CHECK(contains(refused(whole, {{"max_bytes", value(959)}}), "which are 960 bytes, and max_bytes is 959"));
  CHECK(refused(whole, {{"max_bytes", value(960)}}).empty());
}

TEST_CASE("images: any file cut anywhere is refused") {
  const TemporaryFolder folder;
  const auto images = idx({2, 4, 4}, pictures(2, 4, 4));
  const auto zipped = read_text(packed(folder, "whole.gz", images));
  auto table = table_of("", folder.write("labels", idx({2}, alternating(2))));
  for (const auto& whole : {images, zipped}) {
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CAPTURE(length);
      table["images"] = value(folder.write("cut", whole.substr(0, length)));
      CHECK(contains(refusal([&] { const LoadedTask task("images", table); }), "/cut'"));
    }
  }
}

TEST_CASE("images: refuses labels and options that do not fit") {
  const TemporaryFolder folder;
  const auto refused = [&](Table more) {
    return refusal([&] { const LoadedTask task("images", small(folder, std::move(more))); });
  };
  CHECK(refused({}).empty());
  CHECK(contains(refused({{"images", value("")}}), "`images` is needed: folder with a folder of each class"));
  CHECK(contains(refused({{"images", value("no/such/file")}}), "'no/such/file' does not exist"));
  CHECK(contains(refused({{"images", value(folder.path().string())}}), "`labels` is for an IDX file"));
  CHECK(contains(refused({{"labels", value(folder.write("l", idx({20}, std::string(19, '\1') + '\12')))}}),
                 "has the label 10 in row 19; the classes are 0 to 9"));
  for (const char* key : {"classes", "batch_size", "channels"}) {
    CHECK(contains(refused({{key, value(std::int64_t{9000000000000000000})}}),
                   "test.toml:2: task/images: `" + std::string(key) + "` must be "));
  }
  CHECK(contains(refused({{"validation_images", value("x")}}), "are given both or not at all"));
  const auto labels = folder.write("vl", idx({2}, alternating(2)));
  const auto other = folder.write("vi", idx({2, 8, 8}, pictures(2, 8, 8)));
  CHECK(contains(refused({{"validation_images", value(other)}, {"validation_labels", value(labels)}}),
                 "those to train on are"));
}

}  // namespace images_test
