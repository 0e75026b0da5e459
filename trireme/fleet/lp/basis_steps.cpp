#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/fleet/lp/basis.h"

namespace trireme::fleet {

namespace {

constexpr double improves = 1e-12;   // a reduced cost below minus this, to begin with
constexpr double moves = 1e-9;       // a rate that counts in the ratio test
constexpr double slackness = 1e-12;  // amounts may fall that far below 0 for a better pivot
constexpr int64_t stalls_at = 400;   // steps of length 0 in a row before columns are taken at random

}  // namespace

// Two passes (after Harris): first how far the step may go, then the steadiest pivot within that.
void BlockBasis::consider(Leaving& best, bool choosing, double amount, double decrease, int extra, int job,
                          int key) const {
  if (decrease <= moves) return;
  if (!choosing) {
    best.bound = std::min(best.bound, (std::max(amount, 0.0) + slackness) / decrease);
  } else if (amount <= best.bound * decrease && decrease > best.rate) {
    best.rate = decrease, best.step = std::max(0.0, amount / decrease), best.extra = extra, best.job = job,
    best.key = key;
  }
}

BlockBasis::Leaving BlockBasis::ratio_test(int job, const std::array<double, 2>& own) {
  for (size_t e = 0; e < types; ++e) {
    double sum = 0;
    for (size_t j = 0; j < types; ++j) sum += inverse_[e * types + j] * column_[j];
    moved_[e] = sum;
  }
  Leaving best;
  for (const bool choosing : {false, true}) {
    const auto keys_of = [&](int other, double first_decrease, double second_decrease) {
      auto amounts = block(other).solve(1, demand[other]);
      if (count_extras(other) > 0) {
        for (size_t e = 0; e < types; ++e) {
          if (extras_[e].job != other) continue;
          amounts[0] -= extras_[e].first * amounts_[e], amounts[1] -= extras_[e].second * amounts_[e];
          first_decrease -= extras_[e].first * moved_[e], second_decrease -= extras_[e].second * moved_[e];
        }
      }
      consider(best, choosing, amounts[0], first_decrease, -1, other, 0);
      consider(best, choosing, amounts[1], second_decrease, -1, other, 1);
    };
    if (job >= 0) keys_of(job, own[0], own[1]);
    for (size_t e = 0; e < types; ++e) {
      const int place = static_cast<int>(e), other = extras_[e].job;
      consider(best, choosing, amounts_[e], moved_[e], place, -1, -1);
      if (other == stretch_job) consider(best, choosing, stretch_limit - amounts_[e], -moved_[e], place, -1, -1);
      if (other < 0 || other == job) continue;
      bool first_of_job = true;
      for (size_t before = 0; before < e; ++before) first_of_job &= extras_[before].job != other;
      if (first_of_job) keys_of(other, 0, 0);
    }
  }
  return best;
}

void BlockBasis::exchange(int job, int column, const std::array<double, 2>& own, const Leaving& leaving) {
  const auto take_place = [&](int place) {
    if (extras_[place].job >= 0) --extras_in_[extras_[place].job];
    if (job >= 0) ++extras_in_[job];
    extras_[place] = {job, column};
  };
  const auto replace_key = [&](int of, int with) {
    const auto keys = keys_[static_cast<size_t>(of)];
    add_usage(of, -1);
    set_keys(of, leaving.key == 0 ? with : keys.first, leaving.key == 1 ? with : keys.second);
    add_usage(of, 1);
  };
  if (leaving.extra >= 0) {
    stretched_to_limit_ |= extras_[leaving.extra].job == stretch_job;
    take_place(leaving.extra);
    return refactor();
  }
  // A key leaves: the entering column itself takes its place, or an extra of that job, whichever is steadier.
  double largest = leaving.job == job ? std::abs(own[leaving.key]) : 0;
  int place = -1;
  for (size_t e = 0; e < types; ++e) {
    const double size = std::abs(leaving.key == 0 ? extras_[e].first : extras_[e].second);
    if (extras_[e].job == leaving.job && size > largest) largest = size, place = static_cast<int>(e);
  }
  if (place < 0) {
    replace_key(job, column);
    if (count_extras(job) > 0) return refactor();
    return recompute_values();
  }
  replace_key(leaving.job, extras_[place].column);
  take_place(place);
  refactor();
}

void BlockBasis::step(int job, int column) {
  std::array<double, 2> own;
  direction(job, column, own);
  const auto leaving = ratio_test(job, own);
  if (!leaving.found()) fail("the price solver found a direction without end in a bounded problem");
  stalled_ = leaving.step > 1e-14 ? 0 : stalled_ + 1;
  ++steps;
  exchange(job, column, own, leaving);
}

void BlockBasis::optimize(const std::vector<int>& candidates) {
  const int64_t before = steps, usual = 1000 + 20 * static_cast<int64_t>(candidates.size() + types);
  uint64_t random = 1;
  threshold_ = improves;
  for (bool changed = true; changed;) {
    changed = false;
    // Where steps of length 0 pile up, or gains are no more than rounding, only larger gains count.
    threshold_ =
        std::min(1e-8, improves * std::pow(10.0, static_cast<double>((steps - before) / usual + stalled_ / stalls_at)));
    if (steps - before > 20 * usual) fail("the price solver did not come to an end after {} steps", steps);
    for (int j = 0; j < idle(); ++j) {
      if (price[j] < -threshold_ && !tight[j]) step(slack_job, j), changed = true;
    }
    for (int job : candidates) {
      // Skipping jobs at random leaves every cycle.
      random = random * 6364136223846793005u + 1442695040888963407u;
      if (stalled_ > stalls_at && (random >> 62) != 0) {
        changed |= entering_of(job) >= 0;
        continue;
      }
      for (int turn = 0; turn < 4; ++turn) {
        const int entering = entering_of(job);
        if (entering < 0) break;
        step(job, entering);
        if (stretch_enough > 0 && stretch() <= stretch_enough) return;
        changed = true;
      }
    }
  }
}

}  // namespace trireme::fleet
