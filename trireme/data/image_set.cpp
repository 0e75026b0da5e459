#include "trireme/data/image_set.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/words.h"

namespace trireme {

namespace {

constexpr int64_t padding = 4;  // pixels on each side, for a crop
constexpr uint8_t black = 0;

}  // namespace

PixelStatistics statistics_of(const LabelledImages& images) {
  const int64_t plane = images.size * images.size;
  PixelStatistics found;
  for (int64_t channel = 0; channel < images.channels; ++channel) {
    std::array<int64_t, 256> seen{};
    for (int64_t image = 0; image < images.count(); ++image) {
      const auto* pixel = images.pixels.data() + (image * images.channels + channel) * plane;
      for (int64_t i = 0; i < plane; ++i) ++seen[pixel[i]];
    }
    double sum = 0, squares = 0;
    for (size_t value = 0; value < seen.size(); ++value) {
      const double brightness = static_cast<double>(value) / 255;
      sum += brightness * static_cast<double>(seen[value]);
      squares += brightness * brightness * static_cast<double>(seen[value]);
    }
    const auto count = static_cast<double>(images.count() * plane);
    const double mean = sum / count, variance = squares / count - mean * mean;
    found.mean.push_back(static_cast<float>(mean));
    found.deviation.push_back(variance > 1e-12 ? static_cast<float>(std::sqrt(variance)) : 1.f);  // one colour only
  }
  return found;
}

ImageSet::ImageSet(LabelledImages images, PixelStatistics statistics, int64_t classes, std::optional<Key> augmentation)
    : images_(std::move(images)), statistics_(std::move(statistics)), classes_(classes), augmentation_(augmentation) {
  const auto wrong = std::ranges::find_if(images_.labels, [&](int64_t label) { return label >= classes; });
  if (wrong != images_.labels.end()) {
    refuse("{}: label {} of image {} is not below model.classes = {}", images_.source, *wrong,
           wrong - images_.labels.begin(), classes);
  }
}

Batch ImageSet::get(std::span<const int64_t> samples) const {
  check_in_range(samples);
  const auto rows = static_cast<int64_t>(samples.size());
  const int64_t size = images_.size, pixels = images_.channels * size * size;
  Batch batch{at::empty({rows, images_.channels, size, size}, at::kByte), at::empty({rows}, at::kLong)};
  uint8_t* inputs = batch.inputs.mutable_data_ptr<uint8_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  for (const int64_t sample : samples) {
    *targets++ = images_.labels[static_cast<size_t>(sample)];
    inputs = std::copy_n(images_.pixels.data() + sample * pixels, pixels, inputs);
  }
  return batch;
}

void ImageSet::augment(Batch& batch, std::span<const int64_t> positions) const {
  if (!augmentation_) return;
  const int64_t size = images_.size, plane = size * size;
  const at::Tensor before = batch.inputs;
  batch.inputs = at::empty(before.sizes(), at::kByte);
  const uint8_t* from = before.const_data_ptr<uint8_t>();
  uint8_t* to = batch.inputs.mutable_data_ptr<uint8_t>();
  for (const int64_t position : positions) {
    const Key key = augmentation_->with(static_cast<uint64_t>(position));
    const auto shift = [&](uint64_t which) {
      return static_cast<int64_t>(bits64(key, which) % (2 * padding + 1)) - padding;
    };
    const int64_t down = shift(0), right = shift(1);
    const bool flips = bits64(key, 2) & 1;
    for (int64_t channel = 0; channel < images_.channels; ++channel) {
      for (int64_t y = 0; y < size; ++y) {
        for (int64_t x = 0; x < size; ++x) {
          const int64_t row = y + down, column = (flips ? size - 1 - x : x) + right;
          const bool inside = row >= 0 && row < size && column >= 0 && column < size;
          *to++ = inside ? from[row * size + column] : black;
        }
      }
      from += plane;
    }
  }
}

at::Tensor ImageSet::decode(const at::Tensor& inputs) const {
  auto values = inputs.to(at::kFloat);
  for (int64_t channel = 0; channel < images_.channels; ++channel) {
    const float mean = statistics_.mean[static_cast<size_t>(channel)];
    const float deviation = statistics_.deviation[static_cast<size_t>(channel)];
    // A product and a sum, rounded one after the other: the same bits on the host and on every card.
    values.select(1, channel).mul_(1 / (255 * deviation)).add_(-mean / deviation);
  }
  return values;
}

std::string ImageSet::describe() const {
  return fmt::format("{}: {} of {} x {} pixels, {}, {} classes{}", images_.source, counted(images_.count(), "image"),
                     images_.size, images_.size, counted(images_.channels, "channel"), classes_,
                     augmentation_ ? ", cropped and flipped" : "");
}

Split open_images(const DataOptions& options) {
  auto folder = read_images(options.path);
  const auto check = [&](const LabelledImages& images) {
    if (images.size == options.image && images.channels == options.channels) return;
    refuse("{}: images of {} x {} pixels and {} do not fit model.image = {} and model.channels = {}", images.source,
           images.size, images.size, counted(images.channels, "channel"), options.image, options.channels);
  };
  check(folder.train);
  const auto statistics = statistics_of(folder.train);
  const auto key = options.augments ? std::optional(Key{options.seed}.with("augment")) : std::nullopt;
  Split parts;
  if (options.validation > 0 && folder.test.count() > 0) {
    check(folder.test);
    parts.validation = std::make_unique<ImageSet>(std::move(folder.test), statistics, options.classes, std::nullopt);
  }
  parts.train = std::make_unique<ImageSet>(std::move(folder.train), statistics, options.classes, key);
  return parts;
}

}  // namespace trireme
