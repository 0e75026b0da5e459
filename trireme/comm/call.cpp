#include "trireme/comm/call.h"

#include "trireme/base/error.h"

namespace trireme {
namespace {

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::broadcast: return "broadcast";
    case Collective::all_gather: return "all_gather";
    case Collective::barrier: return "barrier";
    case Collective::allocate: return "allocate";
    case Collective::split: return "split";
    case Collective::open_mail: return "open_mail";
  }
  return "?";
}

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::max: return "max";
    case ReduceOp::min: return "min";
  }
  return "?";
}

}  // namespace

bool Call::agrees_with(const Call& other) const {
  return sequence == other.sequence && count == other.count && collective == other.collective && op == other.op &&
         dtype == other.dtype && root == other.root;
}

std::string Call::describe() const {
  std::string arguments;
  if (collective == Collective::all_reduce) arguments = fmt::format("{}, ", name_of(op));
  if (collective == Collective::broadcast) arguments = fmt::format("from rank {}, ", root);
  const bool has_tensor = collective == Collective::all_reduce || collective == Collective::broadcast ||
                          collective == Collective::all_gather;
  if (has_tensor) arguments += fmt::format("{}, {} elements", c10::toString(dtype), count);
  return fmt::format("operation {}: {}({}) \"{}\"", sequence, name_of(collective), arguments, name);
}

void check_agreement(const std::vector<Call>& calls) {
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    if (calls[rank].agrees_with(calls[0])) continue;
    fail("ranks disagree on what to communicate: rank 0 called {}, rank {} called {}", calls[0].describe(), rank,
         calls[rank].describe());
  }
}

}  // namespace trireme
