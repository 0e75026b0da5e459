// The codec with an error bound. A payload is the bound, and then the chunks of bound_chunk elements: each a
// ChunkHeader, the packed planes of its codes, and its outliers in their order; or, where that would be longer, its
// values as they are.
#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/codec/bound_kernel.h"
#include "trireme/codec/entropy.h"
#include "trireme/codec/kinds.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

struct ChunkHeader {
  uint32_t planes = 0;  // 0: the values as they are
  uint32_t outliers = 0;
  uint32_t plane_bytes[4] = {};  // 0: nothing but zeros; as many as elements: not packed
};

// What a thread needs for a chunk, kept for the next one.
struct Workspace {
  uint32_t codes[bound_chunk];
  uint8_t planes[4 * bound_chunk];
  float values[bound_chunk], outliers[bound_chunk];
  std::unique_ptr<uint8_t[]> packed{new uint8_t[static_cast<size_t>(most_packed(bound_chunk))]};
};

Workspace& workspace() {
  thread_local const auto kept = std::make_unique<Workspace>();
  return *kept;
}

bool all_zero(const uint8_t* bytes, int64_t count) {
  return count == 0 || (bytes[0] == 0 && std::memcmp(bytes, bytes + 1, static_cast<size_t>(count - 1)) == 0);
}

struct Sum {
  const float* __restrict from;
  float* __restrict to;
  int64_t count;
  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  }
};

// The residual was what is said, and becomes what is lost.
struct Lose {
  const float* __restrict decoded;
  float* __restrict residual;
  int64_t count;
  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) residual[i] = finite_or_zero(residual[i] - decoded[i]);
  }
};

class BoundCodec final : public Codec {
 public:
  explicit BoundCodec(const CodecConfig& config)
      : Codec(CodecKind::bound, config.bound_kind == BoundKind::relative), format_(config.bound_kind, config.bound) {}

  std::string name() const override {
    return fmt::format("bound {:g}{}", format_.bound(), format_.relative() ? " relative" : "");
  }

 private:
  int64_t most_payload(int64_t count) const override {
    const int64_t chunks = (count + bound_chunk - 1) / bound_chunk;
    return static_cast<int64_t>(sizeof(double) + static_cast<size_t>(chunks) * sizeof(ChunkHeader)) + 4 * count;
  }

  int64_t write(const at::Tensor& values, const at::Tensor& residual, Key, uint8_t* payload,
                MessageSum&) const override {
    const double bound = format_.bound();
    std::memcpy(payload, &bound, sizeof bound);
    uint8_t* to = payload + sizeof bound;
    for (int64_t first = 0; first < values.numel(); first += bound_chunk) {
      const int64_t count = std::min(bound_chunk, values.numel() - first);
      const float* v = values.const_data_ptr<float>() + first;
      if (residual.defined()) {
        float* sums = residual.mutable_data_ptr<float>() + first;
        run_widest(Sum{v, sums, count});
        to = write_chunk(sums, count, to, sums);
      } else {
        to = write_chunk(v, count, to, nullptr);
      }
    }
    return to - payload;
  }

  // How many planes the codes take where few that need more become outliers.
  int planes_of(const CodeCounts& counts, int64_t count) const {
    const int64_t few = count / 64;
    if (format_.relative()) return 4;
    return counts.above_one - counts.outliers <= few ? 1 : counts.above_two - counts.outliers <= few ? 2 : 3;
  }

  // Marks what has no code, and gives how many these are. The fast way missed codes that meet the bound exactly.
  uint32_t mark_outliers(const float* v, int64_t count, int planes, Workspace& work) const {
    const uint32_t mark = format_.mark(planes);
    uint32_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (work.codes[i] == outlier_code) work.codes[i] = format_.exact_code(v[i]);
      if (work.codes[i] < mark) continue;
      work.codes[i] = mark;
      work.outliers[found++] = v[i];
    }
    return found;
  }

  uint8_t* write_chunk(const float* v, int64_t count, uint8_t* to, float* residual) const {
    auto& work = workspace();
    ChunkHeader header;
    format_.quantise(v, count, work.codes);
    const auto counts = count_codes(work.codes, count);
    const int planes = planes_of(counts, count);
    const bool marks = counts.outliers > 0 || (planes < 3 && (planes == 1 ? counts.above_one : counts.above_two) > 0);
    header.planes = static_cast<uint32_t>(planes);
    if (marks) header.outliers = mark_outliers(v, count, planes, work);
    const int64_t bytes = write_planes(count, header, to + sizeof header, work);
    if (bytes + 4 * int64_t{header.outliers} > 4 * count) {
      header = {};
      std::memcpy(to + sizeof header, v, static_cast<size_t>(4 * count));
      to = put(to, header, 4 * count);
      if (residual) std::fill_n(residual, count, 0.f);
      return to;
    }
    std::memcpy(to + sizeof header + bytes, work.outliers, 4 * size_t{header.outliers});
    to = put(to, header, bytes + 4 * int64_t{header.outliers});
    if (residual) {
      restore(count, header, work.outliers, work, work.values);
      run_widest(Lose{work.values, residual, count});
    }
    return to;
  }

  static uint8_t* put(uint8_t* to, const ChunkHeader& header, int64_t body) {
    std::memcpy(to, &header, sizeof header);
    return to + sizeof header + body;
  }

  // Gives the bytes that all planes take; stops where they are longer than the values.
  int64_t write_planes(int64_t count, ChunkHeader& header, uint8_t* to, Workspace& work) const {
    split_planes(work.codes, count, static_cast<int>(header.planes), work.planes);
    int64_t all = 0;
    for (uint32_t p = 0; p < header.planes; ++p) {
      const uint8_t* plane = work.planes + p * bound_chunk;
      if (all_zero(plane, count)) continue;
      int64_t bytes = pack_bytes({plane, static_cast<size_t>(count)}, work.packed.get());
      const uint8_t* from = work.packed.get();
      if (bytes >= count) {
        bytes = count;
        from = plane;
      }
      if (all + bytes > 4 * count) return 4 * count + 1;
      std::memcpy(to + all, from, static_cast<size_t>(bytes));
      header.plane_bytes[p] = static_cast<uint32_t>(bytes);
      all += bytes;
    }
    return all;
  }

  // From work.codes and the outliers to values.
  void restore(int64_t count, const ChunkHeader& header, const void* outliers, const Workspace& work,
               float* values) const {
    format_.restore(work.codes, count, values);
    const UnalignedFloat* next = static_cast<const UnalignedFloat*>(outliers);
    const uint32_t mark = format_.mark(static_cast<int>(header.planes));
    uint32_t found = 0;
    for (int64_t i = 0; i < count && header.outliers > 0; ++i) {
      if (work.codes[i] < mark) continue;
      if (found == header.outliers) fail("the message marks more outliers than it holds");
      values[i] = next[found++];
    }
    if (found != header.outliers) fail("the message holds more outliers than it marks");
  }

  void read(std::span<const uint8_t> payload, const at::Tensor& values, bool adding) const override {
    double bound = 0;
    if (payload.size() < sizeof bound) fail("the message is cut off");
    std::memcpy(&bound, payload.data(), sizeof bound);
    if (std::memcmp(payload.data(), &bound_, sizeof bound) != 0) fail("the message keeps another bound, {}", bound);
    payload = payload.subspan(sizeof bound);
    auto& work = workspace();
    for (int64_t first = 0; first < values.numel(); first += bound_chunk) {
      const int64_t count = std::min(bound_chunk, values.numel() - first);
      float* to = values.mutable_data_ptr<float>() + first;
      payload = payload.subspan(read_chunk(payload, count, adding ? work.values : to, work));
      if (adding) run_widest(Sum{work.values, to, count});
    }
    if (!payload.empty()) fail("the message goes on behind its end");
  }

  // Gives how many bytes the chunk took.
  size_t read_chunk(std::span<const uint8_t> payload, int64_t count, float* values, Workspace& work) const {
    ChunkHeader header;
    if (payload.size() < sizeof header) fail("the message is cut off");
    std::memcpy(&header, payload.data(), sizeof header);
    auto rest = payload.subspan(sizeof header);
    const auto take = [&rest](size_t bytes) {
      if (bytes > rest.size()) fail("the message is cut off");
      const auto taken = rest.first(bytes);
      rest = rest.subspan(bytes);
      return taken;
    };
    if (header.planes == 0) {
      std::memcpy(values, take(static_cast<size_t>(4 * count)).data(), static_cast<size_t>(4 * count));
      return payload.size() - rest.size();
    }
    if (header.planes > 4 || (header.planes == 4) != format_.relative())
      fail("the message has a wrong number of planes");
    for (uint32_t p = 0; p < header.planes; ++p) {
      const std::span plane(work.planes + p * bound_chunk, static_cast<size_t>(count));
      const auto bytes = take(header.plane_bytes[p]);
      if (bytes.empty()) {
        std::fill(plane.begin(), plane.end(), uint8_t{0});
      } else if (bytes.size() == plane.size()) {
        std::copy(bytes.begin(), bytes.end(), plane.begin());
      } else {
        unpack_bytes(bytes, plane);
      }
    }
    join_planes(work.planes, count, static_cast<int>(header.planes), work.codes);
    if (header.outliers > count) fail("the message tells of more outliers than values");
    restore(count, header, take(4 * size_t{header.outliers}).data(), work, values);
    return payload.size() - rest.size();
  }

  const BoundFormat format_;
  const double bound_ = format_.bound();
};

}  // namespace

std::unique_ptr<Codec> make_bound_codec(const CodecConfig& config) {
  require_entropy();
  return std::make_unique<BoundCodec>(config);
}

}  // namespace trireme
