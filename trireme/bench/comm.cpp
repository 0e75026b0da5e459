#include "trireme/bench/comm.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"
#include "trireme/base/log.h"
#include "trireme/base/statistics.h"
#include "trireme/base/units.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/process.h"
#include "trireme/comm/reduction.h"
#include "trireme/comm/world.h"
#include "trireme/device/device.h"
#include "trireme/engine/executor.h"
#include "trireme/spec/links.h"
#include "trireme/bench/cards.h"
#include "trireme/bench/comm_rank.h"
#include "trireme/bench/peer.h"
#include "trireme/bench/script.h"

namespace trireme {

namespace fs = std::filesystem;

std::vector<std::string> CommBenchOptions::known() {
  return {"all_reduce", "bucket", "reduce_scatter", "all_gather", "all_to_all", "overlap", "checking", "message"};
}

void CommBenchOptions::check() {
  const bool cards = device == "cuda";
  if (collectives.empty()) collectives = {"all_reduce", "bucket", "reduce_scatter", "all_gather", "all_to_all"};
  if (cards && kib.empty()) kib = {1024, 4096, 16384, 65536, 262144};
  if (kib.empty()) kib = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536};
  for (const auto& name : collectives) {
    if (cards && (name == "overlap" || name == "checking")) refuse("--case {}: not with --device cuda", name);
    if (!cards && name == "message") refuse("--case message: with --device cuda only");
  }
  if (cards && !cuda_available()) refuse("--device cuda, but there is no CUDA device");
  if (cards && transport == "mpi") refuse("--device cuda needs ranks that share memory, not --transport mpi");
}

std::vector<int64_t> CommBenchOptions::bytes() const {
  std::vector<int64_t> sizes;
  for (const double one : kib) sizes.push_back(static_cast<int64_t>(one * 1024) / 64 * 64);
  return sizes;
}

namespace {

struct MeasuredLinks {
  Links links;
  bool inside = false, between = false;  // which were there to be measured; the other is as it was

  // And by which algorithm each length of an all-reduce between so many ranks would go.
  std::string full(int ranks) const;
};

// Measures the links between the ranks that there are. Collective, under mpirun.
MeasuredLinks measure_links(World& world, const Links& before) {
  std::vector<int64_t> lengths;
  for (int64_t bytes = 64; bytes <= 4 << 20; bytes *= 4) lengths.push_back(bytes);
  // Combining is the same work wherever the bytes come from.
  std::vector<float> a(1 << 20, 1.f), b(1 << 20, 0.f);
  const void* sources[] = {a.data(), b.data()};
  void* targets[] = {a.data()};
  const RealClock clock;
  double gamma = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double begun = clock.now_s();
    reduce(at::kFloat, ReduceOp::sum, sources, targets, static_cast<int64_t>(a.size()));
    const double per_byte = (clock.now_s() - begun) / static_cast<double>(a.size() * sizeof(float));
    gamma = repeat == 0 ? per_byte : std::min(gamma, per_byte);
  }
  // Ranks that have no part in a measurement wait for it here, and leave the cores to those who have.
  auto& communicator = world.communicator();
  const auto agreed = [&](const std::vector<double>& values) {
    const auto tensor = at::tensor(values, at::kDouble);
    communicator.now([&] { return communicator.all_reduce(tensor, ReduceOp::max, "times"); });
    const auto* data = tensor.const_data_ptr<double>();
    return std::vector<double>(data, data + values.size());
  };
  gamma = agreed({gamma})[0];
  MeasuredLinks measured{before, false, false};
  for (const bool inside : {true, false}) {
    const auto seconds = time_messages(world.mpi(), inside, lengths);
    if (seconds.empty()) continue;
    std::vector<std::pair<int64_t, double>> messages;
    const auto all = agreed(seconds);
    for (size_t i = 0; i < lengths.size(); ++i) messages.emplace_back(lengths[i], all[i]);
    auto& link = inside ? measured.links.inside : measured.links.between;
    link = fit_link(messages);
    link.gamma_s_per_byte = gamma;
    (inside ? measured.inside : measured.between) = true;
  }
  return measured;
}

std::string MeasuredLinks::full(int ranks) const {
  std::string text;
  const auto add = [&](const char* name, const LinkCost& link) {
    text += fmt::format("{}: a message takes {:.3g} us and {:.3g} GB/s, combining {:.3g} GB/s\n", name,
                        link.alpha_s * 1e6, 1e-9 / link.beta_s_per_byte, 1e-9 / link.gamma_s_per_byte);
    std::string ways, last;
    for (int64_t bytes = 64; bytes <= int64_t{1} << 30; bytes *= 2) {
      const std::string way = trireme::name(choose_all_reduce(ranks, bytes, link));
      if (way != last)
        ways += fmt::format("{}{} from {}", ways.empty() ? "" : ", ", way, human_bytes(static_cast<double>(bytes)));
      last = way;
    }
    text += fmt::format("  an all-reduce of {} ranks by messages: {}\n", ranks, ways);
  };
  if (inside) add("inside a host", links.inside);
  if (between) add("between hosts", links.between);
  if (!between) text += "between hosts: not measured, all ranks are on one (start with mpirun on several)\n";
  return text;
}

}  // namespace

int measure_comm(const CommBenchOptions& options, const std::vector<std::string>& command_line) {
  const auto around = look_around();
  if (!options.tune.empty()) prepare_output_file("--tune", options.tune);
  if (around.launcher == Launcher::nobody) {
    LaunchOptions launch_options;
    launch_options.ranks = options.ranks.front();
    launch_options.mpirun = true;
    if (options.bind == "core") launch_options.bind_to = "core:overload-allowed";
    launch_options.arguments = command_line;
    // mpirun takes any --tune that it sees for its own.
    std::replace(launch_options.arguments.begin(), launch_options.arguments.end(), std::string("--tune"),
                 std::string("--measure-links"));
    return launch(launch_options);
  }
  if (!options.tune.empty()) {
    const auto world = World::join(around, TransportKind::mpi);
    const auto before = fs::exists(options.tune) ? read_links(options.tune) : Links();
    const auto measured = measure_links(*world, before);
    if (world->rank() == 0) {
      write_links(measured.links, options.tune);
      std::cout << measured.full(world->size()) << "kept in " << options.tune
                << "; train with comm.links=" << options.tune << std::endl;
    }
    return 0;
  }
  const auto transport = options.transport == "mpi" ? TransportKind::mpi : TransportKind::automatic;
  const auto world = World::join(around, transport);
  const auto found = options.device == "cuda" ? measure_cards(options, *world) : measure_cases(options, *world);
  if (world->rank() == 0) std::cout << found.dump() << std::endl;
  return 0;
}

namespace {

bool is_collective(const std::string& name) { return name != "overlap" && name != "checking"; }

// What one repeat found, by case and bytes.
struct Found {
  nlohmann::json ours, gloo;
};

nlohmann::json measure_ranks(const CommBenchOptions& options, int ranks) {
  std::vector<std::string> kib;
  for (const double one : options.kib) kib.push_back(fmt::format("{}", one));
  std::vector<std::string> words{
      own_program(), "bench",           "comm",   "--worker",   "--ranks",  std::to_string(ranks),
      "--transport", options.transport, "--bind", options.bind, "--device", options.device,
      "--case"};
  words.insert(words.end(), options.collectives.begin(), options.collectives.end());
  words.push_back("--kib");
  words.insert(words.end(), kib.begin(), kib.end());
  return run_command(words);
}

nlohmann::json measure_gloo(const CommBenchOptions& options, int ranks, const std::vector<std::string>& collectives) {
  std::vector<std::string> sizes;
  for (const int64_t bytes : options.bytes()) sizes.push_back(std::to_string(bytes));
  return run_command({options.python, script("bench/torch_comm.py"), "--ranks", std::to_string(ranks), "--sizes",
                      fmt::format("{}", fmt::join(sizes, ",")), "--collectives",
                      fmt::format("{}", fmt::join(collectives, ","))});
}

Found measure_once(const CommBenchOptions& options, int ranks, int repeat) {
  std::set<std::string> plain;
  for (const auto& name : options.collectives) {
    if (options.device == "cpu" && is_collective(name)) plain.insert(name == "bucket" ? "all_reduce" : name);
  }
  Found found;
  std::vector<std::function<void()>> sides{[&] { found.ours = measure_ranks(options, ranks); }};
  if (!plain.empty()) sides.push_back([&] { found.gloo = measure_gloo(options, ranks, {plain.begin(), plain.end()}); });
  alternate(repeat, sides);
  return found;
}

// MPI with as many pieces as hide most.
void set_best_overlap(BenchLine& line, const std::string& name, const std::string& size,
                      const std::vector<Found>& found) {
  for (size_t i = 0; i < std::size(overlap_pieces); ++i) {
    std::vector<double> hidden;
    for (const auto& one : found) hidden.push_back(one.ours.at(name).at(size).at("mpi_percent").at(i).get<double>());
    line.settings[fmt::format("mpi_{}_pieces", overlap_pieces[i])] = median(hidden);
    if (i > 0 && median(hidden) <= median(line.peer)) continue;
    line.peer = hidden;
    line.peer_name = overlap_pieces[i] == 1 ? std::string("MPI_Iallreduce")
                                            : fmt::format("MPI_Iallreduce with {} of MPI_Test", overlap_pieces[i] - 1);
  }
}

BenchLine line_of(const CommBenchOptions& options, int ranks, const std::string& name, int64_t bytes,
                  const std::vector<Found>& found) {
  BenchLine line;
  line.bench = "comm";
  line.bench_case = fmt::format("{}, {}, {} ranks", name, human_bytes(static_cast<double>(bytes)), ranks);
  line.settings = {{"collective", name}, {"bytes", bytes}, {"ranks", ranks}, {"transport", options.transport}};
  const auto size = std::to_string(bytes);
  const auto values = [&](const char* key) {
    std::vector<double> all;
    for (const auto& one : found) all.push_back(one.ours.at(name).at(size).at(key).get<double>());
    return all;
  };
  if (options.device == "cpu") line.settings["mpi"] = found.front().ours.at("mpi");
  if (name == "overlap") {
    line.unit = "%";
    line.smaller_is_better = false;
    line.ours = values("ours_percent");
    set_best_overlap(line, name, size, found);
    return line;
  }
  line.unit = "us";
  line.ours = values("ours_us");
  if (name == "checking") {
    line.peer = values("unchecked_us");
    line.peer_name = "ours without checking";
    return line;
  }
  if (options.device == "cuda") {
    line.peer = values("host_us");
    line.peer_name = "ours through the host";
    line.settings["gb_per_s"] = static_cast<double>(bytes) * 1e-3 / median(line.ours);
    return line;
  }
  std::vector<double> gloo;
  for (const auto& one : found)
    gloo.push_back(one.gloo.at(name == "bucket" ? "all_reduce" : name).at(size).get<double>());
  const std::vector<std::pair<std::string, std::vector<double>>> peers{
      {"Open MPI", values("mpi_us")}, {"Open MPI (shared memory)", values("mpi_shared_us")}, {"Gloo", gloo}};
  const auto best = std::min_element(peers.begin(), peers.end(),
                                     [](const auto& a, const auto& b) { return median(a.second) < median(b.second); });
  line.peer_name = best->first;
  line.peer = best->second;
  line.settings["open_mpi_us"] = median(peers[0].second);
  line.settings["open_mpi_shared_us"] = median(peers[1].second);
  line.settings["gloo_us"] = median(gloo);
  if (name == "bucket") line.floor = median(values("floor_us"));
  return line;
}

}  // namespace

void run_comm_bench(const CommBenchOptions& asked, const std::function<void(const BenchLine&)>& each,
                    const std::function<void(const std::string&)>& say) {
  auto options = asked;
  options.check();
  if (options.device == "cpu" && ::access(options.python.c_str(), X_OK) != 0)
    refuse("--python {}: not found; the peer runs in the Python that holds torch", options.python);
  for (const int ranks : options.ranks) {
    std::vector<Found> found;
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      log::info("{} ranks: repeat {} of {}", ranks, repeat + 1, options.repeats);
      found.push_back(measure_once(options, ranks, repeat));
    }
    if (options.device == "cpu")
      say(fmt::format("{} ranks beside {}", ranks, found.front().ours.at("mpi").get<std::string>()));
    for (const auto& name : options.collectives) {
      for (const int64_t bytes : options.bytes()) each(line_of(options, ranks, name, bytes, found));
    }
  }
}

}  // namespace trireme
