// The codec of low_rank.h: a payload is P, Q, and the rest as fp32.
#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/codec/kinds.h"
#include "trireme/codec/low_rank.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

// Memory for factors that this thread keeps: a message may begin at any byte, and matrix products want whole floats.
at::Tensor scratch_factors(int64_t count) {
  thread_local at::Tensor kept;
  if (!kept.defined() || kept.numel() < count) kept = at::empty({count}, at::kFloat);
  return kept.narrow(0, 0, count);
}

class LowRankCodec final : public Codec {
 public:
  LowRankCodec(const CodecConfig& config, const std::vector<MatrixPlace>& matrices)
      : Codec(CodecKind::low_rank, static_cast<uint32_t>(config.rank)), rank_(config.rank), low_(matrices, rank_) {}

  std::string name() const override { return fmt::format("low_rank {}", rank_); }

 private:
  int64_t factor_count() const { return low_.p_count() + low_.q_count(); }
  int64_t most_payload(int64_t count) const override { return 4 * (factor_count() + low_.rest_count(count)); }

  int64_t write(const at::Tensor& values, const at::Tensor& residual, Key noise, uint8_t* payload,
                MessageSum&) const override {
    const int64_t count = values.numel();
    if (count < low_.least_count()) fail("{}: {} values do not hold all matrices", name(), count);
    if (residual.defined()) residual.add_(values);
    const at::Tensor& v = residual.defined() ? residual : values;
    const auto factors = scratch_factors(factor_count());
    const auto p = factors.narrow(0, 0, low_.p_count()), q = factors.narrow(0, low_.p_count(), low_.q_count());
    low_.start(noise, q);
    low_.multiply(v, q, p);
    low_.orthogonalise(p);
    low_.multiply_back(v, p, q);

    uint8_t* to = payload;
    to = put(to, factors.const_data_ptr<float>(), factors.numel());
    for (const auto& piece : low_.rest(count)) {
      to = put(to, v.const_data_ptr<float>() + piece.begin, piece.end - piece.begin);
      if (residual.defined()) residual.narrow(0, piece.begin, piece.end - piece.begin).zero_();
    }
    if (residual.defined()) {
      low_.add_reconstructed(p, q, residual, -1);
      auto* left = residual.mutable_data_ptr<float>();
      run_widest(DropNonfinite{left, count});
    }
    return to - payload;
  }

  void read(std::span<const uint8_t> payload, const at::Tensor& values, bool adding) const override {
    const int64_t count = values.numel();
    if (count < low_.least_count()) fail("{} values do not hold all matrices", count);
    if (static_cast<int64_t>(payload.size()) != most_payload(count))
      fail("{} values take {} bytes, and these are {}", count, most_payload(count), payload.size());
    const auto factors = scratch_factors(factor_count());
    if (factors.numel() > 0)
      std::memcpy(factors.mutable_data_ptr<float>(), payload.data(), static_cast<size_t>(4 * factors.numel()));
    const auto p = factors.narrow(0, 0, low_.p_count()), q = factors.narrow(0, low_.p_count(), low_.q_count());
    if (adding) {
      low_.add_reconstructed(p, q, values);
    } else {
      low_.reconstruct(p, q, values);
    }
    const uint8_t* from = payload.data() + 4 * factors.numel();
    for (const auto& piece : low_.rest(count)) {
      const int64_t size = piece.end - piece.begin;
      run_widest(Take{reinterpret_cast<const UnalignedFloat*>(from), values.mutable_data_ptr<float>() + piece.begin,
                      size, adding});
      from += 4 * size;
    }
  }

  static uint8_t* put(uint8_t* to, const float* from, int64_t count) {
    if (count > 0) std::memcpy(to, from, static_cast<size_t>(4 * count));
    return to + 4 * count;
  }

  struct Take {
    const UnalignedFloat* from;
    float* values;
    int64_t count;
    bool adding;
    TRIREME_INLINE void operator()() const {
      for (int64_t i = 0; i < count; ++i) values[i] = adding ? values[i] + from[i] : from[i];
    }
  };
  struct DropNonfinite {
    float* values;
    int64_t count;
    TRIREME_INLINE void operator()() const {
      for (int64_t i = 0; i < count; ++i) values[i] = finite_or_zero(values[i]);
    }
  };

  const int64_t rank_;
  const LowRank low_;
};

}  // namespace

std::unique_ptr<Codec> make_low_rank_codec(const CodecConfig& config, const std::vector<MatrixPlace>& matrices) {
  return std::make_unique<LowRankCodec>(config, matrices);
}

}  // namespace trireme
