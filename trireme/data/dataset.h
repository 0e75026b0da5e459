// What a model learns from: numbered samples that anyone may read in any order, on any thread. Which samples a step
// uses is decided elsewhere (order.h), so a dataset is only a size and a pure function from sample numbers to tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme {

// A target that is not learnt: torch's cross entropy leaves it out.
constexpr int64_t ignored_target = -100;

struct Batch {
  at::Tensor inputs;  // int64 [b, context] for tokens, float32 [b, features] for vectors, uint8 [b, C, H, W] for images
  at::Tensor targets;  // int64 [b, context] for tokens, int64 [b] for vectors and images
  at::Tensor starts;   // int64 [b, context], of packed documents only: where in the sample each token's document begins
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;  // in samples

  // The named samples as tensors on the CPU, one row each, in the order given. Safe to call from many threads.
  virtual Batch get(std::span<const int64_t> samples) const = 0;

  // Changes a batch as training wants it (and evaluation does not); `positions` say who the samples are in the whole
  // run, so what happens to them does not depend on how the batch is split.
  virtual void augment(Batch& batch, std::span<const int64_t> positions) const;

  // What a model gets for the inputs of a batch, wherever they lie: images travel as bytes, a quarter of what their
  // floats would take.
  virtual at::Tensor decode(const at::Tensor& inputs) const { return inputs; }

  virtual int64_t vocab() const = 0;             // targets lie in [0, vocab): tokens of a vocabulary, or classes
  virtual int64_t items_per_sample() const = 0;  // what throughput counts: tokens of a sample, or 1
  // Of these samples, the targets that are learnt: over them a loss is a mean.
  virtual int64_t learnt_targets(std::span<const int64_t> samples) const {
    return static_cast<int64_t>(samples.size()) * items_per_sample();
  }
  virtual std::string items() const = 0;     // and its name: "tokens" or "samples"
  virtual std::string describe() const = 0;  // one line for people

 protected:
  void check_in_range(std::span<const int64_t> samples) const;
};

// Samples [first, first + count) of another dataset, numbered from 0.
class Slice final : public Dataset {
 public:
  Slice(std::shared_ptr<const Dataset> whole, int64_t first, int64_t count);

  int64_t size() const override { return count_; }
  Batch get(std::span<const int64_t> samples) const override;
  void augment(Batch& batch, std::span<const int64_t> positions) const override { whole_->augment(batch, positions); }
  at::Tensor decode(const at::Tensor& inputs) const override { return whole_->decode(inputs); }
  int64_t vocab() const override { return whole_->vocab(); }
  int64_t items_per_sample() const override { return whole_->items_per_sample(); }
  int64_t learnt_targets(std::span<const int64_t> samples) const override;
  std::string items() const override { return whole_->items(); }
  std::string describe() const override;

 private:
  std::vector<int64_t> moved(std::span<const int64_t> samples) const;

  std::shared_ptr<const Dataset> whole_;
  int64_t first_;
  int64_t count_;
};

struct Split {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> validation;  // null when nothing is held out
};

// Holds the last `fraction` of the samples out for validation: at least one when the fraction is not 0.
Split split(std::shared_ptr<const Dataset> whole, double fraction);

// Everything that decides what the samples are. A field that its kind does not use is ignored.
struct DataOptions {
  // tokens, text (files), images (a folder); synthetic_tokens, synthetic_vectors, synthetic_images (made from the seed)
  std::string kind = "tokens";
  std::filesystem::path path;  // tokens, text, images
  std::filesystem::path mask;  // tokens: a byte for each; empty = all are learnt
  int64_t separator = -1;      // tokens: with which documents begin; -1 = none
  std::string dtype = "auto";  // tokens: uint16 or uint32; auto takes the header's, and uint16 without a header
  int64_t context = 0;         // every kind of token: tokens a sample
  int64_t vocab = 0;           // every kind of token: the model's vocabulary; 0 in a file's case: whatever it holds
  int64_t features = 0;        // synthetic_vectors
  int64_t classes = 0;         // synthetic_vectors, both kinds of image
  int64_t image = 0;           // both kinds of image: pixels a side
  int64_t channels = 0;        // both kinds of image
  bool augments = false;       // images: in training, a random crop of the padded image, and a flip
  int64_t samples = 0;         // synthetic kinds
  uint64_t seed = 1;           // synthetic kinds, and augmentation
  double validation = 0;       // the fraction of the samples that is held out; images: their test set is, unless 0
};

Split open_dataset(const DataOptions& options);

}  // namespace trireme
