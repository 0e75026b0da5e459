// Ranks on several hosts, several on each: those of a host share memory, and between hosts MPI's messages travel. In an
// all-reduce each host first reduces for itself, every local rank a share of it; then each share crosses between the
// ranks of all hosts that hold it; then the shares are gathered inside. So a host sends as few bytes as one rank on it
// would have to (spec/collective_cost), and all its ranks help to send them.
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/mpi_calls.h"
#include "trireme/comm/shared_transport.h"

namespace trireme {

namespace {

// A door to the ranks of one host, which tell each other by MPI where they meet.
std::unique_ptr<Transport> meet_on_host(MPI_Comm host) {
  int rank = 0, size = 1;
  MPI_Comm_rank(host, &rank);
  MPI_Comm_size(host, &size);
  const auto tell_all = [&](const SegmentName& of_first) {
    return SegmentName::parse(first_says(of_first.text(), host), "what the first rank of this host says by MPI");
  };
  return make_shared_transport(meet_processes(rank, size, tell_all), rank);
}

class HostsTransport final : public Transport {
 public:
  // Owns the communicators: that of all ranks, and that of this host's.
  HostsTransport(std::shared_ptr<MpiSession> session, MPI_Comm all, MPI_Comm host)
      : session_(std::move(session)), all_(all), comparison_(session_, all) {
    MPI_Comm_rank(all_, &rank_);
    MPI_Comm_size(all_, &size_);
    MPI_Comm_rank(host, &local_rank_);
    MPI_Comm_size(host, &local_size_);
    inside_ = meet_on_host(host);
    check_mpi(MPI_Allreduce(&local_size_, &carriers_, 1, MPI_INT, MPI_MIN, all_), "MPI_Allreduce");
    const int mine[] = {first_says(rank_, host), local_rank_};
    places_.resize(static_cast<size_t>(size_));
    static_assert(sizeof(Seat) == sizeof mine);
    check_mpi(MPI_Allgather(mine, 2, MPI_INT, places_.data(), 2, MPI_INT, all_), "MPI_Allgather");
    MPI_Comm between;
    check_mpi(MPI_Comm_split(all_, carries() ? local_rank_ : MPI_UNDEFINED, rank_, &between), "MPI_Comm_split");
    if (carries()) {
      between_ = make_mpi_transport(session_, between);
      between_->try_with({.checking = false});
    }
    MPI_Comm flat;
    check_mpi(MPI_Comm_dup(all_, &flat), "MPI_Comm_dup");
    flat_ = make_mpi_transport(session_, flat);
    flat_->try_with({.checking = false});
    MPI_Comm_free(&host);
  }

  ~HostsTransport() override {
    std::lock_guard lock(session_->mutex);
    MPI_Comm_free(&all_);
  }

  const char* name() const override { return "shared memory and mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void carry_out(const Call& call, const Arguments& arguments) override {
    compare(call);
    switch (call.collective) {
      case Collective::all_reduce:
        if (call.count > 0) all_reduce(call, arguments);
        return;
      case Collective::reduce:
        if (call.count > 0) reduce(call, arguments);
        return;
      case Collective::broadcast:
        if (call.count > 0) broadcast(call, arguments);
        return;
      default: flat_->carry_out(call, arguments);
    }
  }

  void sum_across(uint64_t&, const Arguments& arguments, const SumAcross& across) override {
    const auto& tensor = arguments.tensor;
    if (tensor.numel() == 0) return;
    const Call call{.count = tensor.numel(), .collective = Collective::all_reduce, .dtype = tensor.scalar_type()};
    const auto parts = shares(call);
    scatter(call, arguments, parts);
    const auto [begin, end] = share_across(call.count, static_cast<int64_t>(tensor.element_size()));
    if (end > begin)
      across({*between_, between_calls_, arguments.idle}, tensor.view({-1}).narrow(0, begin, end - begin));
    gather(call, arguments, parts);
  }

  std::pair<int64_t, int64_t> share_across(int64_t count, int64_t element_bytes) const override {
    if (!carries()) return {0, 0};
    const auto parts = even_parts(count, carriers_, element_bytes);
    return {parts[static_cast<size_t>(local_rank_)], parts[static_cast<size_t>(local_rank_) + 1]};
  }

  void try_with(const TransportTrial& trial) override {
    checking_ = trial.checking;
    inside_->try_with(trial);
  }

  const char* way(const Call& call) const override { return between_ ? between_->way(call) : ""; }

  at::Tensor allocate(const Call& call, int64_t bytes, at::Device device) override {
    compare(call);
    if (!device.is_cpu()) return at::zeros({bytes}, at::TensorOptions().device(device).dtype(at::kByte));
    return inside_->allocate(inside({.collective = Collective::allocate}), bytes, device);
  }

  std::unique_ptr<Transport> split(const Call& call, int color) override {
    compare(call);
    MPI_Comm comm;
    {
      std::lock_guard lock(session_->mutex);
      check_mpi(MPI_Comm_split(all_, color < 0 ? MPI_UNDEFINED : color, rank_, &comm), "MPI_Comm_split");
    }
    return color < 0 ? nullptr : make_hosts_transport(session_, comm);
  }

  std::unique_ptr<Mail> open_mail(const Call& call, const MailPeers& peers) override {
    compare(call);
    return flat_->open_mail(call, peers);
  }

 private:
  struct Seat {
    int first;  // of the host: the rank that sits there first
    int local;
  };

  bool carries() const { return local_rank_ < carriers_; }

  // First of all, whatever the call: ranks that go different ways would wait for each other in vain.
  void compare(const Call& call) {
    if (checking_) comparison_.compare(call);
  }

  // The next call among this host's ranks.
  Call inside(Call call) {
    call.sequence = inside_calls_++;
    return call;
  }

  // A share for each local rank that carries one; nothing for the others.
  Offsets shares(const Call& call) const {
    auto parts = even_parts(call.count, carriers_, static_cast<int64_t>(c10::elementSize(call.dtype)));
    parts.resize(static_cast<size_t>(local_size_) + 1, call.count);
    return parts;
  }

  void scatter(const Call& call, const Arguments& arguments, const Offsets& parts) {
    Call inner = call;
    inner.collective = Collective::reduce_scatter;
    inside_->carry_out(inside(inner), {arguments.tensor, {}, parts, {}, arguments.idle});
  }

  void gather(const Call& call, const Arguments& arguments, const Offsets& parts) {
    Call inner = call;
    inner.collective = Collective::gather_parts;
    inside_->carry_out(inside(inner), {arguments.tensor, {}, parts, {}, arguments.idle});
  }

  void cross(Call call, const Arguments& arguments, const Offsets& parts) {
    const int64_t begin = parts[static_cast<size_t>(local_rank_)];
    call.count = parts[static_cast<size_t>(local_rank_) + 1] - begin;
    call.parts = 0;
    call.sequence = between_calls_++;
    if (carries() && call.count > 0)
      between_->carry_out(call, {arguments.tensor.view({-1}).narrow(0, begin, call.count), {}, {}, {}, arguments.idle});
  }

  // Among the ranks that hold the same share as this one, which is the one of a host?
  int16_t carrier_of(int host) const {
    int16_t before = 0;
    for (const auto& seat : places_) {
      if (seat.local != local_rank_) continue;
      if (seat.first == host) return before;
      ++before;
    }
    return 0;
  }

  void all_reduce(const Call& call, const Arguments& arguments) {
    const auto parts = shares(call);
    scatter(call, arguments, parts);
    cross(call, arguments, parts);
    gather(call, arguments, parts);
  }

  // The same, but shares cross to the root's host only, and are gathered only there.
  void reduce(const Call& call, const Arguments& arguments) {
    const auto& root = places_[static_cast<size_t>(call.root)];
    const auto parts = shares(call);
    scatter(call, arguments, parts);
    Call outer = call;
    outer.root = carrier_of(root.first);
    cross(outer, arguments, parts);
    if (places_[static_cast<size_t>(rank_)].first == root.first) gather(call, arguments, parts);
  }

  void broadcast(const Call& call, const Arguments& arguments) {
    const auto& root = places_[static_cast<size_t>(call.root)];
    const auto parts = shares(call);
    const bool here = places_[static_cast<size_t>(rank_)].first == root.first;
    Call inner = call;
    inner.root = static_cast<int16_t>(root.local);
    if (here) inside_->carry_out(inside(inner), {arguments.tensor, {}, {}, {}, arguments.idle});
    Call outer = call;
    outer.root = carrier_of(root.first);
    cross(outer, arguments, parts);
    if (!here) gather(call, arguments, parts);
  }

  std::shared_ptr<MpiSession> session_;
  MPI_Comm all_;
  CallComparison comparison_;
  bool checking_ = true;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  int carriers_ = 1;  // local ranks that carry a share: as many as every host has
  std::vector<Seat> places_;
  std::unique_ptr<Transport> inside_, between_, flat_;
  uint64_t inside_calls_ = 0, between_calls_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_hosts_transport(std::shared_ptr<MpiSession> session, MPI_Comm comm) {
  std::lock_guard lock(session->mutex);
  int size = 1, local_size = 1, most = 1;
  MPI_Comm host = host_of(*session, comm);
  MPI_Comm_size(comm, &size);
  MPI_Comm_size(host, &local_size);
  check_mpi(MPI_Allreduce(&local_size, &most, 1, MPI_INT, MPI_MAX, comm), "MPI_Allreduce");
  if (most > 1 && most < size) return std::make_unique<HostsTransport>(session, comm, host);
  auto transport = most == size && size > 1 ? meet_on_host(host) : nullptr;
  MPI_Comm_free(&host);
  if (!transport) return make_mpi_transport(session, comm);
  MPI_Comm_free(&comm);
  return transport;
}

std::unique_ptr<Transport> make_hosts_transport(std::shared_ptr<MpiSession> session) {
  MPI_Comm comm;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return make_hosts_transport(std::move(session), comm);
}

}  // namespace trireme
