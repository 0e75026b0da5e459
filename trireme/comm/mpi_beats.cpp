#include <unistd.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/comm/mpi_calls.h"
#include "trireme/observe/board.h"

namespace trireme {

namespace {

constexpr int64_t second_ns = 1'000'000'000;

class MpiHostBeats final : public HostBeats {
 public:
  // Owns the communicator, of the first ranks of all hosts.
  MpiHostBeats(std::shared_ptr<MpiSession> session, MPI_Comm first_ranks)
      : session_(std::move(session)), comm_(first_ranks) {
    int rank = 0, size = 1;
    MPI_Comm_rank(comm_, &rank);
    MPI_Comm_size(comm_, &size);
    next_ = (rank + 1) % size;
    before_ = (rank + size - 1) % size;
    Host mine{session_->rank, session_->local_size, {}};
    ::gethostname(mine.name, sizeof mine.name - 1);
    std::vector<Host> all(static_cast<size_t>(size));
    check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm_), "MPI_Allgather");
    watched_ = all[static_cast<size_t>(before_)];
    check_mpi(MPI_Irecv(&heard_, 1, MPI_INT, before_, 0, comm_, &receive_), "MPI_Irecv");
  }

  ~MpiHostBeats() override {
    std::lock_guard lock(session_->mutex);
    MPI_Cancel(&receive_);
    MPI_Request_free(&receive_);
    if (send_ != MPI_REQUEST_NULL) MPI_Request_free(&send_);
    MPI_Comm_free(&comm_);
  }

  std::string beat(double limit_s) override {
    const int64_t now = monotonic_ns();
    // Who begins, or was stopped itself, has heard nothing before.
    if (limit_s == 0 || now - looked_ns_ > second_ns) heard_ns_ = now;
    looked_ns_ = now;
    // MPI may be busy, again and again for moments: then there will be another time.
    std::unique_lock lock(session_->mutex, std::defer_lock);
    for (int tries = 0; tries < 20 && !lock.try_lock(); ++tries) usleep(500);
    if (lock.owns_lock()) {
      listen(now);
      tell();
    }
    const double silent_s = static_cast<double>(now - heard_ns_) / second_ns;
    if (limit_s == 0 || silent_s <= limit_s) return {};
    const auto ranks = watched_.ranks == 1 ? fmt::format("rank {}", watched_.first)
                                           : fmt::format("rank {} and {} more", watched_.first, watched_.ranks - 1);
    return fmt::format("host {} ({}) has not been heard of for {}: it is down, or cut off from this host",
                       watched_.name, ranks, human_seconds(silent_s));
  }

 private:
  struct Host {
    int first, ranks;
    char name[120];
  };

  void listen(int64_t now) {
    while (true) {
      int done = 0;
      check_mpi(MPI_Test(&receive_, &done, MPI_STATUS_IGNORE), "a beat");
      if (!done) return;
      heard_ns_ = now;
      check_mpi(MPI_Irecv(&heard_, 1, MPI_INT, before_, 0, comm_, &receive_), "MPI_Irecv");
    }
  }

  void tell() {
    int done = 1;
    if (send_ != MPI_REQUEST_NULL) check_mpi(MPI_Test(&send_, &done, MPI_STATUS_IGNORE), "a beat");
    if (done) check_mpi(MPI_Isend(&told_, 1, MPI_INT, next_, 0, comm_, &send_), "MPI_Isend");
  }

  std::shared_ptr<MpiSession> session_;
  MPI_Comm comm_;
  Host watched_{};
  int next_ = 0, before_ = 0;
  int heard_ = 0, told_ = 0;
  MPI_Request receive_ = MPI_REQUEST_NULL, send_ = MPI_REQUEST_NULL;
  int64_t heard_ns_ = 0, looked_ns_ = 0;
};

}  // namespace

std::unique_ptr<HostBeats> make_host_beats(std::shared_ptr<MpiSession> session) {
  const bool first = session->local_rank == 0;
  MPI_Comm comm;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, first ? 0 : MPI_UNDEFINED, session->rank, &comm), "MPI_Comm_split");
  if (!first) return nullptr;
  int hosts = 1;
  MPI_Comm_size(comm, &hosts);
  if (hosts > 1) return std::make_unique<MpiHostBeats>(std::move(session), comm);
  MPI_Comm_free(&comm);
  return nullptr;
}

}  // namespace trireme
