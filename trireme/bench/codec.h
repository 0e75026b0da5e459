// `trireme bench codec`: every codec there and back on real gradients, on one core or on a card, beside what torch has
// for the same, and on a core beside SZ3, zfp and PowerSGD. What comes back is compared with the promise before any
// time counts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/codec/codec.h"
#include "trireme/observe/bench_line.h"

namespace trireme {

struct CodecBenchOptions {
  std::vector<std::string> cases;  // names as in known(); empty: all
  std::string device = "cpu";
  int repeats = 9;
  double mib = 64;
  std::string python = TRIREME_PYTHON;

  static std::vector<std::string> known();
};

// Gradients of a small GPT, step after step behind each other until there are enough.
struct BenchGradients {
  at::Tensor values;
  std::vector<MatrixPlace> matrices;
  std::string source;
};
BenchGradients real_gradients(int64_t count);

void run_codec_bench(const CodecBenchOptions& options, const std::function<void(const BenchLine&)>& each);

}  // namespace trireme
