// Takes the place of mpi_transport.cpp where there is no MPI.
#include "trireme/base/error.h"
#include "trireme/comm/mpi.h"

namespace trireme {

bool mpi_built() { return false; }

std::shared_ptr<MpiSession> MpiSession::start() {
  refuse(
      "this build has no MPI: install libopenmpi-dev and openmpi-bin and build again, or start the ranks without "
      "mpirun");
}
MpiSession::~MpiSession() = default;
std::string MpiSession::share_on_host(const std::string& text) { return text; }

std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<MpiSession>) { return nullptr; }

}  // namespace trireme
