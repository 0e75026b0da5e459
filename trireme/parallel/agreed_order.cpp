#include "trireme/parallel/agreed_order.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace trireme {

std::vector<OrderedPiece> next_pieces(const std::vector<at::Tensor>& items, const std::vector<int64_t>& sent,
                                      size_t ready, int64_t credit_bytes) {
  std::vector<OrderedPiece> pieces;
  for (size_t i = ready; i-- > 0 && credit_bytes > 0;) {
    const auto element = static_cast<int64_t>(items[i].element_size());
    const int64_t left = items[i].numel() - sent[i];
    const int64_t affordable = pieces.empty() ? std::max<int64_t>(1, credit_bytes / element) : credit_bytes / element;
    const int64_t count = std::min(left, affordable);
    if (count == 0) continue;
    pieces.push_back({i, sent[i], sent[i] + count});
    credit_bytes -= count * element;
  }
  return pieces;
}

AgreedOrder::AgreedOrder(Communicator& communicator, Group group, std::vector<at::Tensor> items, int64_t credit_bytes,
                         Communicator::Done last_summed)
    : communicator_(communicator),
      group_(group),
      items_(std::move(items)),
      credit_bytes_(credit_bytes),
      last_summed_(std::move(last_summed)),
      count_(at::zeros({1}, at::kLong)) {
  for (const auto& item : items_) lengths_.push_back(item.numel());
  begin();
}

AgreedOrder::~AgreedOrder() {
  std::unique_lock lock(mutex_);
  ready_ = 0;
  changed_.wait(lock, [&] { return calls_ == 0; });
}

void AgreedOrder::begin() {
  std::lock_guard lock(mutex_);
  ready_ = 0;
  told_ = false;
  sent_.assign(items_.size(), 0);
  summed_.assign(items_.size(), 0);
}

void AgreedOrder::ready(size_t count) {
  std::unique_lock lock(mutex_);
  ready_ = count;
  if (communicator_.size(group_) == 1) summed_ = sent_ = lengths_;  // alone there is nothing to sum
  pump();
  tell(lock);
}

void AgreedOrder::tell(std::unique_lock<std::mutex>& lock) {
  const bool due = ready_ == items_.size() && (failure_ || summed_.back() == lengths_.back());
  if (!due || std::exchange(told_, true)) return;
  lock.unlock();
  last_summed_(failure_);
  lock.lock();
}

void AgreedOrder::await(size_t item) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || summed_[item] == lengths_[item]; });
  if (failure_) std::rethrow_exception(failure_);
}

// A rank begins a round when it has something left to send: so have the others then, or will have.
void AgreedOrder::pump() {
  if (busy_ || failure_) return;
  bool any = false;
  for (size_t i = 0; i < ready_; ++i) any = any || sent_[i] < lengths_[i];
  if (!any) return;
  busy_ = true;
  count_.fill_(static_cast<int64_t>(ready_));
  call(count_, ReduceOp::min, "agree", [this] { agreed(); });
}

// The mutex is held, here and when `then` is called, which is left out once anything has failed.
void AgreedOrder::call(const at::Tensor& tensor, ReduceOp op, const char* name, std::function<void()> then) {
  const auto done = [this, then = std::move(then)](std::exception_ptr error) {
    std::unique_lock lock(mutex_);
    if (error && !failure_) failure_ = error;
    if (!failure_) then();
    changed_.notify_all();
    tell(lock);
    --calls_;  // for which the destructor waits
    changed_.notify_all();
  };
  ++calls_;
  try {
    communicator_.all_reduce(tensor, op, name, done, group_);
  } catch (...) {
    --calls_;
    if (!failure_) failure_ = std::current_exception();
  }
}

void AgreedOrder::agreed() {
  const auto pieces = next_pieces(items_, sent_, static_cast<size_t>(count_.item<int64_t>()), credit_bytes_);
  for (const auto& piece : pieces) sent_[piece.item] = piece.end;
  for (const auto& piece : pieces) {
    const auto tensor = items_[piece.item].narrow(0, piece.begin, piece.end - piece.begin);
    call(tensor, ReduceOp::sum, "reduce piece", [this, piece, last = &piece == &pieces.back()] {
      summed_[piece.item] += piece.end - piece.begin;
      if (!last) return;
      busy_ = false;
      pump();
    });
  }
}

}  // namespace trireme
