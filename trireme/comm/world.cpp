#include "trireme/comm/world.h"

#include <unistd.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/random.h"
#include "trireme/comm/cores.h"
#include "trireme/comm/fault.h"
#include "trireme/comm/nccl.h"
#include "trireme/comm/shared_transport.h"
#include "trireme/device/device.h"
#include "trireme/memory/counter.h"

namespace trireme {

namespace {

const char* name(Launcher launcher) {
  switch (launcher) {
    case Launcher::nobody: return "nobody";
    case Launcher::trireme: return "trireme";
    case Launcher::mpirun: return "mpirun";
    case Launcher::srun: return "srun";
    case Launcher::torchrun: return "torchrun";
  }
  return "?";
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int number(const char* name, int otherwise) {
  const auto text = environment(name);
  if (text.empty()) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end != '\0' || value < 0) refuse("the environment variable {} is {}, which is no rank number", name, text);
  return static_cast<int>(value);
}

// A launcher's marks: the environment variables by which it says who this process is.
struct Marks {
  const char *who, *rank, *size, *local_rank, *local_size;
};

constexpr Marks our_marks{"trireme", "TRIREME_RANK", "TRIREME_RANKS", nullptr, nullptr};
constexpr Marks mpirun_marks{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Marks torchrun_marks{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

// All of a launcher's marks or an error: a process that guessed who it is would train a model of its own.
void read_marks(const Marks& marks, Surroundings& found) {
  const auto required = [&](const char* name) {
    if (environment(name).empty())
      refuse("{} started this process, but the environment variable {} is missing", marks.who, name);
    return number(name, 0);
  };
  const auto place = [&](const char* rank_name, const char* size_name, int& rank, int& size) {
    rank = required(rank_name);
    size = required(size_name);
    if (rank >= size) refuse("{} = {} must be below {} = {}", rank_name, rank, size_name, size);
  };
  place(marks.rank, marks.size, found.rank, found.size);
  found.local_rank = found.rank;
  found.local_size = found.size;
  if (marks.local_rank) place(marks.local_rank, marks.local_size, found.local_rank, found.local_size);
}

// Marks of a launcher that is not among ours, or was not there as a whole: as many processes as it names would each
// train the whole model.
void refuse_partial_marks() {
  const auto what = [](const std::string& marks) {
    refuse(
        "{}: this process seems to be one of several, and no launcher that is known here has started it. Start with "
        "trireme train --ranks N, mpirun, srun or torchrun, or unset these environment variables",
        marks);
  };
  for (const char* size : {"PMI_SIZE", "MV2_COMM_WORLD_SIZE", "WORLD_SIZE"}) {
    if (number(size, 1) > 1) what(fmt::format("{} = {}", size, environment(size)));
  }
  const bool alone = environment("WORLD_SIZE") == "1";
  for (const char* rank : {"RANK", "LOCAL_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"}) {
    const auto value = environment(rank);
    const bool first = value == "0" && (alone || environment("PMI_SIZE") == "1");
    if (!value.empty() && !first) what(fmt::format("{} = {}", rank, value));
  }
}

// A world of one: nothing to carry.
class LonelyTransport final : public Transport {
 public:
  const char* name() const override { return "none"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void carry_out(const Call&, const Arguments& arguments) override {
    if (arguments.output.defined()) arguments.output.copy_(arguments.tensor.view_as(arguments.output));
  }
  at::Tensor allocate(const Call&, int64_t bytes, at::Device device) override {
    return at::zeros({bytes}, at::TensorOptions().device(device).dtype(at::kByte));
  }
  std::unique_ptr<Transport> split(const Call&, int color) override {
    return color < 0 ? nullptr : std::make_unique<LonelyTransport>();
  }
  std::unique_ptr<Mail> open_mail(const Call&, const MailPeers&) override { return nullptr; }
};

}  // namespace

std::string Surroundings::describe() const {
  if (launcher == Launcher::nobody) return "started alone";
  return fmt::format("started by {}: rank {} of {}", name(launcher), rank, size);
}

Surroundings look_around() {
  Surroundings found;
  found.ours = !environment("TRIREME_BOARD").empty();
  if (!environment("TRIREME_RANK").empty()) {
    found.launcher = Launcher::trireme;
    read_marks(our_marks, found);
    found.job = environment("TRIREME_BOARD");
    return found;
  }
  const bool mpirun = !environment("OMPI_COMM_WORLD_SIZE").empty();
  const bool torchrun = !environment("TORCHELASTIC_RUN_ID").empty();
  if (mpirun && torchrun && number("OMPI_COMM_WORLD_SIZE", 1) != number("WORLD_SIZE", 1)) {
    refuse("mpirun says that there are {} ranks and torchrun says {}: start with one of them",
           environment("OMPI_COMM_WORLD_SIZE"), environment("WORLD_SIZE"));
  }
  if (mpirun) {
    found.launcher = Launcher::mpirun;
    read_marks(mpirun_marks, found);
  } else if (!environment("SLURM_STEP_ID").empty() && number("SLURM_STEP_NUM_TASKS", number("SLURM_NTASKS", 1)) > 1) {
    found.launcher = Launcher::srun;
    found.size = number("SLURM_STEP_NUM_TASKS", number("SLURM_NTASKS", 1));
    for (const char* name : {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID"}) {
      if (environment(name).empty())
        refuse("srun started this process, but the environment variable {} is missing", name);
    }
    found.rank = number("SLURM_PROCID", 0);
    if (found.rank >= found.size) refuse("SLURM_PROCID = {}, but the step has {} tasks", found.rank, found.size);
    found.local_rank = number("SLURM_LOCALID", 0);
    // "4(x2),3" tasks on each node; all nodes of a step together hold `size` of them.
    found.local_size = number("SLURM_STEP_NUM_NODES", number("SLURM_NNODES", 1)) == 1 ? found.size : 0;
    found.job = fmt::format("slurm-{}-{}", environment("SLURM_JOB_ID"), environment("SLURM_STEP_ID"));
  } else if (torchrun) {
    found.launcher = Launcher::torchrun;
    read_marks(torchrun_marks, found);
    found.job = fmt::format("torchrun-{}-{}-{}", environment("TORCHELASTIC_RUN_ID"), environment("MASTER_PORT"),
                            environment("TORCHELASTIC_RESTART_COUNT"));
  } else {
    refuse_partial_marks();
  }
  return found;
}

namespace {

// What this start cannot give: said before anybody waits for anybody.
void refuse_impossible(const Surroundings& around, bool wants_mpi) {
  if (!wants_mpi) return;
  const bool one_host = around.local_size == around.size;
  if (around.launcher == Launcher::torchrun) {
    refuse("torchrun starts ranks without MPI, which {} needs: start with mpirun or srun instead",
           one_host ? "comm.transport=mpi" : "a job on several hosts");
  }
  if (around.launcher == Launcher::srun && environment("PMIX_NAMESPACE").empty() && environment("PMI_RANK").empty()) {
    refuse("srun started these ranks without MPI: start them with srun --mpi=pmix (or pmi2), or with mpirun");
  }
}

std::shared_ptr<MpiSession> start_mpi(const Surroundings& around) {
  auto session = MpiSession::start();
  if (session->size != around.size) {
    refuse("{} started {} ranks, but MPI sees {}: {}", name(around.launcher), around.size, session->size,
           around.launcher == Launcher::srun ? "start with srun --mpi=pmix (or pmi2), or with mpirun"
                                             : "the program and mpirun come from different MPI libraries");
  }
  return session;
}

// By what the ranks of a job find each other on a host where nobody could tell them a name. Jobs of two containers may
// have the same: so it is a matter of the namespaces too.
uint64_t job_number(const Surroundings& around) {
  return Key{}.with(around.job).with(own_namespace("pid")).with(own_namespace("net")).value;
}

// The launcher made the board and tells its name in the environment. Otherwise the first rank of the host makes it, and
// tells the others by MPI, or they look for it.
std::shared_ptr<Board> board_of(const Surroundings& around, MpiSession* session, int local_rank, int local_size) {
  if (const auto given = environment("TRIREME_BOARD"); !given.empty())
    return Board::open(SegmentName::parse(given, "the environment variable TRIREME_BOARD"));
  std::shared_ptr<Board> board;
  if (local_rank == 0) {
    Segment::sweep();
    board = Board::create(local_size, session ? 0 : job_number(around));
  }
  if (session) {
    const auto name = session->share_on_host(board ? board->name().text() : "");
    return board ? board : Board::open(SegmentName::parse(name, "what the first rank of this host says by MPI"));
  }
  for (int tries = 0; !board; ++tries) {
    if (tries == 12'000) fail("the first rank of this host did not make its board within a minute: is it missing?");
    if (tries > 0) usleep(5000);
    board = Board::find(job_number(around), local_size);
  }
  return board;
}

// Tensors of cards go by NCCL where that is asked for.
std::unique_ptr<Transport> with_nccl(std::unique_ptr<Transport> carrier, TransportKind transport, int local_rank,
                                     int local_size) {
  if (transport != TransportKind::nccl) return carrier;
  const auto device = choose_device(true, local_rank);
  if (shares_card(device, local_size))
    refuse(
        "comm.transport = nccl needs a card for each of the {} ranks of this host; comm.transport=auto lets them share",
        local_size);
  return make_nccl_transport(std::move(carrier), device);
}

}  // namespace

std::unique_ptr<World> World::start() {
  auto world = join(look_around(), TransportKind::automatic);
  if (environment("OMP_NUM_THREADS").empty()) at::set_num_threads(world->threads());
  return world;
}

std::unique_ptr<World> World::join(const Surroundings& around, TransportKind transport, const Links& links) {
  log::set_rank(around.rank);
  std::unique_ptr<World> world(new World);
  if (around.size == 1) {
    world->board_ = Board::in_memory(1);
    world->record(world->board_->slot(0));
    world->communicator_ = std::make_unique<Communicator>(
        with_nccl(std::make_unique<LonelyTransport>(), transport, 0, 1), *world->recorder_);
    return world;
  }
  const bool wants_mpi =
      around.launcher == Launcher::mpirun || transport == TransportKind::mpi || around.local_size != around.size;
  refuse_impossible(around, wants_mpi);
  const auto session = wants_mpi ? start_mpi(around) : nullptr;
  world->session_ = session;
  if (session) session->links = links;
  world->local_rank_ = session ? session->local_rank : around.local_rank;
  world->local_size_ = session ? session->local_size : around.local_size;

  if (session && world->local_size_ != around.size) world->beats_ = make_host_beats(session);
  world->board_ = board_of(around, session.get(), world->local_rank_, world->local_size_);
  if (world->board_->ranks() != world->local_size_)
    fail("the board of this job has places for {} ranks, but {} were started on this host", world->board_->ranks(),
         world->local_size_);
  auto& slot = world->board_->slot(world->local_rank_);
  slot.rank.store(around.rank);
  slot.pid.store(getpid());
  world->record(slot);

  const bool all_here = world->local_size_ == around.size;
  if (transport == TransportKind::shared && !all_here) refuse("comm.transport=shared needs all ranks on one host");
  const bool shared = transport != TransportKind::mpi && all_here;
  auto carrier = shared ? make_shared_transport(meet_processes(*world->board_, around.rank), around.rank)
                 : transport == TransportKind::mpi ? make_mpi_transport(session)
                                                   : make_hosts_transport(session);
  carrier = with_nccl(std::move(carrier), transport, world->local_rank_, world->local_size_);
  world->communicator_ = std::make_unique<Communicator>(std::move(carrier), *world->recorder_);
  // Once everybody holds the board its name is of no use: without it, nothing stays behind however the job ends.
  world->communicator_->wait(world->communicator_->barrier("meet"));
  if (world->local_rank_ == 0) world->board_->hide();
  return world;
}

void World::run_threads(int size, const std::function<void(World&)>& body) {
  auto group = make_thread_group(size);
  auto board = Board::in_memory(size);
  auto failure = std::make_shared<FirstFailure>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      log::set_rank(rank);
      std::unique_ptr<World> world(new World);
      world->local_rank_ = rank;
      world->local_size_ = size;
      world->failure_ = failure;
      world->board_ = board;
      world->record(board->slot(rank));
      world->communicator_ = std::make_unique<Communicator>(make_shared_transport(group, rank), *world->recorder_);
      try {
        body(*world);
      } catch (...) {
        world->announce(std::current_exception());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (failure->error) std::rethrow_exception(failure->error);
}

void World::record(BoardSlot& slot) {
  count_memory();
  recorder_ = std::make_unique<Recorder>(&slot);
  here_.emplace(recorder_->memory(), Owner::other);
}

void World::announce(const std::exception_ptr& error) {
  if (failure_) {
    {
      std::lock_guard lock(failure_->mutex);
      if (!failure_->error) failure_->error = error;
    }
    return communicator().abort();
  }
  if (size() == 1) return;
  const auto known = fault_of(error, board_->slot(local_rank_));
  if (board_->claim_fault(rank(), known.exit_status(), known.what())) log::error("{}", known.what());
}

double World::own_cores() const {
  std::vector<pid_t> ranks;
  for (int i = 0; i < board_->ranks(); ++i) ranks.push_back(board_->slot(i).pid.load());  // 0 where they are threads
  return trireme::own_cores(ranks);
}

at::Device World::device() const { return choose_device(cuda_available(), local_rank_); }

std::string World::from_first(const std::string& text, const char* what) {
  const auto send = [&](const at::Tensor& tensor) {
    communicator_->now([&] { return communicator_->broadcast(tensor, 0, what); });
  };
  const auto size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  send(size);
  std::string shared(static_cast<size_t>(size.item<int64_t>()), '\0');
  if (shared.empty()) return shared;
  if (rank() == 0) shared = text;
  send(at::from_blob(shared.data(), {size.item<int64_t>()}, at::kByte));
  return shared;
}

World::~World() { communicator_.reset(); }

}  // namespace trireme
