// How a stream of tokens becomes samples: sample i reads tokens [i·context, i·context + context]. Its inputs are all of
// them but the last, its targets all but the first, so neighbours share one token and every target is predicted once.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "trireme/base/error.h"
#include "trireme/data/dataset.h"

namespace trireme {

// How many samples `tokens` tokens give; refuses a source too short for one.
inline int64_t count_samples(const std::string& source, int64_t tokens, int64_t context) {
  if (context < 1) refuse("the context must be at least 1 token, not {}", context);
  if (tokens <= context) {
    refuse("{}: {} tokens are too few for one sample: a context of {} needs {}", source, tokens, context, context + 1);
  }
  return (tokens - 1) / context;
}

// The tokens that sample `sample` reads, its last target included.
template <class Token>
std::span<const Token> sample_of(std::span<const Token> tokens, int64_t context, int64_t sample) {
  return tokens.subspan(static_cast<size_t>(sample * context), static_cast<size_t>(context + 1));
}

// A plain loop, because compilers vectorise it and do not vectorise std::max_element.
template <class Token>
Token highest_token(std::span<const Token> tokens) {
  Token highest = 0;
  for (const Token token : tokens) highest = std::max(highest, token);
  return highest;
}

// Room for a batch of token samples, not yet filled.
inline Batch empty_token_batch(size_t samples, int64_t context) {
  const auto rows = static_cast<int64_t>(samples);
  return {at::empty({rows, context}, at::kLong), at::empty({rows, context}, at::kLong), {}};
}

template <class Token>
Batch cut_samples(std::span<const Token> tokens, int64_t context, std::span<const int64_t> samples) {
  Batch batch = empty_token_batch(samples.size(), context);
  int64_t* inputs = batch.inputs.mutable_data_ptr<int64_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  for (const int64_t sample : samples) {
    const auto row = sample_of(tokens, context, sample);
    inputs = std::copy_n(row.begin(), context, inputs);
    targets = std::copy_n(row.begin() + 1, context, targets);
  }
  return batch;
}

}  // namespace trireme
