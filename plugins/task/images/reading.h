// Reads images and clips before they are needed: whether they can be read, and the mean of their pixels.
#pragma once

#include <vernier/data/dataset.h>
#include <vernier/run.h>

#include <cstdint>
#include <string>
#include <vector>

// Reads images on several threads, evenly spread over the dataset, for `seconds` at most, or until `run` (it may be
// null) is to stop. Returns how many it read. Throws Error with the first one that cannot be read and their number.
std::int64_t require_readable(const vernier::Dataset& images, double seconds, const vernier::Run* run);

struct Moments {
  std::vector<double> mean, std;  // statistics of each channel, for pixels from 0 to 1
};
// Measures the first, every n-th, … of 1024 images or clips. Sums of whole numbers are exact, whatever their order.
Moments moments_of(const vernier::Dataset& images, std::int64_t channels);

// Returns the pixels of an image. Throws Error with the place of one that cannot be read.
torch::Tensor pixels_of(const vernier::Dataset& images, std::int64_t index);

// The same images with more in their fingerprint, so that a run is not resumed with other pixels in files of the same
// names.
vernier::DatasetPtr with_moments(vernier::DatasetPtr images, const Moments& moments);
