// MPI: start-up, who sits on which host, and a transport whose messages cross hosts.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "trireme/comm/transport.h"
#include "trireme/spec/links.h"

namespace trireme {

bool mpi_built();

// MPI from MPI_Init to MPI_Finalize. Calls may come from any thread, one at a time: whoever holds the mutex.
class MpiSession {
 public:
  static std::shared_ptr<MpiSession> start();
  ~MpiSession();

  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  int pretended_ranks_per_host = 0;  // in tests: so many ranks in turn count as a host
  Links links;                       // by which algorithms are chosen
  std::mutex mutex;

  // The text that the first rank of this host gives, on all of its ranks.
  std::string share_on_host(const std::string& text);
};

// Seconds that a message of each of these lengths takes between two ranks, of one host or of two. Collective over all
// ranks; the first of the two gets the times, the others zeros. Empty where there is no such pair.
std::vector<double> time_messages(const std::shared_ptr<MpiSession>& session, bool inside_host,
                                  const std::vector<int64_t>& lengths);

// The first ranks of the hosts tell each other that their hosts are there, over the links that everything else uses:
// each tells the next host and listens for the one before.
class HostBeats {
 public:
  virtual ~HostBeats() = default;
  // Tells, and listens; never waits. Who has not been heard of for so long, in words; mostly empty. Without a limit it
  // only tells.
  virtual std::string beat(double limit_s) = 0;
};

// Collective over all ranks; null on all but the first of each host, and where there is only one host.
std::unique_ptr<HostBeats> make_host_beats(std::shared_ptr<MpiSession> session);

// MPI's messages between all ranks.
std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<MpiSession> session);
// Shared memory between ranks of a host, MPI's messages between hosts.
std::unique_ptr<Transport> make_hosts_transport(std::shared_ptr<MpiSession> session);

}  // namespace trireme
