// The peers of `trireme bench codec` that are libraries with a Python face, run by bench/codec_peers.py: SZ3 and zfp
// beside our error-bounded codec, PowerSGD's hook of DDP beside our low rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/bench/codec.h"
#include "trireme/bench/peer.h"
#include "trireme/bench/torch_peer.h"

namespace trireme {

// One turn there and back on the gradients of the benchmark.
struct LibraryTurn {
  std::string missing;  // how the library could be had; then nothing else is there
  double encode_s = 0, decode_s = 0, error = 0, largest_difference = 0;
  int64_t bytes = 0;
};

class CodecLibraries {
 public:
  CodecLibraries(const std::string& python, const BenchGradients& gradients);

  struct Library {
    std::string name, title;
  };
  // Those that promise the same as a codec does. SZ3 and zfp have no bound relative to each value.
  static std::vector<Library> beside(const CodecConfig& config);

  // A process of its own, on one core. `feedback` as our codecs have it, where the library can.
  LibraryTurn turn(const Library& library, const CodecConfig& config, bool feedback = false);

 private:
  void write_gradients();

  const std::string python_;
  const BenchGradients& gradients_;
  BenchFolder folder_;
  TorchPeer torch_;
  bool written_ = false;
};

}  // namespace trireme
