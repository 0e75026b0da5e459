// What the tests of codecs share: all codecs, values of every sort, and a message there and back.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/codec/codec.h"

namespace trireme {

inline CodecConfig codec_config(CodecKind kind) {
  CodecConfig config;
  config.kind = kind;
  config.keep = 0.1;
  config.threshold = 1;
  config.rank = 2;
  config.bound = 0.01;
  return config;
}

// A build without zstd has no codec with an error bound.
inline bool available(const CodecConfig& config) {
  try {
    make_codec(config);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// One of each sort, with small blocks so that small tensors have several.
inline std::vector<CodecConfig> all_configs() {
  std::vector<CodecConfig> configs;
  for (const auto kind : {CodecKind::fp16, CodecKind::bf16, CodecKind::int8, CodecKind::int4, CodecKind::sign,
                          CodecKind::top_k, CodecKind::threshold, CodecKind::low_rank, CodecKind::bound}) {
    auto config = codec_config(kind);
    config.block = 32;
    if (!available(config)) continue;
    configs.push_back(config);
    if (kind == CodecKind::int8 || kind == CodecKind::int4) {
      config.rounding = Rounding::stochastic;
      configs.push_back(config);
    }
    if (kind == CodecKind::bound) {
      config.bound_kind = BoundKind::relative;
      configs.push_back(config);
    }
  }
  return configs;
}

// Matrices that a tensor of so many values holds, for low_rank.
inline std::vector<MatrixPlace> some_matrices(int64_t count) {
  std::vector<MatrixPlace> places;
  if (count >= 80) places.push_back({3, 7, 10});
  if (count >= 400) places.push_back({100, 20, 15});
  return places;
}

inline at::Tensor normal_values(int64_t count, uint64_t seed, double scale = 1) {
  auto values = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i)
    values.data_ptr<float>()[i] =
        static_cast<float>(scale * normal(Key{seed}.with("values"), static_cast<uint64_t>(i)));
  return values;
}

inline at::Tensor tensor_of(const std::vector<float>& values) { return at::tensor(values, at::kFloat); }

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

inline at::Tensor message_of(const Codec& codec, const at::Tensor& values, const at::Tensor& residual = {},
                             Key noise = Key{1}) {
  const auto room = at::full({codec.most_bytes(values.numel())}, 0x5a, at::kByte);
  return room.narrow(0, 0, codec.encode(values, residual, noise, room));
}

inline at::Tensor decoded(const Codec& codec, const at::Tensor& message, int64_t count) {
  auto values = at::full({count}, 12345.f);
  codec.decode(message, values);
  return values;
}

inline at::Tensor there_and_back(const Codec& codec, const at::Tensor& values, const at::Tensor& residual = {},
                                 Key noise = Key{1}) {
  return decoded(codec, message_of(codec, values, residual, noise), values.numel());
}

}  // namespace trireme
