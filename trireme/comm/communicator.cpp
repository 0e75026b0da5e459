#include "trireme/comm/communicator.h"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme {

namespace {
constexpr size_t ring_slots = 1024;
}

Communicator::Communicator(std::unique_ptr<Transport> transport, Recorder& recorder)
    : transport_(std::move(transport)), recorder_(recorder), ring_(ring_slots) {
  if (size() > 1) {
    thread_ = std::thread([this, rank = log::rank()] {
      log::set_rank(rank);
      run();
    });
  }
}

Communicator::~Communicator() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Communicator::Ticket Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, const char* name, Done done) {
  Call call{.count = tensor.numel(), .collective = Collective::all_reduce, .op = op, .dtype = tensor.scalar_type()};
  return submit(call, tensor, {}, name, std::move(done));
}

Communicator::Ticket Communicator::broadcast(const at::Tensor& tensor, int root, const char* name, Done done) {
  if (root < 0 || root >= size()) fail("broadcast \"{}\" from rank {}: there are {} ranks", name, root, size());
  Call call{.count = tensor.numel(), .collective = Collective::broadcast, .dtype = tensor.scalar_type()};
  call.root = static_cast<int16_t>(root);
  return submit(call, tensor, {}, name, std::move(done));
}

Communicator::Ticket Communicator::all_gather(const at::Tensor& tensor, const at::Tensor& output, const char* name,
                                              Done done) {
  if (output.numel() != tensor.numel() * size() || output.scalar_type() != tensor.scalar_type()) {
    fail("all_gather \"{}\" of {} elements from {} ranks needs an output of {}, not {}", name, tensor.numel(), size(),
         tensor.numel() * size(), output.numel());
  }
  Call call{.count = tensor.numel(), .collective = Collective::all_gather, .dtype = tensor.scalar_type()};
  return submit(call, tensor, output, name, std::move(done));
}

Communicator::Ticket Communicator::barrier(const char* name, Done done) {
  return submit({.collective = Collective::barrier}, {}, {}, name, std::move(done));
}

Communicator::Ticket Communicator::submit(Call call, const at::Tensor& tensor, const at::Tensor& output,
                                          const char* name, Done done) {
  if (tensor.defined() && !tensor.is_contiguous()) fail("\"{}\": only contiguous tensors can be communicated", name);
  std::strncpy(call.name, name, sizeof call.name - 1);
  std::unique_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  if (tail_ - head_ == ring_.size()) {
    finished_.wait(lock, [&] { return tail_ - head_ < ring_.size(); });
    if (failure_) std::rethrow_exception(failure_);
  }
  auto& slot = ring_[tail_ % ring_.size()];
  slot.call = call;
  slot.call.sequence = tail_;
  slot.tensor = tensor;
  slot.output = output;
  if (tensor.defined()) slot.ready.record(tensor.device());
  slot.done = std::move(done);
  const Ticket ticket = ++tail_;
  if (size() == 1) {
    // Also what callbacks queue meanwhile: alone there is no other thread to carry it.
    while (carry_one(lock)) {
    }
  } else if (!carrying_) {
    work_.notify_one();
  }
  return ticket;
}

std::exception_ptr Communicator::carry_out(Operation& slot) {
  recorder_.communicate(slot.call.name, static_cast<int64_t>(slot.call.sequence));
  try {
    if (size() > 1 || slot.call.collective == Collective::all_gather) {
      StagedTensor tensor(slot.tensor, slot.ready), output(slot.output, slot.ready);
      transport_->carry_out(slot.call, tensor.host(), output.host());
      if (slot.call.collective != Collective::all_gather) tensor.write_back();
      output.write_back();
    }
    if (slot.tensor.defined() && size() > 1) recorder_.sent(static_cast<int64_t>(slot.tensor.nbytes()));
  } catch (Error& problem) {
    return std::make_exception_ptr(problem.add_context(fmt::format("rank {}, \"{}\"", rank(), slot.call.name)));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// Takes the oldest call and carries it out; the lock is held on entry and on return, not in between.
bool Communicator::carry_one(std::unique_lock<std::mutex>& lock) {
  if (carrying_ || head_ == tail_) return false;
  carrying_ = true;
  auto& slot = ring_[head_ % ring_.size()];
  // Behind a failed call nothing is tried any more, as the peers will not come to it; whoever waits for it is told.
  std::exception_ptr error = failure_;
  lock.unlock();
  if (!error) error = carry_out(slot);
  slot.tensor = at::Tensor();
  slot.output = at::Tensor();
  const Done done = std::move(slot.done);
  slot.done = nullptr;
  if (error) {
    // Before the callback: it must not queue more.
    lock.lock();
    if (!failure_) failed_ = head_ + 1;
    failure_ = error;
    lock.unlock();
  }
  if (done) done(error);

  lock.lock();
  carrying_ = false;
  ++head_;
  finished_.notify_all();
  // What was queued meanwhile woke nobody; this thread may leave now.
  if (head_ < tail_) work_.notify_one();
  return true;
}

bool Communicator::help() {
  std::unique_lock lock(mutex_);
  return carry_one(lock);
}

void Communicator::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  while (head_ < ticket) {
    if (!carry_one(lock)) finished_.wait(lock);
  }
  if (failure_ && failed_ <= ticket) std::rethrow_exception(failure_);
}

void Communicator::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    // A call still queued when the communicator ends will never be met by its peers: it is dropped.
    work_.wait(lock, [&] { return ending_ || (head_ < tail_ && !carrying_); });
    if (ending_) return;
    carry_one(lock);
  }
}

at::Tensor Communicator::allocate(int64_t bytes) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return !carrying_ && head_ == tail_; });
  if (failure_) std::rethrow_exception(failure_);
  Call call{.sequence = tail_, .collective = Collective::allocate};
  std::strncpy(call.name, "allocate", sizeof call.name - 1);
  // It takes a place in the order like any other call.
  head_ = ++tail_;
  return transport_->allocate(call, bytes);
}

}  // namespace trireme
