// Random calls of every collective on 1 to 9 ranks, against what the inputs of all ranks say must come out: through the
// communicator, among all ranks and in groups of them, many in flight; and by every algorithm that is made of messages.
// All of it follows from one seed, which a failure names together with the call:
//
//   TRIREME_SEED=17 build/release/tests/test_comm --gtest_filter='*Property*'
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <optional>

#include "tests/comm/collective_checks.h"
#include "tests/comm/thread_wire.h"
#include "tests/support/child.h"
#include "trireme/base/random.h"
#include "trireme/comm/shared_transport.h"
#include "trireme/comm/world.h"
#include "trireme/observe/board.h"

namespace trireme {
namespace {

constexpr int64_t most_bytes = 1 << 20;   // that a rank gives, or takes
constexpr int64_t arena_bytes = 4 << 20;  // from allocate(), of each rank
constexpr Collective collectives[] = {Collective::all_reduce, Collective::broadcast,      Collective::all_gather,
                                      Collective::reduce,     Collective::reduce_scatter, Collective::gather_parts,
                                      Collective::all_to_all, Collective::barrier};

uint64_t chosen_seed() {
  const auto text = given("TRIREME_SEED");
  uint64_t seed = 1;
  if (text.empty()) return seed;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (problem != std::errc() || *end != '\0') refuse("TRIREME_SEED must be a whole number, not \"{}\"", text);
  return seed;
}

// None, one, a prime, anything, and as many as lie about a size at which the way changes: 32 and 64 KiB, pieces of 128
// and 256, of one rank or of all together.
int64_t random_count(Draw& draw, int ranks, int64_t element) {
  constexpr int64_t primes[] = {2, 3, 5, 7, 13, 31, 61, 127, 251, 509, 1021, 4093, 16'381};
  const int64_t bytes = (int64_t{32} << 10) << draw.from(0, 3);
  switch (draw.from(0, 5)) {
    case 0: return draw.from(0, 1);
    case 1: return primes[draw.from(0, std::size(primes) - 1)];
    case 2: return std::max<int64_t>(0, bytes / (draw.from(0, 1) == 0 ? 1 : ranks) / element + draw.from(-2, 2));
    case 3: return draw.from(0, most_bytes / element) / draw.from(1, 4);
    default: return draw.from(0, 3000);
  }
}

template <class Work>
void naming(const std::string& what, const Work& work) {
  try {
    work();
  } catch (Error& error) {
    throw error.add_context(what);
  }
}

// One call, the same on all ranks that make it; what each gives and what each must end with.
struct RandomCall {
  RandomCall(Draw& draw, int ranks) : ranks(ranks) {
    collective = collectives[draw.from(0, std::size(collectives) - 1)];
    op = reduce_ops[draw.from(0, std::size(reduce_ops) - 1)];
    dtype = reducible_types[draw.from(0, std::size(reducible_types) - 1)];
    root = static_cast<int>(draw.from(0, ranks - 1));
    even = draw.from(0, 1) == 0;
    in_place = collective == Collective::all_gather && draw.from(0, 1) == 0;
    const auto element = static_cast<int64_t>(c10::elementSize(dtype)), salt = draw.from(0, 1'000'000);
    if (collective != Collective::barrier) count = random_count(draw, ranks, element);
    if (has_output() && bytes() * ranks > most_bytes) count /= ranks;
    parts = even ? even_parts(count, ranks, element) : random_parts(count, ranks, draw.generator);
    for (int from = 0; from < ranks && collective == Collective::all_to_all; ++from) {
      auto& row = pairs.emplace_back(1, 0);
      for (int to = 0; to < ranks; ++to)
        row.push_back(row.back() + (even ? count : draw.from(0, 2) == 0 ? 0 : draw.from(0, count)));
    }
    const auto any = [&] { return "oeg"[draw.from(0, 2)]; };
    const char same = draw.from(0, 2) == 0 ? '\0' : any();
    for (int rank = 0; rank < ranks; ++rank) {
      memory += same != '\0' ? same : any();
      inputs.push_back(small_integers(rank, salt, dtype, pairs.empty() ? count : of(rank, pairs).back()));
    }
    expect();
  }

  int64_t bytes() const { return count * static_cast<int64_t>(c10::elementSize(dtype)); }
  bool has_output() const { return collective == Collective::all_gather || collective == Collective::all_to_all; }

  // The plain definitions, by rank. Where a rank's tensor is of no use afterwards, none of it is expected.
  void expect() {
    const bool reduces = collective == Collective::all_reduce || collective == Collective::reduce ||
                         collective == Collective::reduce_scatter;
    const auto whole = reduces                                ? reduced(inputs, op)
                       : collective == Collective::all_gather ? at::cat(inputs)
                                                              : of(root, inputs);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<at::Tensor> taken;  // part by part
      for (int from = 0; from < ranks; ++from) {
        if (collective == Collective::all_to_all) taken.push_back(part(of(from, inputs), of(from, pairs), rank));
        if (collective == Collective::gather_parts) taken.push_back(part(of(from, inputs), parts, from));
      }
      expected.push_back(taken.empty() ? useful(rank, whole) : at::cat(taken));
    }
  }

  // What of a rank's result is promised.
  at::Tensor useful(int rank, const at::Tensor& result) const {
    if (collective == Collective::reduce && rank != root) return result.slice(0, 0, 0);
    return collective == Collective::reduce_scatter ? part(result, parts, rank) : result;
  }

  Offsets taken_by(int rank) const {
    Offsets take{0};
    for (const auto& row : pairs) take.push_back(take.back() + of(rank + 1, row) - of(rank, row));
    return take;
  }

  Communicator::Ticket start(Communicator& to, Group group, const at::Tensor& tensor, const at::Tensor& output) const {
    switch (collective) {
      case Collective::all_reduce: return to.all_reduce(tensor, op, "random", {}, group);
      case Collective::broadcast: return to.broadcast(tensor, root, "random", {}, group);
      case Collective::all_gather: return to.all_gather(tensor, output, "random", {}, group);
      case Collective::reduce: return to.reduce(tensor, op, root, "random", {}, group);
      case Collective::reduce_scatter:
        return to.reduce_scatter(tensor, op, "random", {}, group, even ? Offsets{} : parts);
      case Collective::gather_parts: return to.gather_parts(tensor, "random", {}, group, even ? Offsets{} : parts);
      case Collective::all_to_all:
        if (even) return to.all_to_all(tensor, output, "random", {}, group);
        return to.all_to_all(tensor, output, "random", {}, group, of(to.rank(group), pairs), taken_by(to.rank(group)));
      default: return to.barrier("random", {}, group);
    }
  }

  // The same on a wire, which leaves it to the caller to put what is gathered in its place.
  void carry_out(WireCollectives& on, int rank, Algorithm algorithm, const at::Tensor& tensor,
                 const at::Tensor& output) const {
    const auto in_bytes = [&](Offsets offsets) {
      for (auto& offset : offsets) offset *= static_cast<int64_t>(tensor.element_size());
      return offsets;
    };
    switch (collective) {
      case Collective::all_reduce: return on.all_reduce(algorithm, operand_of(tensor, op));
      case Collective::broadcast: return on.broadcast(bytes_of(tensor), bytes(), root);
      case Collective::all_gather:
        output.narrow(0, rank * count, count).copy_(tensor);
        if (even) return on.all_gather_small(bytes_of(output), bytes());
        return on.all_gather(bytes_of(output), even_offsets(bytes() * ranks, ranks));
      case Collective::reduce: return on.reduce(operand_of(tensor, op), root);
      case Collective::reduce_scatter: return on.reduce_scatter(operand_of(tensor, op), parts);
      case Collective::gather_parts: return on.all_gather(bytes_of(tensor), in_bytes(parts));
      case Collective::all_to_all:
        return on.all_to_all(bytes_of(tensor), in_bytes(of(rank, pairs)), bytes_of(output), in_bytes(taken_by(rank)));
      default: return;
    }
  }

  std::string describe() const {
    Call call{.count = count, .collective = collective, .op = op, .dtype = dtype, .root = static_cast<int16_t>(root)};
    auto text = call.describe();  // operation 0: broadcast(from rank 1, Float, 10 elements) ""
    text = fmt::format("{} among {} ranks", text.substr(13, text.size() - 13 - 3), ranks);
    if (collective == Collective::reduce_scatter || collective == Collective::gather_parts)
      text += fmt::format(", parts {}", parts);
    if (!pairs.empty()) text += fmt::format(", each gives parts {}", pairs);
    return text + fmt::format("{}{}, memory {} (ordinary, everybody's, the group's)", even ? ", even" : "",
                              in_place ? ", in place" : "", memory);
  }

  int ranks, root = 0;
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  at::ScalarType dtype = at::kFloat;
  bool even = false, in_place = false;
  int64_t count = 0;
  Offsets parts;
  std::vector<Offsets> pairs;  // all_to_all: the parts that each rank gives
  std::string memory;          // of each rank: ordinary, or from allocate() of everybody or of the group
  std::vector<at::Tensor> inputs, expected;
};

// A tensor somewhere in the given bytes, or in memory of its own, that notices when somebody writes beside it.
class Guarded {
 public:
  Guarded(at::Tensor& arena, at::ScalarType dtype, int64_t count, Draw& draw) {
    const auto bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
    before_ = 8 * draw.from(1, 40);
    const int64_t all = (before_ + bytes + 2 * 64) / 64 * 64;
    const bool fits = all <= arena.numel();
    bytes_ = fits ? arena.narrow(0, 0, all) : at::empty({all}, at::kByte);
    if (fits) arena = arena.slice(0, all);
    bytes_.fill_(mark);
    tensor = bytes_.narrow(0, before_, bytes).view(dtype);
  }

  void check() const {
    const auto* bytes = bytes_.const_data_ptr<uint8_t>();
    for (int64_t i = 0; i < bytes_.numel(); ++i) {
      if (i == before_) i += static_cast<int64_t>(tensor.nbytes());
      if (bytes[i] != mark) fail("byte {} of the tensor's memory was written, which is beside it", i - before_);
    }
  }

  at::Tensor tensor;

 private:
  static constexpr uint8_t mark = 0xa5;
  at::Tensor bytes_;
  int64_t before_ = 0;
};

// What a rank needs for one call, filled in, and the comparison afterwards.
struct Prepared {
  Prepared(const RandomCall& call, int rank, at::Tensor& arena, Draw& draw)
      : call(call), rank(rank), input(arena, call.dtype, of(rank, call.inputs).numel(), draw) {
    tensor = result = input.tensor;
    if (call.has_output()) {
      output.emplace(arena, call.dtype, of(rank, call.expected).numel(), draw);
      result = output->tensor;
      if (call.in_place) tensor = result.narrow(0, rank * call.count, call.count);
    }
    tensor.copy_(of(rank, call.inputs));
  }

  void check() const {
    expect_equal(rank, call.useful(rank, result), of(rank, call.expected), "the result");
    if (call.has_output()) expect_equal(rank, tensor, of(rank, call.inputs), "what was given");
    input.check();
    if (output) output->check();
  }

  const RandomCall& call;
  int rank;
  Guarded input;
  std::optional<Guarded> output;
  at::Tensor tensor, result;
};

// Calls that ranks make in this order: all of them together, or each group one of its own.
struct Round {
  struct Step {
    std::optional<RandomCall> together;
    std::map<int, RandomCall> apart;  // by color
  };

  Round(int ranks, int number) : what(fmt::format("TRIREME_SEED={}, round {}", chosen_seed(), number)) {
    seed = Key{}.with(chosen_seed()).with(static_cast<uint64_t>(ranks)).with(static_cast<uint64_t>(number));
    Draw draw(seed.value);
    const auto last_color = draw.from(0, 3);
    for (int rank = 0; rank < ranks; ++rank) colors.push_back(static_cast<int>(draw.from(-1, last_color)));
    what += fmt::format(" of colors {}", colors);
    for (int k = 0; k < 30; ++k) {
      auto& step = steps.emplace_back();
      if (draw.from(0, 1) == 0) {
        step.together.emplace(draw, ranks);
        continue;
      }
      for (int color = 0; color <= last_color; ++color) {
        const auto members = std::count(colors.begin(), colors.end(), color);
        if (members > 0) step.apart.try_emplace(color, draw, static_cast<int>(members));
      }
    }
  }

  std::string what;
  Key seed;
  std::vector<int> colors;  // by rank; a negative one joins no group
  std::vector<Step> steps;
};

// Carries out one rank's part. How many calls it has in flight, and how it ends them, is each rank's own affair.
void check_round(Communicator& communicator, const Round& round, const at::Tensor& arena) {
  struct Pending {
    Communicator::Ticket ticket;
    std::string what;
    std::unique_ptr<Prepared> prepared;
  };
  const int me = communicator.rank(), color = of(me, round.colors);
  const Group group = communicator.split(color);
  const auto before = std::count(round.colors.begin(), round.colors.begin() + me, color);  // ranks of the same color
  if ((group == nobody) != (color < 0) || (group != nobody && communicator.rank(group) != before))
    fail("{}: rank {} is not where it belongs in its group", round.what, me);
  at::Tensor arena_of_group = at::empty({0}, at::kByte);
  if (group != nobody) arena_of_group = communicator.allocate(arena_bytes / 4, group);
  Draw alone(round.seed.with(static_cast<uint64_t>(me)).value);
  std::deque<Pending> pending;
  std::map<char, at::Tensor> free_places;  // by kind of memory
  const auto settle = [&](size_t leave) {
    for (; pending.size() > leave; pending.pop_front()) {
      naming(pending.front().what, [&] {
        communicator.wait(pending.front().ticket);
        pending.front().prepared->check();
      });
    }
    if (pending.empty()) free_places = {{'o', at::empty({0}, at::kByte)}, {'e', arena}, {'g', arena_of_group}};
  };
  settle(0);
  for (size_t k = 0; k < round.steps.size(); ++k) {
    const auto& step = round.steps[k];
    if (!step.together && group == nobody) continue;
    const auto& call = step.together ? *step.together : step.apart.at(color);
    const Group where = step.together ? everybody : group;
    const int rank = communicator.rank(where);
    auto what = fmt::format("{}, call {} of {}: {}", round.what, k,
                            step.together ? "everybody" : fmt::format("color {}", color), call.describe());
    if (communicator.size(where) != call.ranks) fail("{}: but there are {}", what, communicator.size(where));
    auto& memory = free_places[call.memory[static_cast<size_t>(rank)]];
    auto prepared = std::make_unique<Prepared>(call, rank, memory, alone);
    const auto start = [&] { return call.start(communicator, where, prepared->tensor, prepared->result); };
    Communicator::Ticket ticket = 0;
    naming(what, [&] {
      if (alone.from(0, 7) == 0) return communicator.now(start);
      ticket = start();
    });
    pending.push_back({ticket, std::move(what), std::move(prepared)});
    const auto choice = alone.from(0, 9);
    if (choice == 0) settle(0);
    if (choice == 1) settle(pending.size() / 2);
    if (choice == 2) communicator.help(true);
  }
  settle(0);
}

struct CollectivesProperty : testing::TestWithParam<int> {
  static void SetUpTestSuite() { fmt::print("TRIREME_SEED={}\n", chosen_seed()); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesProperty, testing::Range(1, 10), testing::PrintToStringParamName());

TEST_P(CollectivesProperty, WhatComesOutFollowsFromWhatAllGave) {
  for (int number = 0; number < 25; ++number) {
    const Round round(GetParam(), number);
    World::run_threads(GetParam(), [&](World& world) {
      check_round(world.communicator(), round, world.communicator().allocate(arena_bytes + 4096 * world.rank()));
    });
  }
}

TEST_P(CollectivesProperty, EveryAlgorithmOnAWireDoesTheSame) {
  const int ranks = GetParam();
  Draw draw(Key{}.with(chosen_seed()).with("wire").with(static_cast<uint64_t>(ranks)).value);
  for (int number = 0; number < 100; ++number) {
    std::vector<RandomCall> calls;
    int64_t longest = 0;
    for (int k = 0; k < 2; ++k) longest = std::max(longest, calls.emplace_back(draw, ranks).bytes());
    const int64_t piece = longest / draw.from(1, 100) + draw.from(1, 20);  // many pieces, down to single elements
    ThreadWires wires(ranks);
    on_ranks(wires, ranks, [&](Wire& wire) {
      WireCollectives on(wire, piece);
      Draw alone(static_cast<uint64_t>(number * ranks + wire.rank()));
      for (const auto& call : calls) {
        for (const auto algorithm : algorithms) {
          if (call.collective != Collective::all_reduce && algorithm != algorithms[0]) continue;
          const auto what = fmt::format("TRIREME_SEED={}, round {}, by {} in pieces of {} bytes: {}", chosen_seed(),
                                        number, name(algorithm), piece, call.describe());
          naming(what, [&] {
            auto nowhere = at::empty({0}, at::kByte);
            const Prepared prepared(call, wire.rank(), nowhere, alone);
            call.carry_out(on, wire.rank(), algorithm, prepared.tensor, prepared.result);
            prepared.check();
          });
        }
      }
    });
  }
}

// Only processes have memory that their peers cannot reach, and the kernel to read it.
const Role random_calls("random calls", [] {
  const int rank = std::stoi(given("RANK")), size = std::stoi(given("SIZE"));
  Recorder recorder;
  const auto board = Board::open(SegmentName::parse(given("BOARD"), "BOARD"));
  Communicator communicator(make_shared_transport(meet_processes(*board, rank, 60), rank), recorder);
  const auto arena = communicator.allocate(arena_bytes + 4096 * rank);
  for (int number = 0; number < 12; ++number) {
    const Round round(size, number);
    communicator.try_with({.reading = number % 2 == 0});
    check_round(communicator, round, arena);
  }
  return 0;
});

TEST(CollectivesPropertyOfProcesses, WhatComesOutFollowsFromWhatAllGave) {
  fmt::print("TRIREME_SEED={}\n", chosen_seed());
  for (const int size : {3, 5}) {
    const auto board = Board::create(size);
    std::deque<Child> ranks;
    for (int rank = 0; rank < size; ++rank) {
      const auto number = std::to_string(rank), count = std::to_string(size);
      ranks.emplace_back("random calls",
                         Child::Environment{{"BOARD", board->name().text()}, {"RANK", number}, {"SIZE", count}});
    }
    for (auto& rank : ranks) EXPECT_EQ(rank.wait(60), 0) << rank.errors();
  }
}

}  // namespace
}  // namespace trireme
