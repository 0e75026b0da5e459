// The communicator: asynchronous collectives on tensors. Calls are queued and carried out one after another in the
// order in which they were made, which must be the same on all ranks. One thread per process carries them out and
// sleeps when there are none; a thread that waits for a call carries calls out itself, which saves the hand-over.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/comm/call.h"
#include "trireme/comm/transport.h"
#include "trireme/device/device.h"
#include "trireme/engine/executor.h"
#include "trireme/observe/recorder.h"

namespace trireme {

// A set of ranks that communicate among themselves.
using Group = size_t;
constexpr Group everybody = 0;
constexpr Group nobody = static_cast<Group>(-1);

class Communicator final : public Helper {
 public:
  // Called when a call has ended, on the thread that carried it out; must not wait for anything.
  using Done = std::function<void(std::exception_ptr)>;
  using Ticket = uint64_t;

  Communicator(std::unique_ptr<Transport> transport, Recorder& recorder);
  ~Communicator() override;

  int rank(Group group = everybody) const { return transports_[group]->rank(); }
  int size(Group group = everybody) const { return transports_[group]->size(); }
  uint64_t calls(Group group = everybody) const { return sequences_[group]; }  // made by this rank so far
  // Whether tensors of a device are communicated where they lie.
  bool reaches(at::Device device, Group group = everybody) const { return transports_[group]->reaches(device); }
  const char* transport_name() const { return transports_[everybody]->name(); }

  // The ranks that give the same color become a group of their own, in the order of their ranks; a negative color joins
  // none and gets nobody. All ranks call it, in the same order.
  Group split(int color);

  // Each starts a collective and returns a ticket to wait for. The tensor is changed in place. Calls of different
  // groups are carried out in the order in which they were made as well: ranks that are in several groups must agree on
  // it.
  Ticket all_reduce(const at::Tensor& tensor, ReduceOp op, const char* name, Done done = {}, Group group = everybody);
  Ticket broadcast(const at::Tensor& tensor, int root, const char* name, Done done = {}, Group group = everybody);
  Ticket all_gather(const at::Tensor& tensor, const at::Tensor& output, const char* name, Done done = {},
                    Group group = everybody);
  Ticket barrier(const char* name, Done done = {}, Group group = everybody);
  // The root ends with the reduction; what the other ranks' tensors hold then is of no use.
  Ticket reduce(const at::Tensor& tensor, ReduceOp op, int root, const char* name, Done done = {},
                Group group = everybody);
  // Rank r ends with the reduction of part r in its place, the other parts are of no use then. gather_parts() is the
  // way back: rank r gives part r, and all end with all. Without offsets the parts are even_parts().
  Ticket reduce_scatter(const at::Tensor& tensor, ReduceOp op, const char* name, Done done = {},
                        Group group = everybody, Offsets parts = {});
  Ticket gather_parts(const at::Tensor& tensor, const char* name, Done done = {}, Group group = everybody,
                      Offsets parts = {});
  // Part r of `given` goes to rank r; part r of `taken` is what rank r gave. Without offsets all parts are equal.
  Ticket all_to_all(const at::Tensor& given, const at::Tensor& taken, const char* name, Done done = {},
                    Group group = everybody, Offsets give = {}, Offsets take = {});

  // Sums a tensor over the group, of which `across` does the costly part (Transport::sum_across), on the host. Its
  // collectives are carried out in this call's place, and their bytes counted by whoever makes them. A group that sums
  // so does nothing else.
  Ticket sum_across(const at::Tensor& tensor, Transport::SumAcross across, const char* name, Done done, Group group);

  // The elements of a tensor of so many that `across` gets on this rank.
  std::pair<int64_t, int64_t> share_across(Group group, int64_t count, int64_t element_bytes) const {
    return transports_[group]->share_across(count, element_bytes);
  }

  // Returns when the call has ended; throws its error, or that of an earlier call.
  void wait(Ticket ticket);
  // Starts a call and waits for it, all on this thread: no other one is woken for it.
  //   communicator.now([&] { return communicator.all_reduce(tensor, ReduceOp::sum, "loss"); });
  template <class Start>
  void now(const Start& start) {
    wait([&] {
      Waiting waiting;
      return start();
    }());
  }

  bool help(bool may_be_kept) override;

  // A zeroed tensor of bytes that the group's ranks can reach without a copy where the transport offers it. On cards
  // all the group's tensors stay there after the first such call, if the cards can be reached. Collective.
  at::Tensor allocate(int64_t bytes, Group group = everybody, at::Device device = at::kCPU);

  // Opens ways for messages between single ranks. Collective over all ranks, each with its own peers.
  std::unique_ptr<Mail> open_mail(const MailPeers& peers);

  // While nothing is queued; the same on all ranks.
  void try_with(const TransportTrial& trial) { transports_[everybody]->try_with(trial); }

  void abort() { transports_[everybody]->abort(); }

 private:
  // While one lives, its thread is going to wait for what it starts, and nobody else is woken.
  struct Waiting {
    Waiting() { here = true; }
    ~Waiting() { here = false; }
    static thread_local bool here;
  };

  struct Operation {
    Call call;
    Group group = everybody;
    Arguments arguments;
    Transport::SumAcross across;  // where the call is a sum of that kind
    DeviceEvent ready;            // the work that makes the tensor, on a card
    Done done;
  };

  Ticket submit(Group group, Call call, Arguments arguments, const char* name, Done done,
                Transport::SumAcross across = {});
  // Waits until nothing is queued, and gives the next place in the group's order to a call made by the calling thread.
  Call take_turn(std::unique_lock<std::mutex>& lock, Group group, Collective collective, const char* name);
  std::exception_ptr carry_out(Operation& slot, bool idle);
  bool carry_one(std::unique_lock<std::mutex>& lock, bool idle);  // `idle`: by a thread with nothing else to do
  void run();
  void look(std::unique_lock<std::mutex>& lock, const std::atomic<Ticket>& counter, Ticket seen) const;

  std::vector<std::unique_ptr<Transport>> transports_;  // by group; null for a group that this rank is not in
  std::vector<uint64_t> sequences_;                     // by group: calls made so far
  std::vector<uint64_t> inner_calls_;                   // by group: made inside of sums
  Recorder& recorder_;
  std::mutex mutex_;
  std::condition_variable work_;      // the progress thread sleeps here
  std::condition_variable finished_;  // waiting callers sleep here
  std::vector<Operation> ring_;       // reused slots: [head, tail) are queued
  Ticket head_ = 0, tail_ = 0;
  std::atomic<Ticket> ended_{0}, queued_{0};  // the same, for who looks without the lock
  bool roomy_ = false;                        // two cores a rank, or more
  bool carrying_ = false;                     // someone is inside the transport
  bool ending_ = false;
  std::exception_ptr failure_;  // of the first call that failed,
  Ticket failed_ = 0;           // which was this one
  std::thread thread_;
};

}  // namespace trireme
