// PyTorch as the benchmarks of training run it beside ours: eager or compiled, and each with the matrix library as
// torch installs it or with the fastest that the machine has. torch's wheels for processors come with MKL, which leaves
// the widest instructions of processors that are not Intel's unused, although it has kernels for them; a preloaded
// library of one function makes MKL use them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme {

struct TorchVariant {
  std::string name;  // as in TorchPeer::known()
  bool compiled = false, fastest = false;
};

class TorchPeer {
 public:
  // `folder` is the benchmark's own, for what is built on the way.
  TorchPeer(std::string python, std::filesystem::path folder);

  static std::vector<std::string> known();
  // Those that were asked for, or all that can differ on this machine. Refuses the fastest library on cards, and where
  // torch's is the fastest already.
  std::vector<TorchVariant> variants(const std::vector<std::string>& asked, bool card);
  // Eager, with the fastest library that can be had here.
  TorchVariant fastest_eager();
  // Words that start a peer's script, one of those in bench/; its arguments come behind them.
  std::vector<std::string> words(const TorchVariant& variant, const std::string& script) const;
  // "MKL 2024.2, 118 GFLOP/s a core".
  std::string matrices(const TorchVariant& variant, bool card);
  // Why a variant cannot run here; empty if it can.
  std::string obstacle(const TorchVariant& variant) const;

 private:
  struct Library {
    std::string name;
    double gflops = 0;
  };
  // The library with and without the preload, by the script's own measurement.
  const Library& probed(bool fastest);
  void examine();
  void build_preload();

  const std::string python_;
  const std::filesystem::path folder_;
  std::map<bool, Library> probed_;
  bool examined_ = false, can_unlock_ = false;
  std::filesystem::path preload_;  // empty where it could not be built
  std::string obstacle_;
};

// The same of our own products, in the same words: the library that nn/product takes, and its speed with fp32 matrices
// of 1024 x 1024 on one core.
std::string our_matrices();

}  // namespace trireme
