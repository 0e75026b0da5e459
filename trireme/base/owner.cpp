#include "trireme/base/owner.h"

#include <numeric>

namespace trireme {

const char* name(Owner owner) {
  switch (owner) {
    case Owner::parameters: return "parameters";
    case Owner::masters: return "masters";
    case Owner::gradients: return "gradients";
    case Owner::optimizer: return "optimizer";
    case Owner::versions: return "versions";
    case Owner::ties: return "ties";
    case Owner::sync: return "sync";
    case Owner::residuals: return "residuals";
    case Owner::codec: return "codec";
    case Owner::activations: return "activations";
    case Owner::working: return "working";
    case Owner::messages: return "messages";
    case Owner::samples: return "samples";
    case Owner::teacher: return "teacher";
    case Owner::checkpoint: return "checkpoint";
    case Owner::spare: return "spare";
    case Owner::other: break;
  }
  return "other";
}

int64_t total(const BytesByOwner& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

std::vector<OwnerBytes> named(const BytesByOwner& bytes) {
  std::vector<OwnerBytes> all;
  for (size_t i = 0; i < owners; ++i) {
    if (bytes[i] != 0) all.push_back({name(static_cast<Owner>(i)), bytes[i]});
  }
  return all;
}

}  // namespace trireme
