#include "trireme/data/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/words.h"
#include "trireme/data/image_set.h"
#include "trireme/data/synthetic.h"
#include "trireme/data/text_file.h"
#include "trireme/data/token_file.h"

namespace trireme {

void Dataset::check_in_range(std::span<const int64_t> samples) const {
  for (const int64_t sample : samples) {
    if (sample < 0 || sample >= size()) fail("sample {} was asked of a dataset of {} samples", sample, size());
  }
}

void Dataset::augment(Batch&, std::span<const int64_t>) const {}

Slice::Slice(std::shared_ptr<const Dataset> whole, int64_t first, int64_t count)
    : whole_(std::move(whole)), first_(first), count_(count) {
  if (first < 0 || count < 0 || first > whole_->size() - count) {
    fail("samples [{}, {}) are not all inside a dataset of {} samples", first, first + count, whole_->size());
  }
}

std::vector<int64_t> Slice::moved(std::span<const int64_t> samples) const {
  check_in_range(samples);
  std::vector<int64_t> moved(samples.begin(), samples.end());
  for (int64_t& sample : moved) sample += first_;
  return moved;
}

Batch Slice::get(std::span<const int64_t> samples) const { return whole_->get(moved(samples)); }

int64_t Slice::learnt_targets(std::span<const int64_t> samples) const { return whole_->learnt_targets(moved(samples)); }

std::string Slice::describe() const {
  if (count_ == whole_->size()) return whole_->describe();
  return fmt::format("{} from sample {} of {}", counted(count_, "sample"), first_, whole_->describe());
}

Split split(std::shared_ptr<const Dataset> whole, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {  // written so that NaN is refused too
    refuse("the fraction held out for validation must lie in [0, 1), not {}", fraction);
  }
  const int64_t size = whole->size();
  const int64_t held_out = fraction == 0 ? 0 : std::max<int64_t>(1, std::llround(fraction * static_cast<double>(size)));
  const int64_t kept = size - held_out;
  if (kept == 0)
    refuse("holding out {} of {} for validation leaves none to train on", held_out, counted(size, "sample"));

  Split parts;
  parts.train = std::make_unique<Slice>(whole, 0, kept);
  if (held_out > 0) parts.validation = std::make_unique<Slice>(whole, kept, held_out);
  return parts;
}

namespace {

std::shared_ptr<const Dataset> open_whole(const DataOptions& options) {
  if ((options.kind == "tokens" || options.kind == "text") && options.path.empty()) {
    refuse("data of kind {} is read from a file: its path is missing", options.kind);
  }
  if (options.kind == "tokens") {
    return std::make_shared<TokenFile>(options.path, options.dtype, options.context, options.vocab,
                                       Packing{options.mask, options.separator});
  }
  if (options.kind == "text") {
    return std::make_shared<TextFile>(options.path, options.context, options.vocab);
  }
  if (options.kind == "synthetic_tokens") {
    return std::make_shared<SyntheticTokens>(options.samples, options.context, options.vocab, options.seed);
  }
  if (options.kind == "synthetic_vectors") {
    return std::make_shared<SyntheticVectors>(options.samples, options.features, options.classes, options.seed);
  }
  if (options.kind == "synthetic_images") {
    return std::make_shared<SyntheticImages>(options.samples, options.channels, options.image, options.classes,
                                             options.seed);
  }
  const std::vector<std::string> kinds = {"tokens",          "text", "images", "synthetic_tokens", "synthetic_vectors",
                                          "synthetic_images"};
  const std::string meant = nearest(options.kind, kinds);
  refuse("unknown kind of data '{}'{}; the kinds are {}", options.kind,
         meant.empty() ? "" : fmt::format(" (did you mean '{}'?)", meant), fmt::join(kinds, ", "));
}

}  // namespace

Split open_dataset(const DataOptions& options) {
  if (options.kind == "images") return open_images(options);
  return split(open_whole(options), options.validation);
}

}  // namespace trireme
