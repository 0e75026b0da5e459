// Feeds every codec with broken messages: good ones, bent in every way, half of them with a checksum that is right for
// what they became, as a malicious sender would make it. By hand, in the asan preset:
//
//   fuzz_codecs [seconds] [seed]
//
// A codec may refuse a message by an Error, and nothing else: another exception, a crash, a read or write outside of
// the tensors, or a hang is a finding.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/codec/messages.h"
#include "trireme/codec/envelope.h"

namespace trireme {
namespace {

class Mutator {
 public:
  explicit Mutator(Key key) : key_(key) {}

  uint64_t below(uint64_t bound) { return bits64(key_, count_++) % bound; }

  void bend(std::vector<uint8_t>& bytes) {
    for (uint64_t times = 1 + below(6); times > 0; --times) once(bytes);
  }

 private:
  void once(std::vector<uint8_t>& bytes) {
    const size_t place = below(bytes.size() + 1);
    const size_t length = below(std::min<size_t>(32, bytes.size() - place) + 1);
    const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(place);
    const auto end = at + static_cast<std::ptrdiff_t>(length);
    switch (below(7)) {
      case 0:
        if (place < bytes.size()) bytes[place] = static_cast<uint8_t>(below(256));
        break;
      case 1:
        if (place < bytes.size()) bytes[place] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 2: bytes.erase(at, end); break;
      case 3: {
        const std::vector<uint8_t> piece(at, end);
        bytes.insert(at, piece.begin(), piece.end());
        break;
      }
      case 4: bytes.resize(place); break;
      case 5: std::fill(at, end, below(2) ? uint8_t{0xff} : uint8_t{0}); break;
      default: {  // a number that lengths and counts may be read from, often in a header
        const size_t header = std::min<size_t>(place, below(2) ? 96 : bytes.size());
        const uint64_t numbers[] = {0,          1,          0xff,         0xffff,        0x7fffffff,
                                    0x80000000, 0xffffffff, ~uint64_t{0}, below(1 << 20)};
        const uint64_t number = numbers[below(std::size(numbers))];
        const size_t width = std::min<size_t>(below(2) ? 4 : 8, bytes.size() - header);
        std::memcpy(bytes.data() + header, &number, width);
      }
    }
  }

  Key key_;
  uint64_t count_ = 0;
};

// An envelope that is right for whatever lies behind it.
void forge(std::vector<uint8_t>& bytes, const std::vector<uint8_t>& original) {
  if (bytes.size() < sizeof(Envelope)) return;
  Envelope envelope;
  std::memcpy(&envelope, original.data(), sizeof envelope);
  envelope.payload_bytes = bytes.size() - sizeof envelope;
  MessageSum sum;
  seal(envelope, sum, bytes.data());
}

struct Counts {
  uint64_t all = 0, forged = 0, taken = 0;
};

void round(Key key, const std::vector<CodecConfig>& configs, Counts& counts) {
  Mutator mutator(key);
  constexpr int64_t sizes[] = {0, 1, 31, 100, 500, 1000, 40000, 70000};
  const int64_t count = sizes[mutator.below(std::size(sizes))];
  const auto& config = configs[mutator.below(configs.size())];
  const auto codec = make_codec(config, some_matrices(count));
  const Codec& used = mutator.below(4) == 0 ? codec->of_sums() : *codec;
  // Mostly small values, with large and odd ones among them.
  auto values = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = bits32(key, static_cast<uint32_t>(i));
    values.data_ptr<float>()[i] = bits % 64 == 0 ? std::bit_cast<float>(bits * 2654435761u)
                                                 : static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-34f;
  }
  const auto message = message_of(used, values, {}, key);
  const auto* begin = message.const_data_ptr<uint8_t>();
  const std::vector<uint8_t> original(begin, begin + message.numel());
  for (int times = 0; times < 20; ++times) {
    auto bytes = original;
    mutator.bend(bytes);
    const bool forged = mutator.below(2) == 0;
    if (forged) forge(bytes, original);
    // A tensor of exactly that size, so that whatever lies behind it is found by the sanitizer.
    const auto bent = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    if (!bytes.empty()) std::memcpy(bent.data_ptr(), bytes.data(), bytes.size());
    try {
      mutator.below(2) ? used.decode(bent, values) : used.add(bent, values);
      ++counts.taken;
    } catch (const Error&) {
    }
    ++counts.all;
    counts.forged += forged;
  }
}

int run(double seconds, uint64_t seed) {
  at::set_num_threads(1);
  const auto configs = all_configs();
  Counts counts;
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  uint64_t number = 0;
  for (; passed() < seconds; ++number) {
    alarm(30);  // a hang is a finding too
    try {
      round(Key{seed}.with(number), configs, counts);
    } catch (const std::exception& error) {
      fmt::print("round {} of seed {}: {}\n", number, seed, error.what());
      return 1;
    }
  }
  fmt::print("{} messages in {:.0f} s, {} of them forged; {} taken, the others refused\n", counts.all, passed(),
             counts.forged, counts.taken);
  return 0;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run(argc > 1 ? std::atof(argv[1]) : 60, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
}
