// Takes the place of mpi_transport.cpp where there is no MPI.
#include "trireme/base/error.h"
#include "trireme/comm/mpi.h"
#include "trireme/comm/mpi_peer.h"

namespace trireme {

bool mpi_built() { return false; }

std::shared_ptr<MpiSession> MpiSession::start() {
  refuse(
      "this build has no MPI: install libopenmpi-dev and openmpi-bin and build again, or start the ranks without "
      "mpirun");
}
MpiSession::~MpiSession() = default;
std::string MpiSession::share_on_host(const std::string& text) { return text; }

std::vector<double> time_messages(const std::shared_ptr<MpiSession>&, bool, const std::vector<int64_t>&) { return {}; }
std::unique_ptr<HostBeats> make_host_beats(std::shared_ptr<MpiSession>) { return nullptr; }
std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<MpiSession>) { return nullptr; }
std::unique_ptr<Transport> make_hosts_transport(std::shared_ptr<MpiSession>) { return nullptr; }

// Nobody comes here without a session.
void MpiPeer::all_reduce(float*, int64_t) {}
void MpiPeer::reduce_scatter(const float*, float*, int64_t) {}
void MpiPeer::all_gather(const float*, float*, int64_t) {}
void MpiPeer::all_to_all(const float*, float*, int64_t) {}
void MpiPeer::barrier() {}
void MpiPeer::start_all_reduce(float*, int64_t) {}
void MpiPeer::finish_all_reduce() {}
void MpiPeer::progress() {}
std::string MpiPeer::describe() { return ""; }

}  // namespace trireme
