#include "trireme/fleet/share_book.h"

#include <algorithm>

namespace trireme::fleet {

void ShareBook::append(const Row& row, const double* rates, const double* second_rates, double received) {
  rows_.push_back(row);
  const auto count = static_cast<size_t>(types_);
  received_.insert(received_.end(), count, received);
  deficit_.insert(deficit_.end(), count, 0.0);
  share_.insert(share_.end(), count, 0.0);
  rates_[0].insert(rates_[0].end(), rates, rates + types_);
  if (second_rates) {
    rates_[1].insert(rates_[1].end(), second_rates, second_rates + types_);
  } else {
    rates_[1].insert(rates_[1].end(), count, 0.0);
  }
  lists_valid_ = false;
}

void ShareBook::add(int job, int scale, const double* rates) { append({job, -1, scale}, rates, nullptr, round_s_ / 2); }

void ShareBook::add_pair(int older, int newer, int scale, const double* rates, const double* newer_rates) {
  append({older, newer, scale}, rates, newer_rates, 0);
}

const std::vector<int>& ShareBook::remove(const std::vector<int>& new_place) {
  new_row_.assign(rows_.size(), -1);
  size_t kept = 0;
  for (size_t row = 0; row < rows_.size(); ++row) {
    Row moved = rows_[row];
    moved.first = new_place[static_cast<size_t>(moved.first)];
    if (moved.shared()) {
      moved.second = new_place[static_cast<size_t>(moved.second)];
      if (moved.second < 0) continue;
    }
    if (moved.first < 0) continue;
    rows_[kept] = moved;
    new_row_[row] = static_cast<int>(kept);
    if (kept != row) {
      for (auto* values : {&received_, &deficit_, &share_, &rates_[0], &rates_[1]}) {
        std::copy_n(values->begin() + static_cast<int64_t>(cell(row, 0)), types_,
                    values->begin() + static_cast<int64_t>(cell(kept, 0)));
      }
    }
    ++kept;
  }
  rows_.resize(kept);
  for (auto* values : {&received_, &deficit_, &share_, &rates_[0], &rates_[1]}) values->resize(cell(kept, 0));
  lists_valid_ = false;
  return new_row_;
}

void ShareBook::credit(size_t row, int type, double seconds) {
  received_[cell(row, type)] += seconds;
  type_time_[static_cast<size_t>(type)] += seconds;
}

void ShareBook::settle(double elapsed_s) {
  for (int type = 0; type < types_; ++type) type_time_[static_cast<size_t>(type)] = 0;
  for (size_t row = 0; row < rows_.size(); ++row) {
    for (int type = 0; type < types_; ++type) {
      const size_t at = cell(row, type);
      const double had = received_[at] - round_s_ / 2;
      const double promised = rows_[row].solved ? share_[at] * elapsed_s : 0;
      deficit_[at] += promised - had;
      received_[at] = round_s_ / 2;
      type_time_[static_cast<size_t>(type)] += received_[at];
    }
  }
  lists_valid_ = false;
}

void ShareBook::set_shares(std::vector<double> shares) {
  share_ = std::move(shares);
  for (auto& row : rows_) row.solved = true;
  lists_valid_ = false;
}

double ShareBook::priority(size_t row, int type) const {
  const size_t at = cell(row, type);
  if (share_[at] == 0 || !can_run(row, type)) return 0;
  const double all = type_time_[static_cast<size_t>(type)];
  if (all == 0 || received_[at] <= 0) return share_[at] * 1e9;
  return share_[at] / (received_[at] / all);
}

const std::vector<int>& ShareBook::without_priority(int type) {
  auto& list = no_priority_[static_cast<size_t>(type)];
  if (!sorted_[static_cast<size_t>(type)]) {
    std::stable_sort(list.begin(), list.end(), [&](int a, int b) {
      return deficit_[cell(static_cast<size_t>(a), type)] > deficit_[cell(static_cast<size_t>(b), type)];
    });
    sorted_[static_cast<size_t>(type)] = 1;
  }
  return list;
}

void ShareBook::sort_into_lists() {
  positive_.resize(static_cast<size_t>(types_));
  no_priority_.resize(static_cast<size_t>(types_));
  sorted_.assign(static_cast<size_t>(types_), 0);
  for (int type = 0; type < types_; ++type) {
    auto& positive = positive_[static_cast<size_t>(type)];
    auto& others = no_priority_[static_cast<size_t>(type)];
    positive.clear();
    others.clear();
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (!can_run(row, type)) continue;
      (share_[cell(row, type)] > 0 ? positive : others).push_back(static_cast<int>(row));
    }
  }
  lists_valid_ = true;
}

const std::vector<int>& ShareBook::order(int type, bool gaps, const std::vector<char>* taken) {
  if (!lists_valid_) sort_into_lists();
  const auto is_taken = [&](int row_number) {
    const auto& row = rows_[static_cast<size_t>(row_number)];
    return taken &&
           ((*taken)[static_cast<size_t>(row.first)] || (row.shared() && (*taken)[static_cast<size_t>(row.second)]));
  };
  keys_.clear();
  for (int row : positive_[static_cast<size_t>(type)]) {
    if (is_taken(row)) continue;
    const size_t at = cell(static_cast<size_t>(row), type);
    keys_.push_back({priority(static_cast<size_t>(row), type), deficit_[at], share_[at], row});
  }
  std::sort(keys_.begin(), keys_.end(), [](const Key& a, const Key& b) {
    if (a.priority != b.priority) return a.priority > b.priority;
    if (a.deficit != b.deficit) return a.deficit > b.deficit;
    if (a.share != b.share) return a.share > b.share;
    return a.row < b.row;
  });
  order_.clear();
  for (const auto& key : keys_) order_.push_back(key.row);
  if (gaps) {
    const auto& rest = without_priority(type);
    order_.insert(order_.end(), rest.begin(), rest.end());
  }
  return order_;
}

}  // namespace trireme::fleet
