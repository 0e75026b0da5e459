#include "trireme/bench/codec_peers.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include "trireme/base/files.h"

namespace trireme {

CodecLibraries::CodecLibraries(const std::string& python, const BenchGradients& gradients)
    : python_(python), gradients_(gradients), torch_(python, folder_.path()) {}

std::vector<CodecLibraries::Library> CodecLibraries::beside(const CodecConfig& config) {
  if (config.kind == CodecKind::low_rank) return {{"powersgd", "PowerSGD hook of DDP"}};
  if (config.kind != CodecKind::bound || config.bound_kind != BoundKind::absolute) return {};
  return {{"sz3", "SZ3"}, {"sz3-quantized", "SZ3 without prediction"}, {"zfp", "zfp"}};
}

LibraryTurn CodecLibraries::turn(const Library& library, const CodecConfig& config, bool feedback) {
  LibraryTurn turn;
  if (::access(python_.c_str(), X_OK) != 0) {
    turn.missing = "no Python at " + python_ + ": choose one with --python";
    return turn;
  }
  write_gradients();
  // Memory that is freed is kept for the next turn, as ours is.
  std::vector<std::string> words{"env", "OMP_NUM_THREADS=1", "MALLOC_MMAP_MAX_=0",
                                 "MALLOC_TRIM_THRESHOLD_=1099511627776"};
  const bool products = library.name == "powersgd";
  const auto script = torch_.words(products ? torch_.fastest_eager() : TorchVariant{"eager"}, "codec_peers.py");
  words.insert(words.end(), script.begin(), script.end());
  words.insert(words.end(), {"--codec", library.name, "--values", (folder_.path() / "values").string(), "--bound",
                             fmt::format("{}", config.bound), "--rank", std::to_string(config.rank), "--places",
                             (folder_.path() / "places.json").string()});
  if (feedback) words.push_back("--feedback");
  const auto found = run_command(words);
  turn.missing = found.value("missing", "");
  if (!turn.missing.empty()) return turn;
  turn.encode_s = found.at("encode_s").get<double>();
  turn.decode_s = found.at("decode_s").get<double>();
  turn.error = found.at("error").get<double>();
  turn.largest_difference = found.at("largest_difference").get<double>();
  turn.bytes = found.at("bytes").get<int64_t>();
  return turn;
}

void CodecLibraries::write_gradients() {
  if (written_) return;
  written_ = true;
  const auto& values = gradients_.values;
  write_atomically(folder_.path() / "values",
                   {static_cast<const std::byte*>(values.const_data_ptr()), static_cast<size_t>(values.nbytes())});
  auto places = nlohmann::json::array();
  for (const auto& place : gradients_.matrices) places.push_back({place.offset, place.rows, place.columns});
  write_atomically(folder_.path() / "places.json", places.dump());
}

}  // namespace trireme
