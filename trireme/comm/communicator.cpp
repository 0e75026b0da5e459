#include "trireme/comm/communicator.h"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/cores.h"
#include "trireme/memory/counter.h"
#include "trireme/observe/board.h"

namespace trireme {

namespace {
constexpr size_t ring_slots = 1024;
constexpr int64_t look_ns = 50'000;
}  // namespace

thread_local bool Communicator::Waiting::here = false;

Communicator::Communicator(std::unique_ptr<Transport> transport, Recorder& recorder)
    : recorder_(recorder), ring_(ring_slots) {
  transports_.push_back(std::move(transport));
  sequences_.push_back(0);
  inner_calls_.push_back(0);
  roomy_ = 2 * size() <= usable_cores();
  if (size() > 1) {
    thread_ = std::thread([this, rank = log::rank()] {
      log::set_rank(rank);
      const OwnerScope scope(recorder_.memory(), Owner::messages);
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

Communicator::Ticket Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, const char* name, Done done,
                                              Group group) {
  Call call{.count = tensor.numel(), .collective = Collective::all_reduce, .op = op, .dtype = tensor.scalar_type()};
  return submit(group, call, {tensor, {}, {}, {}, false}, name, std::move(done));
}

Communicator::Ticket Communicator::broadcast(const at::Tensor& tensor, int root, const char* name, Done done,
                                             Group group) {
  if (root < 0 || root >= size(group))
    fail("broadcast \"{}\" from rank {}: there are {} ranks", name, root, size(group));
  Call call{.count = tensor.numel(), .collective = Collective::broadcast, .dtype = tensor.scalar_type()};
  call.root = static_cast<int16_t>(root);
  return submit(group, call, {tensor, {}, {}, {}, false}, name, std::move(done));
}

Communicator::Ticket Communicator::all_gather(const at::Tensor& tensor, const at::Tensor& output, const char* name,
                                              Done done, Group group) {
  const int64_t ranks = size(group);
  if (output.numel() != tensor.numel() * ranks || output.scalar_type() != tensor.scalar_type()) {
    fail("all_gather \"{}\" of {} elements from {} ranks needs an output of {}, not {}", name, tensor.numel(), ranks,
         tensor.numel() * ranks, output.numel());
  }
  Call call{.count = tensor.numel(), .collective = Collective::all_gather, .dtype = tensor.scalar_type()};
  return submit(group, call, {tensor, output, {}, {}, false}, name, std::move(done));
}

Communicator::Ticket Communicator::barrier(const char* name, Done done, Group group) {
  return submit(group, {.collective = Collective::barrier}, {}, name, std::move(done));
}

namespace {

// Refuses parts that do not follow each other from the tensor's first element to its last.
void check_parts(const Offsets& offsets, int ranks, int64_t count, const char* name) {
  const bool whole = offsets.size() == static_cast<size_t>(ranks) + 1 && offsets.front() == 0 &&
                     offsets.back() == count && std::is_sorted(offsets.begin(), offsets.end());
  if (!whole) {
    fail("\"{}\": the parts of a tensor of {} elements for {} ranks need {} rising offsets from 0 to {}", name, count,
         ranks, ranks + 1, count);
  }
}

}  // namespace

Communicator::Ticket Communicator::reduce(const at::Tensor& tensor, ReduceOp op, int root, const char* name, Done done,
                                          Group group) {
  if (root < 0 || root >= size(group)) fail("reduce \"{}\" to rank {}: there are {} ranks", name, root, size(group));
  Call call{.count = tensor.numel(), .collective = Collective::reduce, .op = op, .dtype = tensor.scalar_type()};
  call.root = static_cast<int16_t>(root);
  return submit(group, call, {tensor, {}, {}, {}, false}, name, std::move(done));
}

Communicator::Ticket Communicator::reduce_scatter(const at::Tensor& tensor, ReduceOp op, const char* name, Done done,
                                                  Group group, Offsets parts) {
  if (parts.empty()) parts = even_parts(tensor.numel(), size(group), static_cast<int64_t>(tensor.element_size()));
  check_parts(parts, size(group), tensor.numel(), name);
  Call call{.count = tensor.numel(), .collective = Collective::reduce_scatter, .op = op, .dtype = tensor.scalar_type()};
  call.parts = fingerprint_of(parts);
  return submit(group, call, {tensor, {}, std::move(parts), {}, false}, name, std::move(done));
}

Communicator::Ticket Communicator::gather_parts(const at::Tensor& tensor, const char* name, Done done, Group group,
                                                Offsets parts) {
  if (parts.empty()) parts = even_parts(tensor.numel(), size(group), static_cast<int64_t>(tensor.element_size()));
  check_parts(parts, size(group), tensor.numel(), name);
  Call call{.count = tensor.numel(), .collective = Collective::gather_parts, .dtype = tensor.scalar_type()};
  call.parts = fingerprint_of(parts);
  return submit(group, call, {tensor, {}, std::move(parts), {}, false}, name, std::move(done));
}

Communicator::Ticket Communicator::all_to_all(const at::Tensor& given, const at::Tensor& taken, const char* name,
                                              Done done, Group group, Offsets give, Offsets take) {
  const int ranks = size(group);
  const auto equal_parts = [&](const at::Tensor& tensor) {
    if (tensor.numel() % ranks != 0)
      fail("all_to_all \"{}\": {} elements are no equal parts for {} ranks", name, tensor.numel(), ranks);
    return even_offsets(tensor.numel(), ranks);
  };
  if (give.empty()) give = equal_parts(given);
  if (take.empty()) take = equal_parts(taken);
  check_parts(give, ranks, given.numel(), name);
  check_parts(take, ranks, taken.numel(), name);
  if (given.scalar_type() != taken.scalar_type() || !taken.is_contiguous())
    fail("all_to_all \"{}\" needs two contiguous tensors of one type", name);
  Call call{.collective = Collective::all_to_all, .dtype = given.scalar_type()};
  return submit(group, call, {given, taken, std::move(give), std::move(take), false}, name, std::move(done));
}

Communicator::Ticket Communicator::sum_across(const at::Tensor& tensor, Transport::SumAcross across, const char* name,
                                              Done done, Group group) {
  const Call call{.count = tensor.numel(), .collective = Collective::all_reduce, .dtype = tensor.scalar_type()};
  return submit(group, call, {tensor, {}, {}, {}, false}, name, std::move(done), std::move(across));
}

Communicator::Ticket Communicator::submit(Group group, Call call, Arguments arguments, const char* name, Done done,
                                          Transport::SumAcross across) {
  const auto& tensor = arguments.tensor;
  if (tensor.defined() && !tensor.is_contiguous()) fail("\"{}\": only contiguous tensors can be communicated", name);
  if (arguments.output.defined() && arguments.output.device() != tensor.device())
    fail("\"{}\": both tensors must lie on one device", name);
  std::strncpy(call.name, name, sizeof call.name - 1);
  call.on_card = !across && tensor.defined() && !tensor.is_cpu() && transports_[group]->reaches(tensor.device());
  std::unique_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  if (tail_ - head_ == ring_.size()) {
    finished_.wait(lock, [&] { return tail_ - head_ < ring_.size(); });
    if (failure_) std::rethrow_exception(failure_);
  }
  auto& slot = ring_[tail_ % ring_.size()];
  slot.call = call;
  slot.call.sequence = sequences_[group]++;
  slot.group = group;
  if (tensor.defined()) slot.ready.record(tensor.device());
  slot.arguments = std::move(arguments);
  slot.across = std::move(across);
  slot.done = std::move(done);
  const Ticket ticket = ++tail_;
  queued_.store(ticket, std::memory_order_release);
  if (size() == 1) {
    // Also what callbacks queue meanwhile: alone there is no other thread to carry it.
    while (carry_one(lock, true)) {
    }
  } else if (!carrying_ && !Waiting::here) {
    work_.notify_one();
  }
  return ticket;
}

std::exception_ptr Communicator::carry_out(Operation& slot, bool idle) {
  recorder_.communicate(slot.call.name, static_cast<int64_t>(slot.call.sequence));
  auto* trace = recorder_.trace();
  const int64_t begun = trace ? monotonic_ns() : 0;
  const int ranks = size(slot.group);
  auto& given = slot.arguments;
  try {
    if (slot.across) {
      StagedTensor tensor(given.tensor, slot.ready);
      if (ranks > 1)
        transports_[slot.group]->sum_across(inner_calls_[slot.group], {tensor.host(), {}, {}, {}, idle}, slot.across);
      tensor.write_back();
    } else if (slot.call.on_card) {
      given.idle = idle;
      given.ready = &slot.ready;
      transports_[slot.group]->carry_out(slot.call, given);
    } else if (ranks > 1 || given.output.defined()) {
      StagedTensor tensor(given.tensor, slot.ready), output(given.output, slot.ready);
      transports_[slot.group]->carry_out(
          slot.call, {tensor.host(), output.host(), std::move(given.give), std::move(given.take), idle});
      if (!given.output.defined()) tensor.write_back();
      output.write_back();
    }
    if (trace) {
      trace->add({.track = TraceTrack::communication,
                  .name = slot.call.name,
                  .index = static_cast<int64_t>(slot.call.sequence),
                  .step = recorder_.step(),
                  .begin_ns = begun,
                  .end_ns = monotonic_ns(),
                  .way = transports_[slot.group]->way(slot.call)});
    }
    if (given.tensor.defined() && ranks > 1 && !slot.across)
      recorder_.sent(static_cast<int64_t>(given.tensor.nbytes()));
  } catch (Error& problem) {
    return std::make_exception_ptr(problem.add_context(fmt::format("rank {}, \"{}\"", rank(), slot.call.name)));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// Takes the oldest call and carries it out; the lock is held on entry and on return, not in between.
bool Communicator::carry_one(std::unique_lock<std::mutex>& lock, bool idle) {
  if (carrying_ || head_ == tail_) return false;
  carrying_ = true;
  auto& slot = ring_[head_ % ring_.size()];
  // Behind a failed call nothing is tried any more, as the peers will not come to it; whoever waits for it is told.
  std::exception_ptr error = failure_;
  lock.unlock();
  if (!error) error = carry_out(slot, idle);
  slot.arguments = {};
  slot.across = nullptr;
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
  ended_.store(++head_, std::memory_order_release);
  finished_.notify_all();
  // What was queued meanwhile woke nobody; this thread may leave now.
  if (head_ < tail_) work_.notify_one();
  return true;
}

// Being woken takes longer than a short call: where cores are to spare, a thread looks for a moment whether the counter
// moves, before it sleeps. The lock is held on entry and on return, not in between.
void Communicator::look(std::unique_lock<std::mutex>& lock, const std::atomic<Ticket>& counter, Ticket seen) const {
  if (!roomy_) return;
  lock.unlock();
  const int64_t end = monotonic_ns() + look_ns;
  while (counter.load(std::memory_order_acquire) == seen && monotonic_ns() < end) {
    for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
  }
  lock.lock();
}

// A collective ends when all ranks have come to it.
bool Communicator::help(bool may_be_kept) {
  if (!may_be_kept) return false;
  const OwnerScope scope(Owner::messages);
  std::unique_lock lock(mutex_);
  return carry_one(lock, true);
}

void Communicator::wait(Ticket ticket) {
  const OwnerScope scope(Owner::messages);
  std::unique_lock lock(mutex_);
  while (head_ < ticket) {
    if (carry_one(lock, true)) continue;
    // Another thread is at it: nearly done, perhaps.
    const Ticket seen = head_;
    look(lock, ended_, seen);
    if (head_ == seen) finished_.wait(lock);
  }
  if (failure_ && failed_ <= ticket) std::rethrow_exception(failure_);
}

void Communicator::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    // A call still queued when the communicator ends will never be met by its peers: it is dropped.
    work_.wait(lock, [&] { return ending_ || (head_ < tail_ && !carrying_); });
    if (ending_) return;
    carry_one(lock, false);
    if (head_ == tail_ && !ending_) look(lock, queued_, tail_);
  }
}

Call Communicator::take_turn(std::unique_lock<std::mutex>& lock, Group group, Collective collective, const char* name) {
  finished_.wait(lock, [&] { return !carrying_ && head_ == tail_; });
  if (failure_) std::rethrow_exception(failure_);
  Call call{.sequence = sequences_[group]++, .collective = collective};
  std::strncpy(call.name, name, sizeof call.name - 1);
  return call;
}

Group Communicator::split(int color) {
  std::unique_lock lock(mutex_);
  const Call call = take_turn(lock, everybody, Collective::split, "split");
  auto transport = transports_[everybody]->split(call, color);
  if (!transport) return nobody;
  transports_.push_back(std::move(transport));
  sequences_.push_back(0);
  inner_calls_.push_back(0);
  return transports_.size() - 1;
}

at::Tensor Communicator::allocate(int64_t bytes, Group group, at::Device device) {
  std::unique_lock lock(mutex_);
  const Call call = take_turn(lock, group, Collective::allocate, "allocate");
  return taken_over(transports_[group]->allocate(call, bytes, device));
}

std::unique_ptr<Mail> Communicator::open_mail(const MailPeers& peers) {
  std::unique_lock lock(mutex_);
  const Call call = take_turn(lock, everybody, Collective::open_mail, "open mail");
  return transports_[everybody]->open_mail(call, peers);
}

}  // namespace trireme
