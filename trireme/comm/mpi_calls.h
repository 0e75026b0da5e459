// What the files that call MPI share: checked return codes, and waiting that leaves the core to others. Nothing else
// includes this file.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <atomic>
#include <memory>

#include "trireme/comm/mail.h"
#include "trireme/comm/mpi.h"
#include "trireme/comm/wire.h"

namespace trireme {

void check_mpi(int code, const char* what);

// Open MPI makes progress only inside its calls, and its own waits spin. Ours yields the core at once and then sleeps
// longer and longer, so that a rank that waits does not slow down one that computes.
class Patience {
 public:
  void wait();
  void reset() { round_ = 0; }

 private:
  std::atomic<int> round_{0};  // whoever sends resets it
};

// Each owns its communicator.
std::unique_ptr<Mail> make_mpi_mail(std::shared_ptr<MpiSession> session, MPI_Comm comm, const MailPeers& peers);
std::unique_ptr<Wire> make_mpi_wire(std::shared_ptr<MpiSession> session, MPI_Comm comm);

}  // namespace trireme
