// Clips: folders of frames, and .npy files.
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/numpy.h>
#include <vernier/error.h>

#include <algorithm>

#include "decoders.h"
#include "listed.h"

namespace vernier {

namespace {

// Returns the name with the length of each number before it, so that 2.png comes before 10.png.
std::string with_lengths(const std::string& name) {
  std::string key;
  for (std::size_t i = 0; i < name.size();) {
    const auto end = std::min(name.find_first_not_of("0123456789", i), name.size());
    if (end == i) {
      key += name[i++];
      continue;
    }
    const auto first = std::min(name.find_first_not_of('0', i), end);
    key += static_cast<char>(end - first);
    key.append(name, first, end - first);
    i = end;
  }
  return key;
}

// Returns the middle one of each of `count` equal parts of so many frames.
std::vector<std::int64_t> evenly_spread(std::int64_t frames, std::int64_t count) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < count; ++i) places.push_back((2 * i + 1) * frames / (2 * count));
  return places;
}

// Returns the array of a clip: uint8 [frames, height, width, channels].
torch::Tensor array_of_clip(const std::string& path, const ImageOptions& options) {
  const auto refuse_clip = [&](const std::string& reason) { refuse("'" + path + "' " + reason); };
  if (LeftOut others; !is_taken(path, false, others, Wanted::clips)) {
    refuse_clip(
        c10::str("is neither a folder of frames nor a .npy file; write its frames to a folder", frames_of_video));
  }
  const auto array = read_npy(path);
  if (array.scalar_type() != torch::kUInt8) {
    refuse_clip(c10::str("has elements of type ", array.scalar_type(), "; a clip is uint8, from 0 to 255"));
  }
  const bool has_channels = array.dim() == 4 && (array.size(3) == 1 || array.size(3) == 3);
  if (array.dim() != 3 && !has_channels) {
    refuse_clip(c10::str("has the shape ", array.sizes(),
                         "; a clip is [frames, height, width] or [frames, height, width, 1 or 3 channels]"));
  }
  if (array.numel() == 0) refuse_clip(c10::str("has the shape ", array.sizes(), ", so it has no pixels"));
  if (array.size(1) > options.max_pixels / array.size(2)) {
    refuse_clip(c10::str("has frames of ", array.size(2), " x ", array.size(1), " pixels, and max_pixels is ",
                         options.max_pixels));
  }
  return has_channels ? array : array.unsqueeze(3);
}

torch::Tensor read_array(const std::string& path, const ImageOptions& options) {
  const auto array = array_of_clip(path, options);
  auto pixels = array.index_select(0, at::tensor(evenly_spread(array.size(0), options.frames), torch::kInt64));
  if (options.channels == 1 && pixels.size(3) == 3) pixels = grey_of(pixels);
  return pixels.expand({-1, -1, -1, options.channels}).permute({0, 3, 1, 2}).contiguous();
}

torch::Tensor read_frames(const std::vector<std::string>& paths, const ImageOptions& options) {
  std::vector<torch::Tensor> frames;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const bool is_repeated = i > 0 && paths[i] == paths[i - 1];
    frames.push_back(is_repeated ? frames.back() : read_image(paths[i], options));
    if (frames[i].sizes() == frames[0].sizes()) continue;
    refuse(c10::str("'", paths[i], "' has ", frames[i].size(2), " x ", frames[i].size(1), " pixels, and '", paths[0],
                    "' of the same clip ", frames[0].size(2), " x ", frames[0].size(1),
                    "; resize the frames of a clip to one size"));
  }
  return at::stack(frames);
}

}  // namespace

std::vector<std::string> frames_of(const std::string& folder, const ImageOptions& options, LeftOut& left_out) {
  auto names = names_to_read(folder, Wanted::images, "clip", left_out);
  std::ranges::stable_sort(names, {}, with_lengths);
  left_out.note_short(folder, std::ssize(names), options.frames);
  std::vector<std::string> frames;
  for (const auto place : evenly_spread(std::ssize(names), options.frames)) {
    frames.push_back(folder + "/" + names[static_cast<std::size_t>(place)]);
  }
  return frames;
}

void check_clip(const std::string& path, const ImageOptions& options, LeftOut& left_out) {
  left_out.note_short(path, array_of_clip(path, options).size(0), options.frames);
}

torch::Tensor read_clip(const ListedImage& clip, const ImageOptions& options) {
  return clip.frames.empty() ? read_array(clip.path, options) : read_frames(clip.frames, options);
}

}  // namespace vernier
