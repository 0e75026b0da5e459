// The world of a job: which rank this process is, who started it, and the communicator that joins the ranks.
#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "trireme/comm/communicator.h"
#include "trireme/comm/mpi.h"
#include "trireme/observe/board.h"
#include "trireme/observe/recorder.h"
#include "trireme/spec/config.h"

namespace trireme {

// Who started this process, by the marks that they leave in the environment.
enum class Launcher { nobody, trireme, mpirun, srun, torchrun };

struct Surroundings {
  Launcher launcher = Launcher::nobody;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  bool ours = false;  // our own launcher stands behind it and speaks for the job
  std::string job;    // what the marks say of the job: the same for all of its ranks

  std::string describe() const;  // "started by mpirun: rank 1 of 4"
};

// Reads the environment; refuses marks of two launchers that contradict each other.
Surroundings look_around();

// Among ranks that are threads: the error that the others' errors follow from.
struct FirstFailure {
  std::mutex mutex;
  std::exception_ptr error;
};

class World {
 public:
  // What a program of one's own begins with: joins the ranks that mpirun, srun or torchrun started, or is a world of
  // one, and gives each rank its share of the host's cores (unless OMP_NUM_THREADS says otherwise).
  static std::unique_ptr<World> start();
  // Joins the ranks that some launcher started, or is a world of one.
  // `links`: how fast they are, where that has been measured.
  static std::unique_ptr<World> join(const Surroundings& surroundings, TransportKind transport,
                                     const Links& links = {});
  // Runs `body` on `size` ranks that are threads of this process; rethrows the first error.
  static void run_threads(int size, const std::function<void(World&)>& body);

  ~World();

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  // This rank's card, which becomes the thread's current one, where the host has cards; otherwise the CPU.
  at::Device device() const;
  // This rank's part of the host's cores: less than one where ranks outnumber them; and how many threads keep it busy.
  double own_cores() const;
  int threads() const { return std::max(1, static_cast<int>(own_cores())); }
  bool ranks_are_threads() const { return failure_ != nullptr; }

  // What ends this rank: its peers wait for it no more. Processes report it, once for the whole job, and end with its
  // exit status; among threads run_threads() throws the first of such errors.
  void announce(const std::exception_ptr& error);

  // Rank 0's text, on every rank. Collective.
  std::string from_first(const std::string& text, const char* what);

  // Says who of the other hosts has been silent for so long, if anybody; to be asked again and again.
  std::string silent_hosts(double limit_s) { return beats_ ? beats_->beat(limit_s) : std::string(); }

  const std::shared_ptr<MpiSession>& mpi() const { return session_; }  // null where nothing needs it
  Communicator& communicator() { return *communicator_; }
  Recorder& recorder() { return *recorder_; }
  std::shared_ptr<Board> board() { return board_; }

 private:
  World() = default;
  void record(BoardSlot& slot);

  int local_rank_ = 0, local_size_ = 1;
  std::shared_ptr<FirstFailure> failure_;  // where ranks are threads: theirs together
  std::shared_ptr<MpiSession> session_;    // MPI, where it was started; ends last
  std::unique_ptr<HostBeats> beats_;
  std::shared_ptr<Board> board_;
  std::unique_ptr<Recorder> recorder_;
  std::optional<OwnerScope> here_;  // what the thread that joined allocates
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace trireme
