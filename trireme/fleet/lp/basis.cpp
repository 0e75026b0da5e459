#include "trireme/fleet/lp/basis.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::fleet {

namespace {

constexpr double moves = 1e-9;  // a rate that counts when a job looks for its best answer

}  // namespace

void BlockBasis::resize(size_t new_types, size_t new_jobs) {
  types = new_types;
  jobs = new_jobs;
  value.assign(jobs * types, 0);
  usage.assign(jobs * types, 0);
  demand.assign(jobs, 0);
  closed.assign(jobs * (types + 2), 0);
  tight.assign(types, 0);
  keys_.assign(jobs, {});
  extras_in_.assign(jobs, 0);
  extras_.assign(types, {});
  inverse_.assign(types * types, 0);
  for (auto* each : {&amounts_, &used_, &moved_, &column_, &price}) each->assign(types, 0);
  scratch_.assign(2 * types * types, 0);
}

BlockBasis::Block BlockBasis::block(int job) const {
  const auto keys = keys_[static_cast<size_t>(job)];
  const auto at = [&](int column, double& time, double& amount) {
    time = column == surplus() ? 0 : 1;
    amount = column < idle() ? value[job * types + column] : column == idle() ? 0 : -1;
  };
  Block two;
  at(keys.first, two.time1, two.value1);
  at(keys.second, two.time2, two.value2);
  two.scale = 1 / (two.time1 * two.value2 - two.time2 * two.value1);
  return two;
}

double BlockBasis::charge(int job, int column) const {
  if (column >= idle()) return 0;
  return cost_of(job, column) + price[column] * usage[job * types + column];
}

std::array<double, 2> BlockBasis::row_prices(int job) const {
  const auto keys = keys_[static_cast<size_t>(job)];
  const Block two = block(job);
  const double first = charge(job, keys.first), second = charge(job, keys.second);
  return {(first * two.value2 - second * two.value1) * two.scale, (second * two.time1 - first * two.time2) * two.scale};
}

int BlockBasis::entering_of(int job) const {
  const auto [time_price, value_price] = row_prices(job);
  const double* values = &value[job * types];
  const double* uses = &usage[job * types];
  const double* costs = cost ? cost + job * types : nullptr;
  const uint8_t* shut = &closed[job * (types + 2)];
  double best = -threshold_;
  int entering = -1;
  for (size_t j = 0; j < types; ++j) {
    const double reduced = (costs ? costs[j] : 0) + price[j] * uses[j] - time_price - value_price * values[j];
    if (reduced < best && !shut[j]) best = reduced, entering = static_cast<int>(j);
  }
  if (-time_price < best && !shut[types]) best = -time_price, entering = idle();
  if (value_price < best && !shut[types + 1]) entering = surplus();
  return entering;
}

double BlockBasis::gap(int job) const {
  const auto keys = keys_[static_cast<size_t>(job)];
  const auto [time_price, value_price] = row_prices(job);
  double least = std::numeric_limits<double>::infinity(), largest = 0;
  for (int j = 0; j < idle(); ++j) {
    if (closed[job * (types + 2) + j]) continue;
    largest = std::max(largest, usage[job * types + j]);
    if (j == keys.first || j == keys.second) continue;
    least = std::min(least, charge(job, j) - time_price - value_price * value[job * types + j]);
  }
  if (keys.first != idle() && keys.second != idle()) least = std::min(least, -time_price);
  return largest > 0 ? least / largest : least;
}

bool BlockBasis::keys_fit(int job) const {
  const auto keys = keys_[static_cast<size_t>(job)];
  if (keys.first == keys.second) return false;
  const Block two = block(job);
  if (!std::isfinite(two.scale)) return false;
  const auto amounts = two.solve(1, demand[job]);
  return amounts[0] >= -1e-15 && amounts[1] >= -1e-15;
}

void BlockBasis::respond(int job) {
  if (!keys_fit(job)) {
    int fastest = 0;
    for (int j = 1; j < idle(); ++j) {
      if (value[job * types + j] > value[job * types + fastest]) fastest = j;
    }
    if (demand[job] > 0) {
      set_keys(job, fastest, idle());
    } else {
      set_keys(job, idle(), surplus());
    }
  }
  for (int turn = 0; turn < 4 * (idle() + 2); ++turn) {
    const int entering = entering_of(job);
    if (entering < 0) return;
    const Block two = block(job);
    const auto now = two.solve(1, demand[job]);
    const auto rate =
        entering == surplus() ? two.solve(0, -1) : two.solve(1, entering < idle() ? value[job * types + entering] : 0);
    const double first = rate[0] > moves ? now[0] / rate[0] : std::numeric_limits<double>::infinity();
    const double second = rate[1] > moves ? now[1] / rate[1] : std::numeric_limits<double>::infinity();
    const auto keys = keys_[static_cast<size_t>(job)];
    if (first == second && std::isinf(first)) return;
    if (first < second) {
      set_keys(job, entering, keys.second);
    } else {
      set_keys(job, keys.first, entering);
    }
  }
}

void BlockBasis::set_keys(int job, int first, int second) {
  keys_[static_cast<size_t>(job)] = {static_cast<int16_t>(first), static_cast<int16_t>(second)};
}

void BlockBasis::add_usage(int job, double sign) {
  const auto keys = keys_[static_cast<size_t>(job)];
  const auto amounts = block(job).solve(1, demand[job]);
  if (keys.first < idle()) used_[keys.first] += sign * amounts[0] * usage[job * types + keys.first];
  if (keys.second < idle()) used_[keys.second] += sign * amounts[1] * usage[job * types + keys.second];
}

void BlockBasis::begin(const std::vector<int>& active) {
  std::fill(extras_in_.begin(), extras_in_.end(), 0);
  std::fill(used_.begin(), used_.end(), 0);
  for (int job : active) add_usage(job, 1);
  const auto fullest = std::max_element(used_.begin(), used_.end()) - used_.begin();
  for (int j = 0; j < idle(); ++j) extras_[j] = {j == fullest ? stretch_job : slack_job, j};
  stretched_to_limit_ = false;
  stalled_ = 0;
  refactor();
}

void BlockBasis::begin_idle(const std::vector<int>& active) {
  std::fill(extras_in_.begin(), extras_in_.end(), 0);
  std::fill(used_.begin(), used_.end(), 0);
  for (int job : active) set_keys(job, idle(), surplus());
  for (int j = 0; j < idle(); ++j) extras_[j] = {slack_job, j};
  stretched_to_limit_ = true;
  stalled_ = 0;
  refactor();
}

// The columns of the extras, less what the keys of their jobs give back, make the J × J matrix; Gauss and Jordan invert
// it.
void BlockBasis::refactor() {
  const size_t n = types, width = 2 * n;
  double* rows = scratch_.data();
  std::fill(scratch_.begin(), scratch_.end(), 0);
  for (size_t e = 0; e < n; ++e) {
    auto& extra = extras_[e];
    rows[e * width + n + e] = 1;
    extra.first = extra.second = 0;
    if (extra.job == slack_job) {
      rows[extra.column * width + e] = 1;
    } else if (extra.job == stretch_job) {
      for (size_t j = 0; j < n; ++j) rows[j * width + e] = -1;
    } else {
      std::array<double, 2> own;
      direction(extra.job, extra.column, own);
      extra.first = own[0], extra.second = own[1];
      for (size_t j = 0; j < n; ++j) rows[j * width + e] = column_[j];
    }
  }
  for (size_t pivot = 0; pivot < n; ++pivot) {
    size_t largest = pivot;
    for (size_t row = pivot + 1; row < n; ++row) {
      if (std::abs(rows[row * width + pivot]) > std::abs(rows[largest * width + pivot])) largest = row;
    }
    if (!(std::abs(rows[largest * width + pivot]) > 1e-13)) fail("the price solver lost its basis (a singular matrix)");
    if (largest != pivot)
      std::swap_ranges(&rows[largest * width], &rows[largest * width] + width, &rows[pivot * width]);
    const double scale = 1 / rows[pivot * width + pivot];
    for (size_t i = pivot; i < width; ++i) rows[pivot * width + i] *= scale;
    for (size_t row = 0; row < n; ++row) {
      const double factor = rows[row * width + pivot];
      if (row == pivot || factor == 0) continue;
      for (size_t i = pivot; i < width; ++i) rows[row * width + i] -= factor * rows[pivot * width + i];
    }
  }
  for (size_t e = 0; e < n; ++e) std::copy_n(&rows[e * width + n], n, &inverse_[e * n]);
  recompute_values();
  recompute_prices();
}

void BlockBasis::recompute_values() {
  const double limit = stretched_to_limit_ ? stretch_limit : 0;
  for (size_t e = 0; e < types; ++e) {
    double sum = 0;
    for (size_t j = 0; j < types; ++j) sum += inverse_[e * types + j] * (limit - used_[j]);
    amounts_[e] = sum;
  }
}

void BlockBasis::recompute_prices() {
  std::fill(price.begin(), price.end(), 0);
  for (size_t e = 0; e < types; ++e) {
    const auto& extra = extras_[e];
    double own = extra.job == stretch_job ? stretch_cost : 0;
    if (extra.job >= 0 && cost) {
      const auto keys = keys_[static_cast<size_t>(extra.job)];
      own = cost_of(extra.job, extra.column) - cost_of(extra.job, keys.first) * extra.first -
            cost_of(extra.job, keys.second) * extra.second;
    }
    if (own == 0) continue;
    for (size_t j = 0; j < types; ++j) price[j] -= own * inverse_[e * types + j];
  }
}

void BlockBasis::reprice() {
  stalled_ = 0;
  recompute_prices();
}

// What one unit of a column takes of its job's keys (own) and, when they give way, of the devices (column_).
void BlockBasis::direction(int job, int column, std::array<double, 2>& own) {
  std::fill(column_.begin(), column_.end(), 0);
  if (job == slack_job) {
    column_[column] = 1;
    own = {0, 0};
    return;
  }
  const auto keys = keys_[static_cast<size_t>(job)];
  const double* uses = &usage[job * types];
  own = column == surplus() ? block(job).solve(0, -1)
                            : block(job).solve(1, column < idle() ? value[job * types + column] : 0);
  if (column < idle()) column_[column] += uses[column];
  if (keys.first < idle()) column_[keys.first] -= own[0] * uses[keys.first];
  if (keys.second < idle()) column_[keys.second] -= own[1] * uses[keys.second];
}

std::vector<int> BlockBasis::improvable(const std::vector<int>& active) const {
  std::vector<int> found;
  for (int job : active) {
    if (entering_of(job) >= 0) found.push_back(job);
  }
  return found;
}

void BlockBasis::close_worse(const std::vector<int>& active) {
  constexpr double worse = 1e-9;
  for (int job : active) {
    const auto [time_price, value_price] = row_prices(job);
    uint8_t* shut = &closed[job * (types + 2)];
    for (int j = 0; j < idle(); ++j)
      shut[j] |= charge(job, j) - time_price - value_price * value[job * types + j] > worse;
    shut[types] |= -time_price > worse;
    shut[types + 1] |= value_price > worse;
  }
  for (size_t j = 0; j < types; ++j) tight[j] |= price[j] > worse;
}

double BlockBasis::stretch() const {
  for (size_t e = 0; e < types; ++e) {
    if (extras_[e].job == stretch_job) return amounts_[e];
  }
  return stretched_to_limit_ ? stretch_limit : 0;
}

double BlockBasis::demand_price(int job) const { return row_prices(job)[1]; }

void BlockBasis::shares(const std::vector<int>& active, double* x) const {
  for (int job : active) {
    const auto keys = keys_[static_cast<size_t>(job)];
    auto amounts = block(job).solve(1, demand[job]);
    double* row = x + job * types;
    std::fill_n(row, types, 0);
    if (count_extras(job) > 0) {
      for (size_t e = 0; e < types; ++e) {
        if (extras_[e].job != job) continue;
        amounts[0] -= extras_[e].first * amounts_[e], amounts[1] -= extras_[e].second * amounts_[e];
        if (extras_[e].column < idle()) row[extras_[e].column] = std::clamp(amounts_[e], 0.0, 1.0);
      }
    }
    if (keys.first < idle()) row[keys.first] = std::clamp(amounts[0], 0.0, 1.0);
    if (keys.second < idle()) row[keys.second] = std::clamp(amounts[1], 0.0, 1.0);
  }
}

}  // namespace trireme::fleet
