// Data made from a seed, for tests, benchmarks and first runs: every sample is a pure function of (seed, sample), and
// all kinds hold a pattern, so a model that learns shows a falling loss.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/data/dataset.h"

namespace trireme {

// A random first-order Markov chain: each token has four successors, drawn once by the seed, that follow it with
// probabilities 1/2, 1/4, 1/8 and 1/8. The loss starts near ln(vocab) and can fall to 7/4 ln 2 = 1.21 nats a token.
class SyntheticTokens final : public Dataset {
 public:
  SyntheticTokens(int64_t samples, int64_t context, int64_t vocab, uint64_t seed);

  int64_t size() const override { return samples_; }
  Batch get(std::span<const int64_t> samples) const override;
  int64_t vocab() const override { return vocab_; }
  int64_t items_per_sample() const override { return context_; }
  std::string items() const override { return "tokens"; }
  std::string describe() const override;

 private:
  int64_t follow(int64_t token, uint64_t coins) const;

  int64_t samples_;
  int64_t context_;
  int64_t vocab_;
  Key chain_;  // which tokens follow which
  Key walks_;  // which way each sample goes
};

// Standard normal vectors, labelled by a fixed random linear teacher: the class is the largest of `classes` scores.
class SyntheticVectors final : public Dataset {
 public:
  SyntheticVectors(int64_t samples, int64_t features, int64_t classes, uint64_t seed);

  int64_t size() const override { return samples_; }
  Batch get(std::span<const int64_t> samples) const override;
  int64_t vocab() const override { return classes_; }
  int64_t items_per_sample() const override { return 1; }
  std::string items() const override { return "samples"; }
  std::string describe() const override;

 private:
  int64_t classify(std::span<const float> vector, std::vector<double>& scores) const;

  int64_t samples_;
  int64_t features_;
  int64_t classes_;
  Key vectors_;
  std::vector<double> teacher_;  // [features, classes]
};

// Noise, and under it the pattern of the sample's class: 8 x 8 cells of random brightness in each channel. Bytes, and
// four pixels of noise from one draw, so that it does not hold up a benchmark.
class SyntheticImages final : public Dataset {
 public:
  SyntheticImages(int64_t samples, int64_t channels, int64_t size, int64_t classes, uint64_t seed);

  int64_t size() const override { return samples_; }
  Batch get(std::span<const int64_t> samples) const override;
  at::Tensor decode(const at::Tensor& inputs) const override;  // mean and variance near 0 and 1
  int64_t vocab() const override { return classes_; }
  int64_t items_per_sample() const override { return 1; }
  std::string items() const override { return "samples"; }
  std::string describe() const override;

 private:
  static constexpr int64_t cells = 8;

  int64_t samples_;
  int64_t channels_;
  int64_t size_;
  int64_t classes_;
  Key noise_;
  std::vector<uint8_t> patterns_;  // [classes, channels, cells, cells], at most half of a pixel's range
};

}  // namespace trireme
