#include <ATen/ATen.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/algorithms.h"
#include "trireme/comm/mpi_calls.h"

namespace trireme {

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("{}: {}", what, std::string(text, static_cast<size_t>(length)));
}

MPI_Comm host_of(const MpiSession& session, MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm host;
  if (session.pretended_ranks_per_host > 0) {
    check_mpi(MPI_Comm_split(comm, session.rank / session.pretended_ranks_per_host, rank, &host), "MPI_Comm_split");
  } else {
    check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
  }
  return host;
}

int first_says(int value, MPI_Comm comm) {
  check_mpi(MPI_Bcast(&value, 1, MPI_INT, 0, comm), "MPI_Bcast");
  return value;
}

std::string first_says(const std::string& text, MPI_Comm comm) {
  std::string shared = text;
  shared.resize(static_cast<size_t>(first_says(static_cast<int>(text.size()), comm)));
  check_mpi(MPI_Bcast(shared.data(), static_cast<int>(shared.size()), MPI_CHAR, 0, comm), "MPI_Bcast");
  return shared;
}

void Patience::wait() {
  const int round = round_.fetch_add(1, std::memory_order_relaxed);
  if (round < 200) {
    sched_yield();
  } else {
    usleep(static_cast<useconds_t>(std::min(200, 10 + (round - 200) / 4)));
  }
}

bool mpi_built() { return true; }

std::shared_ptr<MpiSession> MpiSession::start() {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) fail("this MPI library cannot be called from more than one thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  auto session = std::shared_ptr<MpiSession>(new MpiSession);
  MPI_Comm_rank(MPI_COMM_WORLD, &session->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &session->size);
  MPI_Comm host = host_of(*session, MPI_COMM_WORLD);
  MPI_Comm_rank(host, &session->local_rank);
  MPI_Comm_size(host, &session->local_size);
  MPI_Comm_free(&host);
  return session;
}

MpiSession::~MpiSession() { MPI_Finalize(); }

std::string MpiSession::share_on_host(const std::string& text) {
  MPI_Comm host = host_of(*this, MPI_COMM_WORLD);
  const auto shared = first_says(text, host);
  MPI_Comm_free(&host);
  return shared;
}

namespace {

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm copy;
  check_mpi(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  return copy;
}

}  // namespace

CallComparison::CallComparison(std::shared_ptr<MpiSession> session, MPI_Comm comm)
    : wire_(make_mpi_wire(std::move(session), duplicate(comm))),
      collectives_(*wire_),
      calls_(static_cast<size_t>(wire_->size())) {}

void CallComparison::compare(const Call& call) {
  calls_[static_cast<size_t>(wire_->rank())] = call;
  collectives_.all_gather_small(reinterpret_cast<std::byte*>(calls_.data()), sizeof(Call));
  check_agreement(calls_);
}

namespace {

// Collectives by our own algorithms on MPI's messages: MPI's sums of narrow types are wrong or missing, and its calls
// cannot be waited for without a spinning core.
class MpiTransport final : public Transport {
 public:
  // Owns the communicator: messages of other MPI users in this process cannot be mistaken for ours.
  MpiTransport(std::shared_ptr<MpiSession> session, MPI_Comm comm)
      : session_(std::move(session)),
        world_(comm),
        wire_(make_mpi_wire(session_, duplicate(comm))),
        collectives_(*wire_),
        comparison_(session_, comm) {
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_, &rank_);
    MPI_Comm_size(world_, &size_);
    const bool one_host = session_->local_size == session_->size;
    link_ = one_host ? session_->links.inside : session_->links.between;
  }

  ~MpiTransport() override {
    std::lock_guard lock(session_->mutex);
    MPI_Comm_free(&world_);
  }

  const char* name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void try_with(const TransportTrial& trial) override { checking_ = trial.checking; }
  const char* way(const Call& call) const override {
    return call.collective == Collective::all_reduce ? trireme::name(chosen_) : "";
  }

  void carry_out(const Call& call, const Arguments& arguments) override {
    compare(call);
    if (call.collective == Collective::all_to_all) return all_to_all(arguments);
    if (call.collective == Collective::barrier || call.count == 0) return;
    const auto& tensor = arguments.tensor;
    auto* data = static_cast<std::byte*>(tensor.data_ptr());
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    switch (call.collective) {
      case Collective::all_reduce:
        chosen_ = choose_all_reduce(size_, bytes, link_);
        collectives_.all_reduce(chosen_, {data, call.count, call.dtype, call.op});
        break;
      case Collective::broadcast: collectives_.broadcast(data, bytes, call.root); break;
      case Collective::all_gather: {
        auto* all = static_cast<std::byte*>(arguments.output.data_ptr());
        if (data != all + rank_ * bytes) std::memcpy(all + rank_ * bytes, data, static_cast<size_t>(bytes));
        collectives_.all_gather(all, even_offsets(bytes * size_, size_));
        break;
      }
      case Collective::reduce: collectives_.reduce({data, call.count, call.dtype, call.op}, call.root); break;
      case Collective::reduce_scatter:
        collectives_.reduce_scatter({data, call.count, call.dtype, call.op}, arguments.give);
        break;
      case Collective::gather_parts: collectives_.all_gather(data, in_bytes(arguments.give, tensor)); break;
      default: break;  // made by functions of their own
    }
  }

  at::Tensor allocate(const Call& call, int64_t bytes, at::Device device) override {
    compare(call);
    return at::zeros({bytes}, at::TensorOptions().device(device).dtype(at::kByte));
  }

  std::unique_ptr<Transport> split(const Call& call, int color) override {
    compare(call);
    std::lock_guard lock(session_->mutex);
    MPI_Comm comm;
    check_mpi(MPI_Comm_split(world_, color < 0 ? MPI_UNDEFINED : color, rank_, &comm), "MPI_Comm_split");
    return color < 0 ? nullptr : std::make_unique<MpiTransport>(session_, comm);
  }

  std::unique_ptr<Mail> open_mail(const Call& call, const MailPeers& peers) override {
    compare(call);
    MPI_Comm comm;
    {
      std::lock_guard lock(session_->mutex);
      check_mpi(MPI_Comm_dup(world_, &comm), "MPI_Comm_dup");
    }
    return make_mpi_mail(session_, comm, peers);
  }

 private:
  static Offsets in_bytes(Offsets offsets, const at::Tensor& tensor) {
    for (auto& offset : offsets) offset *= static_cast<int64_t>(tensor.element_size());
    return offsets;
  }

  // What each gives and what the others expect of it is compared before anything moves.
  void all_to_all(const Arguments& arguments) {
    const auto give = in_bytes(arguments.give, arguments.tensor), take = in_bytes(arguments.take, arguments.output);
    const size_t ends = static_cast<size_t>(size_) + 1;
    parts_.resize(2 * ends * static_cast<size_t>(size_));
    auto* mine = &parts_[2 * ends * static_cast<size_t>(rank_)];
    std::copy(give.begin(), give.end(), mine);
    std::copy(take.begin(), take.end(), mine + ends);
    collectives_.all_gather_small(reinterpret_cast<std::byte*>(parts_.data()),
                                  static_cast<int64_t>(2 * ends * sizeof(int64_t)));
    check_exchange(parts_, size_);
    collectives_.all_to_all(static_cast<const std::byte*>(arguments.tensor.const_data_ptr()), give,
                            static_cast<std::byte*>(arguments.output.data_ptr()), take);
  }

  void compare(const Call& call) {
    if (checking_) comparison_.compare(call);
  }

  std::shared_ptr<MpiSession> session_;
  MPI_Comm world_;
  std::unique_ptr<Wire> wire_;
  WireCollectives collectives_;
  CallComparison comparison_;
  int rank_ = 0, size_ = 1;
  bool checking_ = true;
  LinkCost link_;
  Algorithm chosen_ = Algorithm::doubling;
  std::vector<int64_t> parts_;  // where each rank's parts begin, those that it gives and those that it takes
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<MpiSession> session, MPI_Comm comm) {
  return std::make_unique<MpiTransport>(std::move(session), comm);
}

std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<MpiSession> session) {
  return make_mpi_transport(std::move(session), duplicate(MPI_COMM_WORLD));
}

}  // namespace trireme
