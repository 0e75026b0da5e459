// Times messages between two ranks, for the model that algorithms are chosen by.
#include <algorithm>
#include <vector>

#include "trireme/base/statistics.h"
#include "trireme/comm/mpi_calls.h"

namespace trireme {

namespace {

// The ranks that a message is timed between, or two times -1.
std::pair<int, int> find_pair(const MpiSession& session, bool inside_host) {
  MPI_Comm host = host_of(session, MPI_COMM_WORLD);
  const int first = first_says(session.rank, host);
  MPI_Comm_free(&host);
  std::vector<int> firsts(static_cast<size_t>(session.size));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  for (int a = 0; a < session.size; ++a) {
    for (int b = a + 1; b < session.size; ++b) {
      if ((firsts[static_cast<size_t>(a)] == firsts[static_cast<size_t>(b)]) == inside_host) return {a, b};
    }
  }
  return {-1, -1};
}

}  // namespace

std::vector<double> time_messages(const std::shared_ptr<MpiSession>& session, bool inside_host,
                                  const std::vector<int64_t>& lengths) {
  const auto [one, other] = find_pair(*session, inside_host);
  if (one < 0) return {};
  MPI_Comm comm;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  const auto wire = make_mpi_wire(session, comm);
  std::vector<double> times(lengths.size(), 0);
  const int mine = session->rank, partner = mine == one ? other : one;
  if (mine != one && mine != other) return times;
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<std::byte> memory(static_cast<size_t>(lengths[i]));
    const int rounds = static_cast<int>(std::clamp<int64_t>((4 << 20) / lengths[i], 5, 200));
    const auto send = [&] { wire->finish(wire->send(partner, memory.data(), lengths[i])); };
    const auto receive = [&] { wire->finish(wire->receive(partner, memory.data(), lengths[i])); };
    std::vector<double> seconds;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const double begun = MPI_Wtime();
      for (int round = 0; round < rounds; ++round) {
        if (mine == one) send();
        receive();
        if (mine == other) send();
      }
      seconds.push_back((MPI_Wtime() - begun) / rounds / 2);
    }
    if (mine == one) times[i] = median(seconds);
  }
  return times;
}

}  // namespace trireme
