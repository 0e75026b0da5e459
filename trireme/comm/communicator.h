// The communicator: asynchronous collectives on tensors. Calls are queued and carried out one after another in the
// order in which they were made, which must be the same on all ranks. One thread per process carries them out and
// sleeps when there are none; a thread that waits for a call carries calls out itself, which saves the hand-over.
#pragma once

#include <ATen/core/Tensor.h>

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

class Communicator final : public Helper {
 public:
  // Called when a call has ended, on the thread that carried it out; must not wait for anything.
  using Done = std::function<void(std::exception_ptr)>;
  using Ticket = uint64_t;

  Communicator(std::unique_ptr<Transport> transport, Recorder& recorder);
  ~Communicator() override;

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  const char* transport_name() const { return transport_->name(); }

  // Each starts a collective and returns a ticket to wait for. The tensor is changed in place.
  Ticket all_reduce(const at::Tensor& tensor, ReduceOp op, const char* name, Done done = {});
  Ticket broadcast(const at::Tensor& tensor, int root, const char* name, Done done = {});
  Ticket all_gather(const at::Tensor& tensor, const at::Tensor& output, const char* name, Done done = {});
  Ticket barrier(const char* name, Done done = {});

  // Returns when the call has ended; throws its error, or that of an earlier call.
  void wait(Ticket ticket);

  bool help() override;

  // A zeroed tensor of bytes that peers can reach without a copy where the transport offers it. Collective.
  at::Tensor allocate(int64_t bytes);

  void abort() { transport_->abort(); }

 private:
  struct Operation {
    Call call;
    at::Tensor tensor;
    at::Tensor output;
    DeviceEvent ready;  // the work that makes the tensor, on a card
    Done done;
  };

  Ticket submit(Call call, const at::Tensor& tensor, const at::Tensor& output, const char* name, Done done);
  std::exception_ptr carry_out(Operation& slot);
  bool carry_one(std::unique_lock<std::mutex>& lock);
  void run();

  std::unique_ptr<Transport> transport_;
  Recorder& recorder_;
  std::mutex mutex_;
  std::condition_variable work_;      // the progress thread sleeps here
  std::condition_variable finished_;  // waiting callers sleep here
  std::vector<Operation> ring_;       // reused slots: [head, tail) are queued
  Ticket head_ = 0, tail_ = 0;
  bool carrying_ = false;  // someone is inside the transport
  bool ending_ = false;
  std::exception_ptr failure_;  // of the first call that failed,
  Ticket failed_ = 0;           // which was this one
  std::thread thread_;
};

}  // namespace trireme
