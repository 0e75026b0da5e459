// Who holds the bytes of a rank: the words in which memory is foreseen, counted and told.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

enum class Owner : uint8_t {
  parameters,   // that the model computes with
  masters,      // that the optimizer changes, where they are others
  gradients,
  optimizer,    // its moments
  versions,     // weights of other steps, for microbatches in flight
  ties,         // gradients of what stages share, put aside until they are summed
  sync,         // what replicas that are not kept equal hold of each other
  residuals,    // what a codec has left unsaid
  codec,        // what it encodes into, and decodes from
  activations,  // what forward passes leave for their backward passes, and need themselves
  working,      // what backward passes and updates need for themselves
  messages,     // from other ranks, as long as somebody needs them, and what ranks share to carry them
  samples,
  teacher,
  checkpoint,  // copies that are being written
  spare,       // memory that was given back and is kept for the next who asks
  other
};
constexpr size_t owners = static_cast<size_t>(Owner::other) + 1;

const char* name(Owner owner);

using BytesByOwner = std::array<int64_t, owners>;
int64_t total(const BytesByOwner& bytes);

// What one owner holds.
struct OwnerBytes {
  std::string owner;
  int64_t bytes = 0;
};

// For people and files: those who hold anything.
std::vector<OwnerBytes> named(const BytesByOwner& bytes);

}  // namespace trireme
