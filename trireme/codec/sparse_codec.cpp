// Codecs that keep few elements: the k largest, those that reach a threshold, or, for sums of such, whatever is not
// zero. A payload is SparseHeader, and then, in the sparse form: how many are kept of each group of 65,536 elements,
// their places in their groups in ascending order (16 bits each, filled up to whole words), and their values. In the
// dense form, which is taken where it is shorter: all values, zeros where nothing is kept.
#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/codec/kinds.h"
#include "trireme/codec/select.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

constexpr int64_t group = 65536;

struct SparseHeader {
  uint32_t dense = 0, unused = 0;
  uint64_t kept = 0;
};

int64_t groups_of(int64_t count) { return (count + group - 1) / group; }
int64_t place_bytes(int64_t kept) { return (2 * kept + 3) / 4 * 4; }
int64_t sparse_bytes(int64_t count, int64_t kept) { return 4 * groups_of(count) + place_bytes(kept) + 4 * kept; }

int64_t write_dense(const float* v, std::span<const uint32_t> places, int64_t count, uint8_t* to) {
  UnalignedFloat* values = reinterpret_cast<UnalignedFloat*>(to);
  std::memset(to, 0, static_cast<size_t>(4 * count));
  for (const uint32_t place : places) values[place] = v[place];
  return 4 * count;
}

int64_t write_sparse(const float* v, std::span<const uint32_t> places, int64_t count, uint8_t* to) {
  const auto kept = static_cast<int64_t>(places.size());
  Unaligned16* shorts = reinterpret_cast<Unaligned16*>(to + 4 * groups_of(count));
  UnalignedFloat* values = reinterpret_cast<UnalignedFloat*>(to + 4 * groups_of(count) + place_bytes(kept));
  if (kept % 2) shorts[kept] = 0;
  int64_t i = 0;
  for (int64_t g = 0; g < groups_of(count); ++g) {
    const int64_t begin = i;
    for (; i < kept && places[static_cast<size_t>(i)] / group == g; ++i) {
      const uint32_t place = places[static_cast<size_t>(i)];
      shorts[i] = static_cast<uint16_t>(place % group);
      values[i] = v[place];
    }
    const auto here = static_cast<uint32_t>(i - begin);
    std::memcpy(to + 4 * g, &here, sizeof here);
  }
  return sparse_bytes(count, kept);
}

template <bool adding>
void read_sparse(const uint8_t* from, int64_t count, int64_t kept, float* values) {
  const Unaligned16* shorts = reinterpret_cast<const Unaligned16*>(from + 4 * groups_of(count));
  const UnalignedFloat* kept_values =
      reinterpret_cast<const UnalignedFloat*>(from + 4 * groups_of(count) + place_bytes(kept));
  int64_t i = 0;
  for (int64_t g = 0; g < groups_of(count); ++g) {
    uint32_t here;
    std::memcpy(&here, from + 4 * g, sizeof here);
    const int64_t size = std::min(group, count - g * group);
    if (here > kept - i) fail("the message tells of more places than it holds");
    int64_t last = -1;
    for (const int64_t end = i + here; i < end; ++i) {
      const int64_t place = shorts[i];
      if (place <= last || place >= size) fail("the message's places are not in order");
      float& value = values[g * group + place];
      value = adding ? value + kept_values[i] : kept_values[i];
      last = place;
    }
  }
  if (i != kept) fail("the message holds more places than it tells of");
}

struct AddDense {
  const UnalignedFloat* from;
  float* values;
  int64_t count;
  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) values[i] += from[i];
  }
};

void read_dense(const uint8_t* from, int64_t count, float* values, bool adding) {
  if (adding) return run_widest(AddDense{reinterpret_cast<const UnalignedFloat*>(from), values, count});
  std::memcpy(values, from, static_cast<size_t>(4 * count));
}

// The least float that is not below it.
float rounded_up(double value) {
  const auto nearest = static_cast<float>(value);
  return nearest < value ? std::nextafter(nearest, std::numeric_limits<float>::infinity()) : nearest;
}

class SparseCodec final : public Codec {
 public:
  // Without a configuration of what to keep: all that is not zero.
  SparseCodec(CodecKind kind, const CodecConfig* config)
      : Codec(kind, config ? 0 : 1),
        keep_(config && kind == CodecKind::top_k ? config->keep : 0),
        threshold_(config && kind == CodecKind::threshold ? rounded_up(config->threshold) : 0),
        sums_(config ? std::make_unique<SparseCodec>(kind, nullptr) : nullptr) {}

  std::string name() const override {
    if (keep_ > 0) return fmt::format("top_k, {:g} of all", keep_);
    return sums_ ? fmt::format("threshold {:g}", threshold_) : "what is not zero";
  }
  const Codec& of_sums() const override { return sums_ ? *sums_ : *this; }

 private:
  int64_t most_payload(int64_t count) const override { return static_cast<int64_t>(sizeof(SparseHeader)) + 4 * count; }

  std::span<const uint32_t> select(const float* values, float* residual, int64_t count) const {
    if (keep_ > 0) {
      const auto kept = static_cast<int64_t>(std::ceil(keep_ * static_cast<double>(count)));
      return select_largest(values, residual, count, std::min(count, kept));
    }
    return select_at_least(values, residual, count, sums_ ? magnitude(threshold_) : 1);
  }

  int64_t write(const at::Tensor& values, const at::Tensor& residual, Key, uint8_t* payload,
                MessageSum&) const override {
    const int64_t count = values.numel();
    if (count > int64_t{1} << 32) fail("{}: {} values are more than 2^32", name(), count);
    const auto* from = values.const_data_ptr<float>();
    auto* left = residual.defined() ? residual.mutable_data_ptr<float>() : nullptr;
    const auto places = select(from, left, count);
    const float* v = left ? left : from;

    SparseHeader header;
    header.kept = places.size();
    const auto kept = static_cast<int64_t>(places.size());
    header.dense = sparse_bytes(count, kept) > 4 * count;
    std::memcpy(payload, &header, sizeof header);
    payload += sizeof header;
    const int64_t bytes =
        header.dense ? write_dense(v, places, count, payload) : write_sparse(v, places, count, payload);
    if (left) forget(left, count, places);
    return static_cast<int64_t>(sizeof header) + bytes;
  }

  // What was said is no longer left to say, nor is what is not finite: that is the largest there is, so it can only be
  // left where all that was kept is not finite either.
  static void forget(float* left, int64_t count, std::span<const uint32_t> places) {
    const auto finite = [](float value) { return magnitude(value) < static_cast<int32_t>(infinity_bits); };
    const bool all_finite =
        std::any_of(places.begin(), places.end(), [&](uint32_t place) { return finite(left[place]); });
    for (const uint32_t place : places) left[place] = 0;
    if (!all_finite && !places.empty()) std::transform(left, left + count, left, finite_or_zero);
  }

  void read(std::span<const uint8_t> payload, const at::Tensor& values, bool adding) const override {
    const int64_t count = values.numel();
    if (payload.size() < sizeof(SparseHeader)) fail("the message is cut off");
    SparseHeader header;
    std::memcpy(&header, payload.data(), sizeof header);
    if (header.dense > 1 || header.unused != 0 || header.kept > static_cast<uint64_t>(count))
      fail("the message's header makes no sense");
    const auto kept = static_cast<int64_t>(header.kept);
    const auto body = payload.subspan(sizeof header);
    const int64_t expected = header.dense ? 4 * count : sparse_bytes(count, kept);
    if (static_cast<int64_t>(body.size()) != expected)
      fail("a message of {} kept values takes {} bytes, not {}", kept, expected, body.size());
    if (count == 0) return;
    auto* to = values.mutable_data_ptr<float>();
    if (header.dense) return read_dense(body.data(), count, to, adding);
    if (adding) return read_sparse<true>(body.data(), count, kept, to);
    std::memset(to, 0, static_cast<size_t>(4 * count));
    read_sparse<false>(body.data(), count, kept, to);
  }

  const double keep_;
  const float threshold_;
  const std::unique_ptr<SparseCodec> sums_;
};

}  // namespace

std::unique_ptr<Codec> make_sparse_codec(const CodecConfig& config) {
  if (config.kind == CodecKind::top_k && !(config.keep > 0 && config.keep <= 1))
    refuse("a share of {} of the elements cannot be kept: more than 0, at most 1", config.keep);
  if (config.kind == CodecKind::threshold && !(config.threshold >= 0 && std::isfinite(config.threshold)))
    refuse("a threshold of {}: it is a finite number, at least 0", config.threshold);
  return std::make_unique<SparseCodec>(config.kind, &config);
}

}  // namespace trireme
