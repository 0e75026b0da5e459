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
  begin();
}

AgreedOrder::~AgreedOrder() {
  std::unique_lock lock(mutex_);
  ready_ = 0;
  changed_.wait(lock, [&] { return !busy_; });
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
  if (communicator_.size(group_) > 1) return pump();
  // Alone there is nothing to sum.
  if (count == items_.size() && !std::exchange(told_, true)) {
    lock.unlock();
    last_summed_(nullptr);
  }
}

void AgreedOrder::await(size_t item) {
  if (communicator_.size(group_) == 1) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || summed_[item] == items_[item].numel(); });
  if (failure_) std::rethrow_exception(failure_);
}

// A rank begins a round when it has something left to send: so have the others then, or will have.
void AgreedOrder::pump() {
  if (busy_ || failure_) return;
  bool any = false;
  for (size_t i = 0; i < ready_; ++i) any = any || sent_[i] < items_[i].numel();
  if (!any) return;
  busy_ = true;
  count_.fill_(static_cast<int64_t>(ready_));
  try {
    communicator_.all_reduce(
        count_, ReduceOp::min, "agree", [this](std::exception_ptr error) { agreed(error); }, group_);
  } catch (...) {
    fail_all(std::current_exception());
  }
}

void AgreedOrder::agreed(const std::exception_ptr& error) {
  std::unique_lock lock(mutex_);
  if (error) return fail_all(error);
  const auto pieces = next_pieces(items_, sent_, static_cast<size_t>(count_.item<int64_t>()), credit_bytes_);
  for (const auto& piece : pieces) sent_[piece.item] = piece.end;
  try {
    for (const auto& piece : pieces) {
      const bool last = &piece == &pieces.back();
      communicator_.all_reduce(
          items_[piece.item].narrow(0, piece.begin, piece.end - piece.begin), ReduceOp::sum, "reduce piece",
          [this, piece, last](std::exception_ptr problem) { arrived(piece, last, problem); }, group_);
    }
  } catch (...) {
    fail_all(std::current_exception());
  }
}

void AgreedOrder::arrived(const OrderedPiece& piece, bool last, const std::exception_ptr& error) {
  std::unique_lock lock(mutex_);
  if (error) return fail_all(error);
  summed_[piece.item] += piece.end - piece.begin;
  if (last) {
    busy_ = false;
    pump();
  }
  const bool tell = piece.item + 1 == items_.size() && summed_[piece.item] == items_.back().numel() && !told_;
  told_ = told_ || tell;
  changed_.notify_all();
  lock.unlock();
  if (tell) last_summed_(nullptr);
}

void AgreedOrder::fail_all(const std::exception_ptr& error) {
  if (!failure_) failure_ = error;
  busy_ = false;
  changed_.notify_all();
  if (!std::exchange(told_, true)) last_summed_(failure_);
}

}  // namespace trireme
