#include "trireme/comm/postbox.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme {

namespace {
constexpr int64_t look_around_ns = 100'000'000;  // at least so often, for ranks that have ended
constexpr int64_t look_at_card_ns = 50'000;      // and so often while copies of a card are awaited
constexpr size_t most_spare_buffers = 64;
}  // namespace

Postbox::Postbox(std::unique_ptr<Mail> mail, Recorder& recorder, PostboxOptions options)
    : mail_(std::move(mail)), recorder_(recorder), options_(options) {
  if (!mail_) return;  // a world of one
  thread_ = std::thread([this, rank = log::rank()] {
    log::set_rank(rank);
    const OwnerScope scope(recorder_.memory(), Owner::messages);
    run();
  });
}

Postbox::~Postbox() {
  ending_ = true;
  if (mail_) mail_->wake();
  if (thread_.joinable()) thread_.join();
  mail_.reset();  // before the buffers that it may still be filling
}

void Postbox::send(int to, MessageTag tag, const at::Tensor& tensor) {
  if (!mail_) fail("a single rank has nobody to send a message to");
  if (tensor.dim() > MessageHeader::most_dims) fail("a message of {} dims cannot be sent", tensor.dim());
  MessageHeader header;
  header.tag = tag;
  header.bytes = static_cast<int64_t>(tensor.nbytes());
  header.sent_ns = monotonic_ns();
  header.step = recorder_.step();
  header.dtype = tensor.scalar_type();
  header.dims = static_cast<int8_t>(tensor.dim());
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) header.sizes[dim] = tensor.size(dim);
  const auto whole = tensor.contiguous();
  DeviceEvent ready;
  ready.record(whole.device());
  recorder_.sent(header.bytes);
  if (whole.is_cpu() || mail_->takes_device(to)) {
    const std::lock_guard one_at_a_time(sending_);  // messages leave in the order of their numbers
    {
      std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      header.sequence = sent_[to]++;
    }
    mail_->send(to, header, whole, std::move(ready));
  } else {
    std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    header.sequence = sent_[to]++;
    leaving_.push_back({to, header, to_host(whole, ready)});
    mail_->wake();
  }
  draw("send", header.sent_ns, options_.rank, to, header);
}

// What has come down from the card goes on its way.
bool Postbox::send_ready() {
  bool any = false;
  while (true) {
    Leaving next;
    {
      std::lock_guard lock(mutex_);
      if (leaving_.empty() || !leaving_.front().message.ready.done()) return any;
      next = std::move(leaving_.front());
      leaving_.pop_front();
    }
    mail_->send(next.to, next.header, next.message.tensor, {});
    any = true;
  }
}

// In the trace a message is an arrow from where it was sent to where it was taken in.
void Postbox::draw(const char* what, int64_t begun_ns, int from, int to, const MessageHeader& header) const {
  auto* trace = recorder_.trace();
  if (!trace) return;
  const auto arrow = arrow_id(from, to, header.step, header.tag.kind * 256 + header.tag.part, header.tag.microbatch);
  trace->add({.track = TraceTrack::communication,
              .name = what,
              .index = header.tag.microbatch,
              .step = header.step,
              .begin_ns = begun_ns,
              .end_ns = monotonic_ns(),
              .arrow_out = from == options_.rank ? arrow : 0,
              .arrow_in = to == options_.rank ? arrow : 0});
}

Postbox::Box Postbox::box_of(int from, MessageTag tag) {
  const auto [entry, fresh] = by_key_.try_emplace(tag.key(from), boxes_.size());
  if (fresh) boxes_.emplace_back();
  return entry->second;
}

Postbox::Box Postbox::open(int from, MessageTag tag, Arrived arrived) {
  std::lock_guard lock(mutex_);
  const Box box = box_of(from, tag);
  boxes_[box].arrived = std::move(arrived);
  return box;
}

void Postbox::expect(Box box) {
  PendingTensor message;
  std::unique_lock lock(mutex_);
  auto& slot = boxes_[box];
  const auto untold = std::exchange(slot.untold, nullptr);
  const auto failure = failure_ ? failure_ : untold;
  if (!failure) {
    if (slot.waiting.empty()) {
      slot.expected = true;
      return;
    }
    message = std::move(slot.waiting.front());
    slot.waiting.pop_front();
  }
  lock.unlock();
  slot.arrived(std::move(message), failure);
}

void Postbox::listen(int from, MessageTag tag, Take take, Failed failed) {
  Box box;
  {
    std::lock_guard lock(mutex_);
    box = box_of(from, tag);
    boxes_[box].listened = true;
  }
  open(from, tag, [this, box, take = std::move(take), failed = std::move(failed)](auto message, auto error) {
    if (error) return failed(error);
    take(message.take());
    expect(box);
  });
  expect(box);
}

// A buffer that nobody holds any more, or a new one. For a card torch keeps pinned ones, and knows what copies read
// them.
at::Tensor Postbox::take_buffer(const MessageHeader& header) {
  if (!options_.device.is_cpu()) return host_memory(header.shape(), header.dtype, options_.device);
  for (auto& buffer : buffers_) {
    if (buffer.use_count() == 1 && buffer.storage().use_count() == 1 && buffer.scalar_type() == header.dtype &&
        buffer.sizes() == header.shape()) {
      return buffer;
    }
  }
  auto buffer = at::empty(header.shape(), at::TensorOptions().dtype(header.dtype));
  if (buffers_.size() < most_spare_buffers) {
    buffers_.push_back(buffer);
  } else {
    // Shapes come and go: forget one that is free.
    const auto spare = std::find_if(buffers_.begin(), buffers_.end(), [](const auto& one) {
      return one.use_count() == 1 && one.storage().use_count() == 1;
    });
    if (spare != buffers_.end()) *spare = buffer;
  }
  return buffer;
}

void Postbox::check(int from, const MessageHeader& header) {
  header.check(from);
  const uint64_t expected = received_[from]++;
  if (header.sequence != expected)
    fail("message {} from rank {} came where {} was due", header.sequence, from, expected);
}

void* Postbox::place_for(int from, const MessageHeader& header) {
  std::lock_guard lock(mutex_);
  check(from, header);
  auto& slot = boxes_[box_of(from, header.tag)];
  slot.arriving = take_buffer(header);
  arriving_ns_ = monotonic_ns();
  return slot.arriving.data_ptr();
}

void Postbox::arrived(int from, const MessageHeader& header) {
  Box box;
  at::Tensor tensor;
  {
    std::lock_guard lock(mutex_);
    box = box_of(from, header.tag);
    tensor = std::exchange(boxes_[box].arriving, {});
  }
  draw("receive", arriving_ns_, from, options_.rank, header);
  deliver(box, to_device(tensor, options_.device));
}

void Postbox::arrived(int from, const MessageHeader& header, PendingTensor message) {
  Box box;
  {
    std::lock_guard lock(mutex_);
    check(from, header);
    box = box_of(from, header.tag);
  }
  draw("receive", monotonic_ns(), from, options_.rank, header);
  deliver(box, std::move(message));
}

void Postbox::deliver(Box box, PendingTensor message) {
  std::unique_lock lock(mutex_);
  if (options_.jitter_s > 0 || (options_.settled && !message.ready.done())) {
    const double share = options_.jitter_s > 0 ? uniform(Key{options_.seed}.with("jitter"), delays_++) : 0;
    const auto delay_ns = static_cast<int64_t>(share * options_.jitter_s * 1e9);
    delayed_.push_back({monotonic_ns() + delay_ns, box, std::move(message)});
    return;
  }
  hand_over(lock, box, std::move(message));
}

void Postbox::hand_over(std::unique_lock<std::mutex>& lock, Box box, PendingTensor message) {
  auto& slot = boxes_[box];
  if (!slot.expected) {
    slot.waiting.push_back(std::move(message));
    return;
  }
  slot.expected = false;
  lock.unlock();
  slot.arrived(std::move(message), nullptr);
}

bool Postbox::is_due(const Delayed& one, int64_t now_ns) const {
  return one.due_ns <= now_ns && (!options_.settled || one.message.ready.done());
}

// Those of one box must keep their order; others may overtake each other.
bool Postbox::deliver_due() {
  bool any = false;
  while (true) {
    std::unique_lock lock(mutex_);
    const int64_t now = monotonic_ns();
    const auto due = std::find_if(delayed_.begin(), delayed_.end(), [&](const auto& one) { return is_due(one, now); });
    if (due == delayed_.end()) return any;
    const auto first = std::find_if(delayed_.begin(), due, [&](const auto& one) { return one.box == due->box; });
    Delayed next = std::move(*first);
    delayed_.erase(first);
    hand_over(lock, next.box, std::move(next.message));
    any = true;
  }
}

bool Postbox::poll() {
  try {
    bool moved = send_ready();
    moved |= mail_->poll(*this);
    return deliver_due() || moved;
  } catch (...) {
    fail_all(std::current_exception());
    return false;
  }
}

bool Postbox::help(bool) {
  if (!mail_) return false;
  const OwnerScope scope(Owner::messages);
  const std::unique_lock lock(polling_, std::try_to_lock);
  return lock.owns_lock() && poll();
}

bool Postbox::ends() {
  std::lock_guard lock(mutex_);
  return failure_ || (ending_ && leaving_.empty());
}

void Postbox::run() {
  while (!ends()) {
    int64_t deadline_ns = monotonic_ns() + look_around_ns;
    {
      std::lock_guard lock(polling_);
      if (poll()) continue;
    }
    {
      std::lock_guard lock(mutex_);
      for (const auto& one : delayed_) deadline_ns = std::min(deadline_ns, one.due_ns);
      if (!leaving_.empty() || (options_.settled && !delayed_.empty()))
        deadline_ns = std::min(deadline_ns, monotonic_ns() + look_at_card_ns);
    }
    try {
      mail_->sleep(deadline_ns);
    } catch (...) {
      fail_all(std::current_exception());
    }
  }
}

void Postbox::cancel(const std::exception_ptr&) {
  tell_all(std::make_exception_ptr(Error(Error::Kind::failed, "the step was given up before its messages came")));
}

void Postbox::fail_all(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }
  tell_all(error);
}

void Postbox::tell_all(const std::exception_ptr& error) {
  std::vector<Slot*> waiting;
  {
    std::lock_guard lock(mutex_);
    for (auto& slot : boxes_) {
      if (slot.expected) waiting.push_back(&slot);
      if (slot.listened && !slot.expected) slot.untold = error;
      slot.expected = false;
    }
  }
  for (auto* slot : waiting) slot->arrived({}, error);
}

}  // namespace trireme
