// What the files that call MPI share: checked return codes, and waiting that leaves the core to others. Nothing else
// includes this file.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <atomic>
#include <memory>
#include <vector>

#include "trireme/comm/algorithms.h"
#include "trireme/comm/call.h"
#include "trireme/comm/mail.h"
#include "trireme/comm/mpi.h"
#include "trireme/comm/wire.h"

namespace trireme {

void check_mpi(int code, const char* what);

// The ranks of `comm` that are on this rank's host; to be freed.
MPI_Comm host_of(const MpiSession& session, MPI_Comm comm);
// What the first rank says, on all of them.
int first_says(int value, MPI_Comm comm);
std::string first_says(const std::string& text, MPI_Comm comm);

// Open MPI makes progress only inside its calls, and its own waits spin. Ours yields the core at once and then sleeps
// longer and longer, so that a rank that waits does not slow down one that computes.
class Patience {
 public:
  void wait();
  void reset() { round_ = 0; }

 private:
  std::atomic<int> round_{0};  // whoever sends resets it
};

// Whether all ranks of a communicator make the same call. Fingerprints have a fixed size, so that this exchange cannot
// go wrong whatever the ranks ask for.
class CallComparison {
 public:
  CallComparison(std::shared_ptr<MpiSession> session, MPI_Comm comm);
  void compare(const Call& call);  // throws, on all ranks alike, where they differ

 private:
  std::unique_ptr<Wire> wire_;
  WireCollectives collectives_;
  std::vector<Call> calls_;
};

// Each owns its communicator.
std::unique_ptr<Mail> make_mpi_mail(std::shared_ptr<MpiSession> session, MPI_Comm comm, const MailPeers& peers);
std::unique_ptr<Wire> make_mpi_wire(std::shared_ptr<MpiSession> session, MPI_Comm comm);
std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<MpiSession> session, MPI_Comm comm);
// What suits the ranks of the communicator: shared memory, MPI, or one inside hosts and the other between them.
std::unique_ptr<Transport> make_hosts_transport(std::shared_ptr<MpiSession> session, MPI_Comm comm);

}  // namespace trireme
