#include "trireme/data/synthetic.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/data/token_samples.h"

namespace trireme {

namespace {

void require(const char* what, int64_t value, int64_t least) {
  if (value < least) refuse("synthetic data needs {} of at least {}, not {}", what, least, value);
}

// Scales 32 random bits to [0, count).
int64_t below(int64_t count, uint64_t bits) {
  return static_cast<int64_t>(((bits >> 32) * static_cast<uint64_t>(count)) >> 32);
}

}  // namespace

SyntheticTokens::SyntheticTokens(int64_t samples, int64_t context, int64_t vocab, uint64_t seed)
    : samples_(samples),
      context_(context),
      vocab_(vocab),
      chain_(Key{seed}.with("synthetic chain")),
      walks_(Key{seed}.with("synthetic walks")) {
  require("a number of samples", samples, 1);
  require("a context", context, 1);
  require("a vocabulary", vocab, 2);
}

int64_t SyntheticTokens::follow(int64_t token, uint64_t coins) const {
  const int successor = std::min(std::countl_zero(coins), 3);  // tails before the first head: 1/2, 1/4, 1/8, the rest
  return below(vocab_, bits64(chain_.with(static_cast<uint64_t>(token)), static_cast<uint64_t>(successor)));
}

Batch SyntheticTokens::get(std::span<const int64_t> samples) const {
  check_in_range(samples);
  Batch batch = empty_token_batch(samples.size(), context_);
  int64_t* inputs = batch.inputs.mutable_data_ptr<int64_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  for (const int64_t sample : samples) {
    const Key walk = walks_.with(static_cast<uint64_t>(sample));
    int64_t token = below(vocab_, bits64(walk, 0));
    for (int64_t place = 1; place <= context_; ++place) {
      *inputs++ = token;
      token = follow(token, bits64(walk, static_cast<uint64_t>(place)));
      *targets++ = token;
    }
  }
  return batch;
}

std::string SyntheticTokens::describe() const {
  return fmt::format("synthetic tokens: a Markov chain over {}, {} of {}", counted(vocab_, "token"),
                     counted(samples_, "sample"), context_);
}

SyntheticVectors::SyntheticVectors(int64_t samples, int64_t features, int64_t classes, uint64_t seed)
    : samples_(samples), features_(features), classes_(classes), vectors_(Key{seed}.with("synthetic vectors")) {
  require("a number of samples", samples, 1);
  require("a number of features", features, 1);
  require("a number of classes", classes, 2);
  const Key key = Key{seed}.with("synthetic teacher");
  teacher_.resize(static_cast<size_t>(features * classes));
  for (size_t i = 0; i < teacher_.size(); ++i) teacher_[i] = normal(key, i);
}

// A plain loop and no matrix product: the label of a sample must not depend on the batch that it is read in, and a
// BLAS may round differently by shape. Classes lie innermost so that the loop vectorises without reordering sums.
int64_t SyntheticVectors::classify(std::span<const float> vector, std::vector<double>& scores) const {
  std::ranges::fill(scores, 0.0);
  const double* weight = teacher_.data();
  for (const float value : vector) {
    for (double& score : scores) score += *weight++ * value;
  }
  return std::ranges::max_element(scores) - scores.begin();
}

Batch SyntheticVectors::get(std::span<const int64_t> samples) const {
  check_in_range(samples);
  const auto rows = static_cast<int64_t>(samples.size());
  Batch batch{at::empty({rows, features_}, at::kFloat), at::empty({rows}, at::kLong)};
  float* inputs = batch.inputs.mutable_data_ptr<float>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  std::vector<double> scores(static_cast<size_t>(classes_));
  for (const int64_t sample : samples) {
    const Key key = vectors_.with(static_cast<uint64_t>(sample));
    const std::span<float> row(inputs, static_cast<size_t>(features_));
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(normal(key, i));
    *targets++ = classify(row, scores);
    inputs += features_;
  }
  return batch;
}

std::string SyntheticVectors::describe() const {
  return fmt::format("synthetic vectors: {} in {} classes by a linear teacher, {}", counted(features_, "feature"),
                     classes_, counted(samples_, "sample"));
}

SyntheticImages::SyntheticImages(int64_t samples, int64_t channels, int64_t size, int64_t classes, uint64_t seed)
    : samples_(samples),
      channels_(channels),
      size_(size),
      classes_(classes),
      noise_(Key{seed}.with("synthetic images")) {
  require("a number of samples", samples, 1);
  require("a number of channels", channels, 1);
  require("a size", size, 1);
  require("a number of classes", classes, 1);
  const Key key = Key{seed}.with("synthetic patterns");
  patterns_.resize(static_cast<size_t>(classes * channels * cells * cells));
  for (size_t i = 0; i < patterns_.size(); ++i)
    patterns_[i] = static_cast<uint8_t>(std::clamp(64 + 32 * normal(key, i), 0.0, 128.0));
}

Batch SyntheticImages::get(std::span<const int64_t> samples) const {
  check_in_range(samples);
  const auto rows = static_cast<int64_t>(samples.size());
  Batch batch{at::empty({rows, channels_, size_, size_}, at::kByte), at::empty({rows}, at::kLong)};
  uint8_t* pixel = batch.inputs.mutable_data_ptr<uint8_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  const auto width = static_cast<size_t>(size_), draws = (width + 3) / 4;  // four pixels of noise from each
  std::vector<uint8_t> noise(4 * draws), pattern(width);                   // of a line
  for (const int64_t sample : samples) {
    const Key key = noise_.with(static_cast<uint64_t>(sample));
    const int64_t label = below(classes_, bits64(key, 0));
    *targets++ = label;
    int64_t row = -1;  // of cells, that `pattern` is of
    for (int64_t line = 0; line < channels_ * size_; ++line) {
      const int64_t here = line / size_ * cells + line % size_ * cells / size_;
      if (here != row) {
        const uint8_t* cell = patterns_.data() + (label * channels_ * cells + here) * cells;
        for (int64_t x = 0; x < size_; ++x) pattern[static_cast<size_t>(x)] = cell[x * cells / size_];
        row = here;
      }
      for (size_t i = 0; i < draws; ++i) {
        const uint32_t four = bits32(key, static_cast<uint32_t>(static_cast<size_t>(line) * draws + i)) & 0x7f7f7f7fu;
        std::memcpy(noise.data() + 4 * i, &four, 4);
      }
      for (size_t x = 0; x < width; ++x) *pixel++ = static_cast<uint8_t>(noise[x] + pattern[x]);
    }
  }
  return batch;
}

at::Tensor SyntheticImages::decode(const at::Tensor& inputs) const {
  return inputs.to(at::kFloat).sub_(128).mul_(1.0 / 48);
}

std::string SyntheticImages::describe() const {
  return fmt::format("synthetic images: {} x {} pixels, {}, {} classes, {}", size_, size_,
                     counted(channels_, "channel"), classes_, counted(samples_, "sample"));
}

}  // namespace trireme
