#include "trireme/bench/codec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <time.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/statistics.h"
#include "trireme/device/device.h"
#include "trireme/bench/codec_peers.h"

namespace trireme {

namespace {

using Call = std::function<void()>;

// What torch does for the same: there and back into memory that is there, its scale's computation included.
struct Peer {
  std::string name;
  Call call;  // none where torch has nothing
};

class Peers {
 public:
  explicit Peers(const at::Tensor& values) : values_(values), back_(at::empty_like(values)) {}

  Peer of(const CodecConfig& config) const {
    switch (config.kind) {
      case CodecKind::fp16: return {"torch copy_ to fp16 and back", cast(at::kHalf)};
      case CodecKind::bf16: return {"torch copy_ to bf16 and back", cast(at::kBFloat16)};
      case CodecKind::int8: return {"torch quantize_per_tensor", per_tensor()};
      case CodecKind::int4: return {"torch quantize_per_tensor (8 bits)", per_tensor()};
      case CodecKind::sign: return {"torch sign (8 bits)", sign()};
      case CodecKind::top_k: return {"torch topk", top_k(config.keep)};
      case CodecKind::threshold: return {"torch nonzero", threshold(config.threshold)};
      default: return {};
    }
  }
  // By blocks, as ours; torch has it for rows of a matrix.
  Peer by_blocks(int64_t block) const { return {"torch quantize_per_channel", per_channel(block)}; }

 private:
  Call cast(at::ScalarType type) const {
    return [values = values_, back = back_, half = at::empty_like(values_, type)] {
      half.copy_(values);
      back.copy_(half);
    };
  }

  Call per_tensor() const {
    return [values = values_] {
      const auto [low, high] = at::aminmax(values);
      const double scale = std::max(-low.item<double>(), high.item<double>()) / 127;
      at::quantize_per_tensor(values, scale, 0, at::kQInt8).dequantize();
    };
  }

  Call per_channel(int64_t block) const {
    const int64_t blocks = values_.numel() / block;
    return [rows = values_.narrow(0, 0, blocks * block).view({blocks, block}), zeros = at::zeros({blocks}, at::kLong)] {
      const auto [low, high] = at::aminmax(rows, 1);
      const auto scales = at::maximum(-low, high).div_(127).clamp_min_(1e-30);
      at::quantize_per_channel(rows, scales, zeros, 0, at::kQInt8).dequantize();
    };
  }

  Call sign() const {
    return [values = values_, back = back_, bytes = at::empty_like(values_, at::kChar)] {
      const double mean = values.abs().mean().item<double>();
      bytes.copy_(values.sign());
      back.copy_(bytes).mul_(mean);
    };
  }

  Call top_k(double keep) const {
    const auto kept = static_cast<int64_t>(std::ceil(keep * static_cast<double>(values_.numel())));
    return [values = values_, back = back_, kept] {
      const auto places = std::get<1>(at::topk(values.abs(), kept, -1, true, false));
      back.zero_().scatter_(0, places, values.gather(0, places));
    };
  }

  Call threshold(double least) const {
    return [values = values_, back = back_, least] {
      const auto places = at::nonzero(values.abs().ge(least)).view({-1});
      back.zero_().scatter_(0, places, values.gather(0, places));
    };
  }

  at::Tensor values_, back_;
};

struct Case {
  std::string name;
  CodecConfig config;
  double largest_error;  // ‖back − values‖ / ‖values‖ that it may have on gradients
};

std::vector<Case> all_cases(const at::Tensor& values) {
  const auto host = values.cpu();
  const double deviation = host.norm().item<double>() / std::sqrt(static_cast<double>(host.numel()));
  const auto sample = host.slice(0, 0, host.numel(), std::max<int64_t>(1, host.numel() / 100000)).abs();
  const double hundredth = std::get<0>(sample.kthvalue(std::max<int64_t>(1, sample.numel() * 99 / 100))).item<double>();
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, CodecKind kind, double error, auto change) {
    CodecConfig config;
    config.kind = kind;
    change(config);
    cases.push_back({name, config, error});
  };
  const auto plain = [](CodecConfig&) {};
  const auto stochastic = [](CodecConfig& config) { config.rounding = Rounding::stochastic; };
  add("fp16", CodecKind::fp16, 1e-2, plain);
  add("bf16", CodecKind::bf16, 1e-2, plain);
  add("int8", CodecKind::int8, 0.05, plain);
  add("int8-stochastic", CodecKind::int8, 0.05, stochastic);
  add("int4", CodecKind::int4, 0.5, plain);
  add("int4-stochastic", CodecKind::int4, 0.7, stochastic);
  add("sign", CodecKind::sign, 1, plain);
  add("top_k", CodecKind::top_k, 1, plain);
  add("threshold", CodecKind::threshold, 1, [&](CodecConfig& config) { config.threshold = hundredth; });
  add("low_rank", CodecKind::low_rank, 1, plain);
  add("bound", CodecKind::bound, 0.1, [&](CodecConfig& config) { config.bound = deviation / 10; });
  add("bound-relative", CodecKind::bound, 0.01, [](CodecConfig& config) {
    config.bound = 0.01;
    config.bound_kind = BoundKind::relative;
  });
  return cases;
}

class CodecBench {
 public:
  CodecBench(const CodecBenchOptions& options, const BenchGradients& gradients)
      : options_(options),
        gradients_(gradients),
        device_(choose_device(options.device == "cuda", 0)),
        values_(gradients.values.to(device_)),
        back_(at::empty_like(values_)),
        residual_(at::zeros_like(values_)),
        peers_(values_),
        libraries_(options.python, gradients) {}

  const at::Tensor& values() const { return values_; }
  bool measures(const CodecConfig& config) const {
    return device_.is_cpu() || make_codec(config, gradients_.matrices)->on_cards();
  }

  // A line beside what torch has, or one for each library that promises the same.
  std::vector<BenchLine> measure(const Case& tried) {
    const auto codec = make_codec(tried.config, gradients_.matrices);
    const auto room = at::empty({codec->most_bytes(values_.numel())}, values_.options().dtype(at::kByte));
    int64_t length = 0;
    const auto encode = [&] { length = codec->encode(values_, {}, Key{1}, room); };
    const auto decode = [&] { codec->decode(room.narrow(0, 0, length), back_); };
    encode();
    decode();
    const double error = check(tried, back_);
    const int64_t bytes = length;

    const auto peer = best_peer(tried.config);
    std::vector<LibraryRow> rows;
    if (device_.is_cpu()) {
      for (const auto& library : CodecLibraries::beside(tried.config)) rows.push_back({library});
    }
    std::vector<double> ours, theirs, encoding, decoding, feeding, copying;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      std::vector<std::function<void()>> sides{[&] {
        encoding.push_back(seconds(encode));
        decoding.push_back(seconds(decode));
        ours.push_back(rate(encoding.back() + decoding.back()));
      }};
      if (peer.call) sides.push_back([&] { theirs.push_back(rate(seconds(peer.call))); });
      for (auto& row : rows) {
        if (row.last.missing.empty()) sides.push_back([&] { take_turn(row, tried); });
      }
      alternate(repeat, sides);
      copying.push_back(seconds([&] { back_.copy_(values_); }));
      residual_.zero_();
      feeding.push_back(seconds([&] { length = codec->encode(values_, residual_, Key{1}, room); }) + seconds(decode));
    }
    BenchLine line;
    line.bench = "codec";
    line.unit = "GB/s";
    line.smaller_is_better = false;
    line.ours = ours;
    line.peer_name = peer.name;
    line.peer = theirs;
    // A copy reads and writes the tensor once each; there and back do so too, and the message is written and read.
    line.floor = rate(median(copying) * (1 + static_cast<double>(bytes) / static_cast<double>(values_.nbytes())));
    line.settings = {{"codec", codec->name()},
                     {"ratio", ratio(bytes)},
                     {"error", error},
                     {"encode", rate(median(encoding))},
                     {"decode", rate(median(decoding))},
                     {"with_feedback", rate(median(feeding))},
                     {"copy", rate(median(copying))},
                     {"mib", options_.mib},
                     {"gradients", gradients_.source}};
    const bool integers = tried.config.kind == CodecKind::int8 || tried.config.kind == CodecKind::int4;
    if (integers && device_.is_cpu())  // torch's way to the same promise, whichever is the faster peer
      line.settings["torch_by_blocks"] = rate(median_of(peers_.by_blocks(tried.config.block).call));
    line.bench_case = fmt::format("{} (ratio {:.3g}, error {:.2g})", tried.name, ratio(bytes), error);
    if (rows.empty()) return {line};
    std::vector<BenchLine> lines;
    for (const auto& row : rows) lines.push_back(beside(row, line));
    mark_best_peer(lines);
    return lines;
  }

 private:
  // A library and what its turns have shown.
  struct LibraryRow {
    CodecLibraries::Library library;
    LibraryTurn last;
    std::vector<double> rates, feeding;
  };

  void take_turn(LibraryRow& row, const Case& tried) {
    row.last = libraries_.turn(row.library, tried.config);
    if (!row.last.missing.empty()) return;
    const auto& config = tried.config;
    if (config.kind == CodecKind::bound && !(row.last.largest_difference <= config.bound))
      fail("{} breaks its bound: {} is more than {}", row.library.title, row.last.largest_difference, config.bound);
    row.rates.push_back(rate(row.last.encode_s + row.last.decode_s));
    if (config.kind != CodecKind::low_rank) return;
    const auto fed = libraries_.turn(row.library, config, /*feedback=*/true);
    row.feeding.push_back(rate(fed.encode_s + fed.decode_s));
  }

  BenchLine beside(const LibraryRow& row, BenchLine line) const {
    line.peer_name = row.library.title;
    line.missing = row.last.missing;
    if (!line.missing.empty()) return line;
    line.peer = row.rates;
    line.peer_name += fmt::format(" (ratio {:.3g}, error {:.2g})", ratio(row.last.bytes), row.last.error);
    line.settings["peer_ratio"] = ratio(row.last.bytes);
    line.settings["peer_error"] = row.last.error;
    const double longer = line.settings.at("ratio").get<double>() / ratio(row.last.bytes);
    line.settings["peer_bytes_to_ours"] = longer;
    line.remark = fmt::format("the peer's message has {:.2f} times the bytes", longer);
    if (!row.feeding.empty()) line.settings["peer_with_feedback"] = rate(median(row.feeding));
    return line;
  }

  // By how much a message is shorter than the values.
  double ratio(int64_t bytes) const { return static_cast<double>(values_.nbytes()) / static_cast<double>(bytes); }
  double rate(double seconds) const { return static_cast<double>(values_.nbytes()) / seconds / 1e9; }

  // Of this core, which others may want too; of a card by the clock.
  double seconds(const Call& call) const {
    const int rounds = device_.is_cpu() ? 1 : 20;  // a card's launches overlap with its work
    const clockid_t clock = device_.is_cpu() ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    const auto now = [clock] {
      timespec time;
      clock_gettime(clock, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    synchronize(device_);
    const double begun = now();
    for (int i = 0; i < rounds; ++i) call();
    synchronize(device_);
    return (now() - begun) / rounds;
  }

  double median_of(const Call& call) const {
    std::vector<double> times;
    for (int i = 0; i < options_.repeats + 1; ++i) times.push_back(seconds(call));
    times.erase(times.begin());
    return median(times);
  }

  // A codec that keeps no promise has no speed.
  double check(const Case& tried, const at::Tensor& back) const {
    const auto difference = back - values_;
    const double error = difference.norm().item<double>() / values_.norm().item<double>();
    const auto& config = tried.config;
    if (!(error <= tried.largest_error)) fail("{} is wrong: a relative error of {}", tried.name, error);
    if (config.kind == CodecKind::bound) {
      const auto limit = config.bound_kind == BoundKind::absolute ? at::full_like(values_, config.bound, at::kDouble)
                                                                  : values_.abs().to(at::kDouble).mul_(config.bound);
      if (!difference.abs().to(at::kDouble).le(limit).all().item<bool>()) fail("{} breaks its bound", tried.name);
    }
    if (config.kind == CodecKind::top_k) {
      const auto kept = static_cast<int64_t>(std::ceil(config.keep * static_cast<double>(values_.numel())));
      const auto largest = std::get<0>(at::topk(values_.abs(), kept, -1, true, true));
      const auto ours = std::get<0>(at::topk(back.abs(), kept, -1, true, true));
      if (!at::equal(largest, ours)) fail("{} keeps others than the largest", tried.name);
    }
    return error;
  }

  Peer best_peer(const CodecConfig& config) const {
    auto peer = peers_.of(config);
    if (device_.is_cpu() && (config.kind == CodecKind::int8 || config.kind == CodecKind::int4)) {
      const auto blocks = peers_.by_blocks(config.block);
      if (median_of(blocks.call) < median_of(peer.call)) return blocks;
    }
    if (peer.call) peer.call();
    return peer;
  }

  const CodecBenchOptions& options_;
  const BenchGradients& gradients_;
  const at::Device device_;
  const at::Tensor values_, back_, residual_;
  const Peers peers_;
  CodecLibraries libraries_;
};

}  // namespace

std::vector<std::string> CodecBenchOptions::known() {
  return {"fp16", "bf16",  "int8",      "int8-stochastic", "int4",  "int4-stochastic",
          "sign", "top_k", "threshold", "low_rank",        "bound", "bound-relative"};
}

void run_codec_bench(const CodecBenchOptions& options, const std::function<void(const BenchLine&)>& each) {
  const auto count = static_cast<int64_t>(options.mib * (1 << 20) / 4);
  log::info("training a small model for {} MiB of gradients", options.mib);
  const auto gradients = real_gradients(count);
  c10::NoGradGuard no_grad;
  at::set_num_threads(1);
  CodecBench bench(options, gradients);
  for (const auto& tried : all_cases(bench.values())) {
    const bool asked = options.cases.empty() ||
                       std::find(options.cases.begin(), options.cases.end(), tried.name) != options.cases.end();
    if (!asked || !bench.measures(tried.config)) continue;
    for (const auto& line : bench.measure(tried)) each(line);
  }
}

}  // namespace trireme
