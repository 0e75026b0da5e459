// Labelled images in memory as a dataset: a byte a pixel, normalised by the training set's mean and deviation of each
// channel where the model runs. In training they may be augmented as is usual for small images: padded by 4 pixels of
// black, cropped at a random place, and flipped from left to right every other time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/data/dataset.h"
#include "trireme/data/image_files.h"

namespace trireme {

// Where Debian's package dataset-fashion-mnist puts it.
inline constexpr const char* default_images = "/usr/share/datasets/fashion-mnist";

// Of each channel, in units of a pixel's largest value.
struct PixelStatistics {
  std::vector<float> mean, deviation;
};

PixelStatistics statistics_of(const LabelledImages& images);

class ImageSet final : public Dataset {
 public:
  // `augmentation`: the key that random crops and flips are drawn by; nothing: there are none.
  ImageSet(LabelledImages images, PixelStatistics statistics, int64_t classes, std::optional<Key> augmentation);

  int64_t size() const override { return images_.count(); }
  Batch get(std::span<const int64_t> samples) const override;
  void augment(Batch& batch, std::span<const int64_t> positions) const override;
  at::Tensor decode(const at::Tensor& inputs) const override;
  int64_t vocab() const override { return classes_; }
  int64_t items_per_sample() const override { return 1; }
  std::string items() const override { return "samples"; }
  std::string describe() const override;

 private:
  LabelledImages images_;
  PixelStatistics statistics_;
  int64_t classes_;
  std::optional<Key> augmentation_;
};

// Training set and test set of a folder; refuses what does not fit the model.
Split open_images(const DataOptions& options);

}  // namespace trireme
