#include "trireme/bench/comm_rank.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/comm/mpi_peer.h"
#include "trireme/comm/reduction.h"
#include "trireme/bench/rank.h"

namespace trireme {

namespace {

// The ranks' side of the benchmark: every measurement is checked, then timed.
class CommRank {
 public:
  explicit CommRank(World& world) : world_(world), communicator_(world.communicator()), timer_(world) {}

  // A tensor of this rank's number + 1, in memory of its own or shared.
  at::Tensor filled(int64_t count, bool shared) { return empty(count, shared).fill_(world_.rank() + 1.0); }

  void all_reduce(int64_t count, bool shared, nlohmann::ordered_json& into) {
    const double sum = world_.size() * (world_.size() + 1) / 2;
    const auto tensor = filled(count, shared);
    const auto ours = [&] { now([&] { return communicator_.all_reduce(tensor, ReduceOp::sum, "bench"); }); };
    ours();
    expect(tensor, sum, "all_reduce");
    tensor.fill_(0);  // sums of sums would soon be infinite, which some processors add up slowly
    const auto peer = [&](bool in_shared) -> std::function<void()> {
      const auto other = filled(count, in_shared);
      MpiPeer::all_reduce(other.mutable_data_ptr<float>(), count);
      expect(other, sum, "MPI_Allreduce");
      other.fill_(0);
      return [other, count] { MpiPeer::all_reduce(other.mutable_data_ptr<float>(), count); };
    };
    time(ours, peer, into, shared ? bare_pass(count) : nullptr);
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
    const double sum = static_cast<double>(ranks * (ranks + 1) / 2);
    const auto tensor = filled(count, false);
    const auto parts = even_offsets(count, world_.size());
    const auto ours = [&] {
      now([&] { return communicator_.reduce_scatter(tensor, ReduceOp::sum, "bench", {}, everybody, parts); });
    };
    ours();
    expect(tensor.narrow(0, begin, part), sum, "reduce_scatter");
    tensor.fill_(0);
    const auto peer = [&](bool in_shared) -> std::function<void()> {
      const auto other = filled(count, in_shared), taken = empty(part, in_shared);
      const auto call = [other, taken, part] {
        MpiPeer::reduce_scatter(other.const_data_ptr<float>(), taken.mutable_data_ptr<float>(), part);
      };
      call();
      expect(taken, sum, "MPI_Reduce_scatter_block");
      other.fill_(0);
      return call;
    };
    time(ours, peer, into);
  }

  void all_gather(int64_t count, nlohmann::ordered_json& into) {
    const int64_t part = count / world_.size();
    const auto given = filled(part, false), taken = empty(count, false);
    const auto ours = [&] { now([&] { return communicator_.all_gather(given, taken, "bench"); }); };
    ours();
    const auto peer = [&](bool in_shared) -> std::function<void()> {
      const auto theirs = filled(part, in_shared), other = empty(count, in_shared);
      const auto call = [theirs, other, part] {
        MpiPeer::all_gather(theirs.const_data_ptr<float>(), other.mutable_data_ptr<float>(), part);
      };
      call();
      if (!at::equal(taken, other)) fail("all_gather differs from MPI_Allgather");
      return call;
    };
    time(ours, peer, into);
  }

  void all_to_all(int64_t count, nlohmann::ordered_json& into) {
    const int64_t part = count / world_.size();
    const auto given = at::arange(count, at::kFloat) + 1000 * world_.rank(), taken = empty(count, false);
    const auto ours = [&] { now([&] { return communicator_.all_to_all(given, taken, "bench"); }); };
    ours();
    const auto peer = [&](bool in_shared) -> std::function<void()> {
      const auto theirs = empty(count, in_shared).copy_(given), other = empty(count, in_shared);
      const auto call = [theirs, other, part] {
        MpiPeer::all_to_all(theirs.const_data_ptr<float>(), other.mutable_data_ptr<float>(), part);
      };
      call();
      if (!at::equal(taken, other)) fail("all_to_all differs from MPI_Alltoall");
      return call;
    };
    time(ours, peer, into);
  }

  // The share of an all-reduce that a computation of the same length hides, by OSU's formula. MPI moves data only in
  // its own calls: its computation is cut into pieces with MPI_Test between them, as many as hide most, or none.
  void overlap(int64_t count, nlohmann::ordered_json& into) {
    const auto tensor = filled(count, true), other = filled(count, true);
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
    into = {{"ours_percent", 100 * mine}};
    for (const int pieces : overlap_pieces) {
      const double peer = hidden(theirs, [&](const auto&) {
        MpiPeer::all_reduce_beside(data, count, [&] {
          for (int piece = 0; piece < pieces; ++piece) {
            if (piece > 0) MpiPeer::progress();
            compute(theirs / pieces);
          }
        });
      });
      into["mpi_percent"].push_back(100 * peer);
    }
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
  at::Tensor empty(int64_t count, bool shared) {
    return shared ? communicator_.allocate(count * 4).view(at::kFloat) : at::empty({count}, at::kFloat);
  }

  // Ours beside MPI's on ordinary and on shared memory, and beside a floor where there is one.
  void time(const std::function<void()>& ours, const std::function<std::function<void()>(bool in_shared)>& peer,
            nlohmann::ordered_json& into, const std::function<void()>& floor = nullptr) {
    std::vector<std::function<void()>> sides{ours, peer(false), peer(true)};
    if (floor) sides.push_back(floor);
    const auto seconds = timer_.times(sides);
    into = {{"ours_us", seconds[0] * 1e6}, {"mpi_us", seconds[1] * 1e6}, {"mpi_shared_us", seconds[2] * 1e6}};
    if (floor) into["floor_us"] = seconds[3] * 1e6;
  }

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

nlohmann::ordered_json measure_cases(const CommBenchOptions& options, World& world) {
  CommRank rank(world);
  nlohmann::ordered_json found;
  found["mpi"] = MpiPeer::describe();
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

}  // namespace trireme
