#include "trireme/bench/torch_peer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/comm/process.h"
#include "trireme/engine/executor.h"
#include "trireme/nn/product.h"
#include "trireme/bench/peer.h"
#include "trireme/bench/script.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

const std::vector<TorchVariant>& all_variants() {
  static const std::vector<TorchVariant> variants{{"eager", false, false},
                                                  {"eager-fastest", false, true},
                                                  {"compile", true, false},
                                                  {"compile-fastest", true, true}};
  return variants;
}

bool is_amd() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("vendor_id", 0) == 0) return line.find("AuthenticAMD") != std::string::npos;
  }
  return false;
}

std::string library_brief(const std::string& name, double gflops) {
  return fmt::format("{}, {:.0f} GFLOP/s a core", name, gflops);
}

}  // namespace

TorchPeer::TorchPeer(std::string python, fs::path folder) : python_(std::move(python)), folder_(std::move(folder)) {}

std::vector<std::string> TorchPeer::known() {
  std::vector<std::string> names;
  for (const auto& variant : all_variants()) names.push_back(variant.name);
  return names;
}

std::vector<TorchVariant> TorchPeer::variants(const std::vector<std::string>& asked, bool card) {
  if (!card) examine();
  std::vector<TorchVariant> chosen;
  for (const auto& variant : all_variants()) {
    const bool wanted = std::count(asked.begin(), asked.end(), variant.name) > 0;
    const bool differs = !variant.fastest || (!card && can_unlock_);
    if (wanted && !differs)
      refuse("--peers {}: {}", variant.name,
             card ? "products on a card are cuBLAS's in any case"
                  : fmt::format("the {} that torch installs is the fastest matrix library here, as only MKL on AMD's "
                                "processors has more to give",
                                probed(false).name));
    if (wanted || (asked.empty() && differs)) chosen.push_back(variant);
  }
  return chosen;
}

TorchVariant TorchPeer::fastest_eager() {
  examine();
  return can_unlock_ && obstacle_.empty() ? TorchVariant{"eager-fastest", false, true} : TorchVariant{"eager"};
}

// Whether MKL leaves something unused here, and what lets it use that.
void TorchPeer::examine() {
  if (examined_) return;
  examined_ = true;
  can_unlock_ = is_amd() && probed(false).name.rfind("MKL", 0) == 0;
  if (can_unlock_) build_preload();
}

// MKL asks this function whether the processor is Intel's before it takes its kernels for wide vectors.
void TorchPeer::build_preload() {
  const auto source = folder_ / "unlock_mkl.c", library = folder_ / "unlock_mkl.so";
  write_atomically(source, "int mkl_serv_intel_cpu_true(void) { return 1; }\n");
  int status = 0;
  output_of({"cc", "-shared", "-fPIC", "-o", library.string(), source.string()}, status);
  if (status != 0) {
    obstacle_ = "needs a C compiler, cc, for the library that lets MKL use all of this processor's instructions";
    return;
  }
  preload_ = library;
}

std::vector<std::string> TorchPeer::words(const TorchVariant& variant, const std::string& name) const {
  std::vector<std::string> words;
  const bool preloads = variant.fastest && !preload_.empty();
  if (preloads || variant.compiled) words.push_back("env");
  if (preloads) words.push_back("LD_PRELOAD=" + preload_.string());
  // What is compiled in one run of this benchmark is found again in the next repeats, and nothing older is.
  if (variant.compiled) words.push_back("TORCHINDUCTOR_CACHE_DIR=" + (folder_ / "inductor").string());
  words.push_back(python_);
  words.push_back(script("bench/" + name));
  return words;
}

std::string TorchPeer::matrices(const TorchVariant& variant, bool card) {
  if (card) return "cuBLAS";
  if (!obstacle(variant).empty()) return "";
  const auto& library = probed(variant.fastest);
  return library_brief(variant.fastest ? library.name + " unlocked" : library.name, library.gflops);
}

std::string TorchPeer::obstacle(const TorchVariant& variant) const { return variant.fastest ? obstacle_ : ""; }

const TorchPeer::Library& TorchPeer::probed(bool fastest) {
  const auto found = probed_.find(fastest);
  if (found != probed_.end()) return found->second;
  auto command = words({"", false, fastest}, "torch_train.py");
  command.emplace_back("--probe");
  const auto result = run_command(command);
  return probed_[fastest] = {result.at("library").get<std::string>(), result.at("gflops").get<double>()};
}

std::string our_matrices() {
  const c10::NoGradGuard no_grad;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto left = at::randn({1024, 1024}), right = at::randn({1024, 1024});
  const RealClock clock;
  double fastest_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 40; ++i) {
    const double begun = clock.now_s();
    product(left, right);
    fastest_s = std::min(fastest_s, clock.now_s() - begun);
  }
  at::set_num_threads(threads);
  return library_brief(product_library(), 2e-9 * 1024 * 1024 * 1024 / fastest_s);
}

}  // namespace trireme
