// Ranks under mpirun: the MPI transport against the same checks as the shared-memory one, the two together as on
// several hosts, and which transport is taken when nobody asks for one.
//
//   mpirun -np 3 test_mpi_transport [automatic|hosts]
#include <ATen/ATen.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>

#include "tests/comm/collective_checks.h"
#include "tests/comm/message_checks.h"
#include "trireme/comm/mpi.h"
#include "trireme/comm/world.h"

namespace trireme {
namespace {

void check_collectives(Communicator& communicator, Promise promise) {
  auto arena = communicator.allocate(8 << 20);
  for (auto dtype : reducible_types) {
    for (int64_t count : {0, 1, 7, 1000, 70'000, 1'000'003}) {
      if (count > 100'000 && dtype != at::kFloat && dtype != at::kBFloat16) continue;
      const Example example(dtype, count, communicator.size());
      check_all_reduce(communicator, example, at::empty({count}, dtype), promise);
      check_all_reduce(communicator, example,
                       arena.narrow(0, 64, count * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype), promise);
    }
  }
  for (int64_t count : {0, 7, 200'000}) {
    check_broadcast(communicator, at::kFloat, count, at::empty({count}));
    check_broadcast(communicator, at::kBool, count, at::empty({count}, at::kBool));
    check_all_gather(communicator, at::kHalf, count);
    check_all_gather(communicator, at::kLong, count);
    check_parts(communicator, at::kInt, count, at::empty({count}, at::kInt));
    check_parts(communicator, at::kFloat, count, at::empty({count}));
    check_all_to_all(communicator, at::kDouble, count);
  }
  const Group summing = communicator.split(0);
  for (const int64_t count : {0, 1, 5, 1000, 70'000}) check_sum_across(communicator, summing, count);
  check_random_mix(communicator, arena, 1000, 7);
}

// More calls than the queue holds, and their callbacks, in order.
void check_queue(Communicator& communicator) {
  std::vector<int> ended;
  auto tensor = at::ones({20});
  Communicator::Ticket last = 0;
  for (int i = 0; i < 1500; ++i) {
    last = communicator.all_reduce(tensor, ReduceOp::max, "queued", [&ended, i](std::exception_ptr error) {
      if (!error) ended.push_back(i);
    });
  }
  communicator.wait(last);
  for (int i = 0; i < 1500; ++i) {
    if (ended.at(static_cast<size_t>(i)) != i)
      fail("rank {}: callback {} came as number {}", communicator.rank(), ended[static_cast<size_t>(i)], i);
  }
}

// What a rank sends last comes whole, though the rank goes on at once and has another use for the memory.
void check_last_message(Communicator& communicator, Recorder& recorder) {
  const int rank = communicator.rank(), other = 1 - rank;
  auto mail = communicator.open_mail({rank == 0 ? std::vector<int>{1} : std::vector<int>{},
                                      rank == 1 ? std::vector<int>{0} : std::vector<int>{}, 1000});
  constexpr int64_t count = 4'000'000;
  if (rank == 0) {
    {
      Postbox postbox(std::move(mail), recorder, {});
      postbox.send(other, {}, at::arange(count, at::kLong));
    }
    const auto reused = at::full({count}, -1, at::kLong);
  } else if (rank == 1) {
    usleep(300'000);
    std::promise<at::Tensor> came;
    Postbox postbox(std::move(mail), recorder, {});
    postbox.listen(
        0, {}, [&](at::Tensor message) { came.set_value(std::move(message)); },
        [&](std::exception_ptr error) { came.set_exception(error); });
    if (!at::equal(came.get_future().get(), at::arange(count, at::kLong)))
      fail("the last message is not what was sent");
  }
  communicator.wait(communicator.barrier("the last message came"));
}

// Two ranks to a host, as far as they go.
void run_as_hosts() {
  const auto session = MpiSession::start();
  session->pretended_ranks_per_host = 2;
  Recorder recorder;
  Communicator communicator(make_hosts_transport(session), recorder);
  if (std::string(communicator.transport_name()) != "shared memory and mpi")
    fail("the transport is {}", communicator.transport_name());
  check_groups(communicator);
  check_messages(communicator, recorder, 0);
  check_collectives(communicator, Promise::rounding);
  check_queue(communicator);
  // The kind in which ranks call different collectives: here these go different ways.
  check_disagreement(communicator, disagreements().back());
}

void run(const std::string& wanted) {
  if (wanted == "hosts") return run_as_hosts();
  const auto around = look_around();
  if (around.launcher != Launcher::mpirun) refuse("start this with mpirun");
  const auto world = World::join(around, wanted == "mpi" ? TransportKind::mpi : TransportKind::automatic);
  auto& communicator = world->communicator();
  const std::string expected = wanted == "mpi" ? "mpi" : "shared";
  if (communicator.transport_name() != expected)
    fail("the transport is {}, not {}", communicator.transport_name(), expected);
  if (world->rank() != around.rank || world->local_rank() != around.local_rank || world->size() != around.size) {
    fail("rank {} of {} is {} of {} in its world", around.rank, around.size, world->rank(), world->size());
  }
  check_groups(communicator);
  check_messages(communicator, world->recorder(), 0);
  check_collectives(communicator, wanted == "mpi" ? Promise::rounding : Promise::bits);
  check_queue(communicator);
  if (wanted == "mpi") check_last_message(communicator, world->recorder());
  // Last, because nothing can be communicated after it. Each number of ranks tries another kind.
  const auto kinds = disagreements();
  check_disagreement(communicator, kinds[static_cast<size_t>(around.size) % kinds.size()]);
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  try {
    at::set_num_threads(1);
    trireme::run(argc > 1 ? argv[1] : "mpi");
    return 0;
  } catch (const std::exception& error) {
    // The message may not name the rank when MPI itself failed: mpirun's own variable does.
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    std::fprintf(stderr, "rank %s: FAILED: %s\n", rank ? rank : "?", error.what());
    std::fflush(stderr);
    _exit(1);  // MPI_Finalize would wait for ranks that have ended
  }
}
