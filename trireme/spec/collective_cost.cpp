#include "trireme/spec/collective_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace trireme {

namespace {

// Rounds that double what a rank has heard of: log2 of the largest power of two within p, and the ranks beyond it.
int rounds_within(int ranks) { return std::bit_width(static_cast<unsigned>(ranks)) - 1; }
bool is_power_of_two(int ranks) { return std::has_single_bit(static_cast<unsigned>(ranks)); }
int rounds_covering(int ranks) { return rounds_within(ranks) + (is_power_of_two(ranks) ? 0 : 1); }

}  // namespace

const char* name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::doubling: return "doubling";
    case Algorithm::halving: return "halving";
    case Algorithm::ring: return "ring";
    case Algorithm::trees: return "trees";
  }
  return "?";
}

double all_reduce_seconds(Algorithm algorithm, int ranks, int64_t bytes, const LinkCost& link) {
  if (ranks <= 1) return 0;
  const double a = link.alpha_s, b = link.beta_s_per_byte, c = link.gamma_s_per_byte, n = static_cast<double>(bytes);
  const double p = ranks, rounds = rounds_within(ranks);
  // Ranks beyond a power of two give what they have to a partner first, and get the result back at the end.
  const double folding = is_power_of_two(ranks) ? 0 : 2 * (a + n * b) + n * c;
  const double q = std::exp2(rounds);
  switch (algorithm) {
    case Algorithm::doubling: return rounds * (a + n * b + n * c) + folding;
    case Algorithm::halving: {
      // Partners send to each other at once, each behind the word for which the other waits, unless all that a round
      // brings has been asked for before it begins.
      const bool at_once = n / 2 <= static_cast<double>(wire_window * wire_piece_bytes);
      return 2 * rounds * a + (q - 1) / q * n * ((at_once ? 2 : 3) * b + c) + folding;
    }
    case Algorithm::ring: return 2 * (p - 1) * a + (p - 1) / p * n * (2 * b + c);
    case Algorithm::trees: {
      // Each tree carries half; a piece passes a level while the next follows. A rank sends n up and n down, and
      // combines what two children bring in the one tree where it has some.
      const double half = n / 2, pieces = std::max(1.0, std::ceil(half / static_cast<double>(wire_piece_bytes)));
      const double depth = rounds_covering(ranks), piece = half / pieces;
      const double step = a + piece * b, combine = piece * c;
      return (depth + pieces - 1) * 2 * (step + combine) + (depth + pieces - 1) * 2 * step;
    }
  }
  return 0;
}

double reduce_scatter_seconds(int ranks, int64_t bytes, const LinkCost& link) {
  const double p = ranks, n = static_cast<double>(bytes);
  return ranks <= 1 ? 0 : (p - 1) * link.alpha_s + (p - 1) / p * n * (link.beta_s_per_byte + link.gamma_s_per_byte);
}

double all_gather_seconds(int ranks, int64_t bytes, const LinkCost& link) {
  const double p = ranks, n = static_cast<double>(bytes);
  return ranks <= 1 ? 0 : (p - 1) * link.alpha_s + (p - 1) / p * n * link.beta_s_per_byte;
}

double all_to_all_seconds(int ranks, int64_t bytes, const LinkCost& link) {
  return all_gather_seconds(ranks, bytes, link);
}

double broadcast_seconds(int ranks, int64_t bytes, const LinkCost& link) {
  return ranks <= 1 ? 0 : rounds_covering(ranks) * (link.alpha_s + static_cast<double>(bytes) * link.beta_s_per_byte);
}

double least_all_reduce_bytes(int ranks, int64_t bytes) {
  return ranks <= 1 ? 0 : 2.0 * (ranks - 1) / ranks * static_cast<double>(bytes);
}

Algorithm choose_all_reduce(int ranks, int64_t bytes, const LinkCost& link) {
  Algorithm best = Algorithm::doubling;
  // Of equals the first: between two ranks ring and halving send the same, but a ring makes no break in the middle.
  for (const auto one : {Algorithm::ring, Algorithm::halving, Algorithm::trees}) {
    if (all_reduce_seconds(one, ranks, bytes, link) < all_reduce_seconds(best, ranks, bytes, link)) best = one;
  }
  return best;
}

double hierarchical_all_reduce_seconds(int hosts, int local, int64_t bytes, const LinkCost& inside,
                                       const LinkCost& between) {
  const int64_t share = bytes / std::max(1, local);
  return reduce_scatter_seconds(local, bytes, inside) +
         all_reduce_seconds(choose_all_reduce(hosts, share, between), hosts, share, between) +
         all_gather_seconds(local, bytes, inside);
}

}  // namespace trireme
