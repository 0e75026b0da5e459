#include "trireme/bench/comm.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"
#include "trireme/base/log.h"
#include "trireme/base/statistics.h"
#include "trireme/base/units.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/mpi_peer.h"
#include "trireme/comm/reduction.h"
#include "trireme/comm/world.h"
#include "trireme/device/device.h"
#include "trireme/engine/executor.h"
#include "trireme/spec/links.h"
#include "trireme/bench/cards.h"
#include "trireme/bench/peer.h"
#include "trireme/bench/rank.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

// The ranks' side of the benchmark: every measurement is checked, then timed.
class CommRank {
 public:
  explicit CommRank(World& world) : world_(world), communicator_(world.communicator()), timer_(world) {}

  void time(const BenchRank::Sides& sides, nlohmann::ordered_json& into) {
    const auto [mine, theirs] = timer_.time(sides);
    into = {{"ours_us", mine * 1e6}, {"mpi_us", theirs * 1e6}};
  }

  // A tensor of this rank's number + 1, in memory of its own or shared.
  at::Tensor filled(int64_t count, bool shared) {
    auto tensor = shared ? communicator_.allocate(count * 4).view(at::kFloat) : at::empty({count}, at::kFloat);
    return tensor.fill_(static_cast<double>(world_.rank() + 1));
  }

  void all_reduce(int64_t count, bool shared, nlohmann::ordered_json& into) {
    const auto tensor = filled(count, shared), other = filled(count, false);
    const auto ours = [&] { now([&] { return communicator_.all_reduce(tensor, ReduceOp::sum, "bench"); }); };
    const auto peer = [&] { MpiPeer::all_reduce(other.mutable_data_ptr<float>(), count); };
    ours();
    peer();
    const int64_t ranks = world_.size();
    expect(tensor, static_cast<double>(ranks * (ranks + 1) / 2), "all_reduce");
    expect(other, static_cast<double>(ranks * (ranks + 1) / 2), "MPI_Allreduce");
    tensor.fill_(0);  // sums of sums would soon be infinite, which some processors add up slowly
    other.fill_(0);
    if (!shared) return time({ours, peer}, into);
    const auto seconds = timer_.times({ours, peer, bare_pass(count)});
    into = {{"ours_us", seconds[0] * 1e6}, {"mpi_us", seconds[1] * 1e6}, {"floor_us", seconds[2] * 1e6}};
  }

  // What no all-reduce in place can do without: reading this rank's part of every buffer, adding, and writing the sum
  // to them all. Here nobody waits for anybody, and all of it is this rank's own memory.
  std::function<void()> bare_pass(int64_t count) {
    const int64_t part = count / world_.size();
    const auto memory = filled(count, true).view({world_.size(), part}).zero_();
    std::vector<void*> buffers;
    for (int i = 0; i < world_.size(); ++i) buffers.push_back(memory[i].data_ptr());
    return [memory, buffers, part] {
      reduce(at::kFloat, ReduceOp::sum, std::span<const void* const>(buffers.data(), buffers.size()), buffers, part);
    };
  }

  void reduce_scatter(int64_t count, nlohmann::ordered_json& into) {
    const int64_t ranks = world_.size(), part = count / ranks, begin = world_.rank() * part;
    const auto tensor = filled(count, false), other = filled(count, false), taken = at::empty({part});
    const auto parts = even_offsets(count, world_.size());
    const auto ours = [&] {
      now([&] { return communicator_.reduce_scatter(tensor, ReduceOp::sum, "bench", {}, everybody, parts); });
    };
    const auto peer = [&] {
      MpiPeer::reduce_scatter(other.const_data_ptr<float>(), taken.mutable_data_ptr<float>(), part);
    };
    ours();
    peer();
    expect(tensor.narrow(0, begin, part), static_cast<double>(ranks * (ranks + 1) / 2), "reduce_scatter");
    expect(taken, static_cast<double>(ranks * (ranks + 1) / 2), "MPI_Reduce_scatter_block");
    tensor.fill_(0);
    other.fill_(0);
    time({ours, peer}, into);
  }

  void all_gather(int64_t count, nlohmann::ordered_json& into) {
    const int64_t part = count / world_.size();
    const auto given = filled(part, false), taken = at::empty({count}), other = at::empty({count});
    const auto ours = [&] { now([&] { return communicator_.all_gather(given, taken, "bench"); }); };
    const auto peer = [&] {
      MpiPeer::all_gather(given.const_data_ptr<float>(), other.mutable_data_ptr<float>(), part);
    };
    ours();
    peer();
    if (!at::equal(taken, other)) fail("all_gather differs from MPI_Allgather");
    time({ours, peer}, into);
  }

  void all_to_all(int64_t count, nlohmann::ordered_json& into) {
    const int64_t part = count / world_.size();
    const auto given = at::arange(count, at::kFloat) + 1000 * world_.rank();
    const auto taken = at::empty({count}), other = at::empty({count});
    const auto ours = [&] { now([&] { return communicator_.all_to_all(given, taken, "bench"); }); };
    const auto peer = [&] {
      MpiPeer::all_to_all(given.const_data_ptr<float>(), other.mutable_data_ptr<float>(), part);
    };
    ours();
    peer();
    if (!at::equal(taken, other)) fail("all_to_all differs from MPI_Alltoall");
    time({ours, peer}, into);
  }

  // The share of an all-reduce that a computation of the same length hides, by OSU's formula.
  void overlap(int64_t count, nlohmann::ordered_json& into) {
    const auto tensor = filled(count, true), other = filled(count, false);
    tensor.fill_(0);
    other.fill_(0);
    auto* data = other.mutable_data_ptr<float>();
    const auto [ours, theirs] =
        timer_.time({[&] { now([&] { return communicator_.all_reduce(tensor, ReduceOp::sum, "bench"); }); },
                     [&] { MpiPeer::all_reduce(data, count); }});
    const auto hidden = [&](double alone, const std::function<void(const std::function<void()>&)>& beside) {
      const auto [both, work] = timer_.time({[&] { beside([&] { compute(alone); }); }, [&] { compute(alone); }});
      return std::max(0.0, 1 - (both - work) / alone);
    };
    const double mine = hidden(ours, [&](const auto& work) {
      const auto ticket = communicator_.all_reduce(tensor, ReduceOp::sum, "bench");
      work();
      communicator_.wait(ticket);
    });
    const double peer = hidden(theirs, [&](const auto& work) { MpiPeer::all_reduce_beside(data, count, work); });
    into = {{"ours_percent", 100 * mine}, {"mpi_percent", 100 * peer}};
  }

  // With and without the comparison of calls.
  void checking(int64_t count, nlohmann::ordered_json& into) {
    const auto tensor = filled(count, true);
    tensor.fill_(0);
    const auto call = [&](bool checked) {
      communicator_.try_with({.checking = checked});
      now([&] { return communicator_.all_reduce(tensor, ReduceOp::sum, "bench"); });
    };
    const auto [checked, unchecked] = timer_.time({[&] { call(true); }, [&] { call(false); }});
    communicator_.try_with({});
    into = {{"ours_us", checked * 1e6}, {"unchecked_us", unchecked * 1e6}};
  }

 private:
  template <class Start>
  void now(const Start& start) {
    communicator_.now(start);
  }

  void expect(const at::Tensor& tensor, double value, const char* what) {
    if (tensor.numel() > 0 && !at::equal(tensor, at::full_like(tensor, value))) fail("{} gave a wrong result", what);
  }

  // Arithmetic that stays in registers, for so many seconds.
  void compute(double seconds) {
    const double end = timer_.now_s() + seconds;
    while (timer_.now_s() < end) {
      for (int i = 0; i < 200; ++i) number_ = number_ * 0.999 + 1;
    }
  }

  World& world_;
  Communicator& communicator_;
  BenchRank timer_;
  volatile double number_ = 0;
};

}  // namespace

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

nlohmann::ordered_json measure_cases(const CommBenchOptions& options, World& world) {
  CommRank rank(world);
  nlohmann::ordered_json found;
  for (const auto& name : options.collectives) {
    for (const int64_t bytes : options.bytes()) {
      const int64_t count = bytes / 4 / world.size() * world.size();
      auto& into = found[name][std::to_string(bytes)];
      if (name == "all_reduce" || name == "bucket") rank.all_reduce(count, name == "bucket", into);
      if (name == "reduce_scatter") rank.reduce_scatter(count, into);
      if (name == "all_gather") rank.all_gather(count, into);
      if (name == "all_to_all") rank.all_to_all(count, into);
      if (name == "overlap") rank.overlap(count, into);
      if (name == "checking") rank.checking(count, into);
    }
  }
  return found;
}

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

Found measure_once(const CommBenchOptions& options, int ranks) {
  std::vector<std::string> names, plain, sizes, kib;
  for (const auto& name : options.collectives) {
    names.push_back(name);
    if (options.device == "cpu" && is_collective(name)) plain.push_back(name == "bucket" ? "all_reduce" : name);
  }
  std::sort(plain.begin(), plain.end());
  plain.erase(std::unique(plain.begin(), plain.end()), plain.end());
  for (const int64_t bytes : options.bytes()) sizes.push_back(std::to_string(bytes));
  for (const double one : options.kib) kib.push_back(fmt::format("{}", one));
  Found found;
  std::vector<std::string> words{fs::read_symlink("/proc/self/exe").string(),
                                 "bench",
                                 "comm",
                                 "--worker",
                                 "--ranks",
                                 std::to_string(ranks),
                                 "--transport",
                                 options.transport,
                                 "--case"};
  words.insert(words.end(), names.begin(), names.end());
  words.push_back("--kib");
  words.insert(words.end(), kib.begin(), kib.end());
  words.insert(words.end(), {"--device", options.device});
  found.ours = run_command(words);
  if (!plain.empty()) {
    found.gloo = run_command({options.python, TRIREME_SOURCE "/bench/torch_comm.py", "--ranks", std::to_string(ranks),
                              "--sizes", fmt::format("{}", fmt::join(sizes, ",")), "--collectives",
                              fmt::format("{}", fmt::join(plain, ","))});
  }
  return found;
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
  if (name == "overlap") {
    line.unit = "%";
    line.smaller_is_better = false;
    line.ours = values("ours_percent");
    line.peer = values("mpi_percent");
    line.peer_name = "MPI_Iallreduce";
    return line;
  }
  line.unit = "us";
  line.ours = values("ours_us");
  if (name == "checking") {
    line.peer = values("unchecked_us");
    line.peer_name = "without checking";
    return line;
  }
  if (options.device == "cuda") {
    line.peer = values("host_us");
    line.peer_name = "through the host";
    line.settings["gb_per_s"] = static_cast<double>(bytes) * 1e-3 / median(line.ours);
    return line;
  }
  const auto mpi = values("mpi_us");
  std::vector<double> gloo;
  for (const auto& one : found)
    gloo.push_back(one.gloo.at(name == "bucket" ? "all_reduce" : name).at(size).get<double>());
  line.peer = median(mpi) <= median(gloo) ? mpi : gloo;
  line.peer_name = median(mpi) <= median(gloo) ? "Open MPI" : "Gloo";
  line.settings["open_mpi_us"] = median(mpi);
  line.settings["gloo_us"] = median(gloo);
  if (name == "bucket") line.floor = median(values("floor_us"));
  return line;
}

}  // namespace

void run_comm_bench(const CommBenchOptions& asked, const std::function<void(const BenchLine&)>& each) {
  auto options = asked;
  options.check();
  if (options.device == "cpu" && ::access(options.python.c_str(), X_OK) != 0)
    refuse("--python {}: not found; the peer runs in the Python that holds torch", options.python);
  for (const int ranks : options.ranks) {
    std::vector<Found> found;
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      log::info("{} ranks: repeat {} of {}", ranks, repeat + 1, options.repeats);
      found.push_back(measure_once(options, ranks));
    }
    for (const auto& name : options.collectives) {
      for (const int64_t bytes : options.bytes()) each(line_of(options, ranks, name, bytes, found));
    }
  }
}

}  // namespace trireme
