#include "trireme/comm/compressed_sum.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/codec/low_rank.h"
#include "trireme/observe/board.h"

namespace trireme {

namespace {

constexpr int64_t line = 64;  // messages begin on one

int64_t padded(int64_t bytes) { return (bytes + line - 1) / line * line; }

// Adds up the time until it ends.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), begun_ns_(monotonic_ns()) {}
  ~Stopwatch() { seconds_ += static_cast<double>(monotonic_ns() - begun_ns_) * 1e-9; }

 private:
  double& seconds_;
  int64_t begun_ns_;
};

bool has_one_length(CodecKind kind) {
  switch (kind) {
    case CodecKind::fp16:
    case CodecKind::bf16:
    case CodecKind::int8:
    case CodecKind::int4:
    case CodecKind::sign: return true;
    default: return false;
  }
}

// Messages behind each other in one buffer, one for each rank, each on a line of its own.
struct Messages {
  at::Tensor bytes;
  Offsets offsets{0};
  std::vector<int64_t> lengths;

  void expect(const std::vector<int64_t>& all) {
    lengths = all;
    offsets.assign(1, 0);
    for (const int64_t length : all) offsets.push_back(offsets.back() + padded(length));
    reserve(offsets.back());
  }
  void reserve(int64_t size) {
    if (bytes.defined() && bytes.numel() >= size) return;
    const auto before = bytes;
    const OwnerScope scope(Owner::codec);
    bytes = at::empty({size}, at::kByte);
    if (before.defined()) bytes.narrow(0, 0, before.numel()).copy_(before);
  }
  at::Tensor whole() const { return bytes.narrow(0, 0, offsets.back()); }
  at::Tensor message(int rank) const {
    return bytes.narrow(0, offsets[static_cast<size_t>(rank)], lengths[static_cast<size_t>(rank)]);
  }
};

class EncodedSum final : public CompressedSum {
 public:
  EncodedSum(const CodecConfig& config, int64_t count)
      : CompressedSum(config, count), codec_(make_codec(config)), one_length_(has_one_length(config.kind)) {}

  void sum(const Courier& courier, const at::Tensor& share, Key noise, SumTraffic& traffic) override {
    const int ranks = courier.size(), me = courier.rank();
    parts_ = even_parts(share.numel(), ranks, static_cast<int64_t>(share.element_size()));
    encode_parts(courier, share, noise, traffic);
    exchange(courier);
    add_up(courier, share, noise, traffic);
    gather(courier);
    Stopwatch watch(traffic.codec_s);
    for (int r = 0; r < ranks; ++r) {
      if (length_of(r) > 0) codec_->of_sums().decode(sums_.message(r), part(share, r));
    }
    for (int r = 0; r < ranks; ++r) {
      if (r != me) traffic.sent_bytes += out_.lengths[static_cast<size_t>(r)] + sums_.lengths[static_cast<size_t>(me)];
    }
    traffic.plain_bytes += 2 * (ranks - 1) * static_cast<int64_t>(share.nbytes()) / ranks;
  }

 private:
  int64_t length_of(int rank) const {
    return parts_[static_cast<size_t>(rank) + 1] - parts_[static_cast<size_t>(rank)];
  }
  at::Tensor part(const at::Tensor& tensor, int rank) const {
    return tensor.defined() ? tensor.narrow(0, parts_[static_cast<size_t>(rank)], length_of(rank)) : at::Tensor();
  }
  // This rank's own part need not be said to itself, unless the sum is to be of few elements.
  bool says_own() const { return &codec_->of_sums() != codec_.get(); }

  void encode_parts(const Courier& courier, const at::Tensor& share, Key noise, SumTraffic& traffic) {
    Stopwatch watch(traffic.codec_s);
    out_.lengths.assign(static_cast<size_t>(courier.size()), 0);
    out_.offsets.assign(1, 0);
    for (int r = 0; r < courier.size(); ++r) {
      int64_t length = 0;
      if (length_of(r) > 0 && (r != courier.rank() || says_own())) {
        const int64_t begin = out_.offsets.back(), most = codec_->most_bytes(length_of(r));
        out_.reserve(begin + padded(most));
        length = codec_->encode(part(share, r), part(residual_, r), noise.with(static_cast<uint64_t>(r)),
                                out_.bytes.narrow(0, begin, most));
      }
      out_.lengths[static_cast<size_t>(r)] = length;
      out_.offsets.push_back(out_.offsets.back() + padded(length));
    }
    out_.reserve(out_.offsets.back());
  }

  void exchange(const Courier& courier) {
    const int ranks = courier.size(), me = courier.rank();
    std::vector<int64_t> coming(static_cast<size_t>(ranks), 0);
    if (one_length_) {
      for (int r = 0; r < ranks; ++r) {
        if (length_of(me) > 0 && (r != me || says_own()))
          coming[static_cast<size_t>(r)] = codec_->most_bytes(length_of(me));
      }
    } else {
      const auto given = at::tensor(out_.lengths, at::kLong), taken = at::empty({ranks}, at::kLong);
      const auto single = even_offsets(ranks, ranks);
      courier.all_to_all(given, single, taken, single);
      coming.assign(taken.const_data_ptr<int64_t>(), taken.const_data_ptr<int64_t>() + ranks);
    }
    in_.expect(coming);
    courier.all_to_all(out_.whole(), out_.offsets, in_.whole(), in_.offsets);
  }

  // The sum of this rank's part, always in the order of the ranks, and its message.
  void add_up(const Courier& courier, const at::Tensor& share, Key noise, SumTraffic& traffic) {
    Stopwatch watch(traffic.codec_s);
    const int me = courier.rank();
    own_length_ = 0;
    if (length_of(me) == 0) return;
    const auto mine = part(share, me);
    if (says_own()) mine.zero_();
    for (int r = 0; r < courier.size(); ++r) {
      if (r != me || says_own()) codec_->add(in_.message(r), mine);
    }
    const int64_t most = codec_->of_sums().most_bytes(length_of(me));
    own_.reserve(padded(most));
    own_length_ = codec_->of_sums().encode(mine, says_own() ? at::Tensor() : part(residual_, me), noise.with("sum"),
                                           own_.bytes.narrow(0, 0, most));
  }

  void gather(const Courier& courier) {
    const int ranks = courier.size(), me = courier.rank();
    std::vector<int64_t> lengths(static_cast<size_t>(ranks), 0);
    if (one_length_) {
      for (int r = 0; r < ranks; ++r) {
        if (length_of(r) > 0) lengths[static_cast<size_t>(r)] = codec_->of_sums().most_bytes(length_of(r));
      }
    } else {
      const auto all = at::empty({ranks}, at::kLong);
      courier.all_gather(at::full({1}, own_length_, at::kLong), all);
      lengths.assign(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + ranks);
    }
    sums_.expect(lengths);
    if (own_length_ > 0) sums_.message(me).copy_(own_.bytes.narrow(0, 0, own_length_));
    courier.gather_parts(sums_.whole(), sums_.offsets);
  }

  const std::unique_ptr<Codec> codec_;
  const bool one_length_;
  Offsets parts_;
  Messages out_, in_, own_, sums_;
  int64_t own_length_ = 0;
};

class LowRankSum final : public CompressedSum {
 public:
  LowRankSum(const CodecConfig& config, int64_t count, const std::vector<MatrixPlace>& matrices)
      : CompressedSum(config, count),
        low_rank_(matrices, config.rank),
        rest_(low_rank_.rest(count)),
        p_(at::zeros({low_rank_.p_count() + low_rank_.rest_count(count)}, at::kFloat)),
        q_(at::zeros({low_rank_.q_count()}, at::kFloat)) {
    low_rank_.start(Key{}.with("low rank"), q_);  // the same on all ranks
  }

  void sum(const Courier& courier, const at::Tensor& share, Key, SumTraffic& traffic) override {
    const auto p = p_.narrow(0, 0, low_rank_.p_count());
    {
      Stopwatch watch(traffic.codec_s);
      if (residual_.defined()) share.add_(residual_);
      low_rank_.multiply(share, q_, p);
      copy_rest(share, /*out=*/true);
    }
    courier.all_reduce(p_);
    {
      Stopwatch watch(traffic.codec_s);
      low_rank_.orthogonalise(p);
      low_rank_.multiply_back(share, p, q_);
    }
    courier.all_reduce(q_);
    Stopwatch watch(traffic.codec_s);
    if (residual_.defined()) {
      // What the ranks' parts sum up to more than the product: each keeps its part of that.
      residual_.copy_(share);
      low_rank_.add_reconstructed(p, q_, residual_, -1.0 / courier.size());
      for (const auto& piece : rest_) residual_.narrow(0, piece.begin, piece.end - piece.begin).zero_();
    }
    low_rank_.reconstruct(p, q_, share);
    copy_rest(share, /*out=*/false);
    const int64_t ranks = courier.size();
    traffic.sent_bytes += 2 * (ranks - 1) * static_cast<int64_t>(p_.nbytes() + q_.nbytes()) / ranks;
    traffic.plain_bytes += 2 * (ranks - 1) * static_cast<int64_t>(share.nbytes()) / ranks;
  }

  std::map<std::string, at::Tensor> state() const override {
    auto kept = CompressedSum::state();
    kept["q"] = q_;
    return kept;
  }

 private:
  // What is in no matrix goes with P.
  void copy_rest(const at::Tensor& share, bool out) {
    int64_t place = low_rank_.p_count();
    for (const auto& piece : rest_) {
      const int64_t length = piece.end - piece.begin;
      const auto there = share.narrow(0, piece.begin, length), here = p_.narrow(0, place, length);
      (out ? here : there).copy_(out ? there : here);
      place += length;
    }
  }

  const LowRank low_rank_;
  const std::vector<LowRank::Piece> rest_;
  at::Tensor p_;  // and then the rest
  at::Tensor q_;
};

}  // namespace

CompressedSum::CompressedSum(const CodecConfig& config, int64_t count) {
  const OwnerScope scope(Owner::residuals);
  if (config.feedback) residual_ = at::zeros({count}, at::kFloat);
}

std::map<std::string, at::Tensor> CompressedSum::state() const {
  std::map<std::string, at::Tensor> kept;
  if (residual_.defined()) kept["residual"] = residual_;
  return kept;
}

std::unique_ptr<CompressedSum> make_compressed_sum(const CodecConfig& config, int64_t count,
                                                   const std::vector<MatrixPlace>& matrices) {
  if (config.kind == CodecKind::none || config.kind == CodecKind::automatic) fail("no codec was chosen");
  if (config.kind == CodecKind::low_rank) return std::make_unique<LowRankSum>(config, count, matrices);
  return std::make_unique<EncodedSum>(config, count);
}

}  // namespace trireme
