// What a collective costs, by the model that everybody uses: a message of n bytes takes α + nβ seconds, and combining n
// bytes with n others takes nγ. p ranks. The formulas are Thakur, Rabenseifner and Gropp's (2005); for two trees,
// Sanders, Speck and Träff's (2009).
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// A link as it was measured.
struct LinkCost {
  double alpha_s = 0;           // of a message, whatever its size
  double beta_s_per_byte = 0;   // on the wire
  double gamma_s_per_byte = 0;  // of combining
};

// How an all-reduce is made of messages.
enum class Algorithm : uint8_t {
  doubling,  // everybody exchanges everything with ever farther partners: fewest messages
  halving,   // Rabenseifner's: reduce-scatter by halving, all-gather by doubling
  ring,      // reduce-scatter and all-gather from neighbour to neighbour
  trees,     // up and down two binary trees at once, in pieces
};
const char* name(Algorithm algorithm);

constexpr int64_t wire_piece_bytes = 256 << 10;  // what travels, and is combined, at a time
// Pieces whose receives wait for their messages. A long message sets out when its receiver has said where it may go,
// and that word queues behind what the receiver itself sends: with too few, a slow link stands idle meanwhile.
constexpr int64_t wire_window = 8;

double all_reduce_seconds(Algorithm algorithm, int ranks, int64_t bytes, const LinkCost& link);
double reduce_scatter_seconds(int ranks, int64_t bytes, const LinkCost& link);  // by ring; `bytes` of all parts
double all_gather_seconds(int ranks, int64_t bytes, const LinkCost& link);      // by ring; `bytes` of all parts
double all_to_all_seconds(int ranks, int64_t bytes, const LinkCost& link);      // pairwise; `bytes` that a rank gives
double broadcast_seconds(int ranks, int64_t bytes, const LinkCost& link);       // binomial

// Bytes that each rank must send in an all-reduce at the least.
double least_all_reduce_bytes(int ranks, int64_t bytes);

// The one that the model says is fastest; of equals the earlier.
Algorithm choose_all_reduce(int ranks, int64_t bytes, const LinkCost& link);

// An all-reduce of `hosts` × `local` ranks: reduced and scattered inside each host, each local rank's share between the
// hosts, gathered inside again.
double hierarchical_all_reduce_seconds(int hosts, int local, int64_t bytes, const LinkCost& inside,
                                       const LinkCost& between);

}  // namespace trireme
