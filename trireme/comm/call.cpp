#include "trireme/comm/call.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme {
namespace {

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::broadcast: return "broadcast";
    case Collective::all_gather: return "all_gather";
    case Collective::barrier: return "barrier";
    case Collective::reduce: return "reduce";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::gather_parts: return "gather_parts";
    case Collective::all_to_all: return "all_to_all";
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
         dtype == other.dtype && on_card == other.on_card && root == other.root && parts == other.parts;
}

std::string Call::describe() const {
  std::string arguments;
  bool has_tensor = true;
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: arguments = fmt::format("{}, ", name_of(op)); break;
    case Collective::reduce: arguments = fmt::format("{}, to rank {}, ", name_of(op), root); break;
    case Collective::broadcast: arguments = fmt::format("from rank {}, ", root); break;
    case Collective::all_gather:
    case Collective::gather_parts:
    case Collective::all_to_all: break;
    default: has_tensor = false;
  }
  // What each gives to the others is its own affair in an all-to-all.
  if (has_tensor) arguments += fmt::format("{}{}", c10::toString(dtype), on_card ? " on a card" : "");
  if (has_tensor && collective != Collective::all_to_all) arguments += fmt::format(", {} elements", count);
  if (parts != 0) arguments += fmt::format(" in parts {:08x}", static_cast<uint32_t>(parts));
  const std::string_view text(name, strnlen(name, sizeof name));
  return fmt::format("operation {}: {}({}) \"{}\"", sequence, name_of(collective), arguments, text);
}

Offsets even_offsets(int64_t count, int ranks) {
  Offsets offsets;
  for (int rank = 0; rank <= ranks; ++rank) offsets.push_back(count * rank / ranks);
  return offsets;
}

int64_t part_begin(int64_t count, int rank, int ranks, int64_t element_bytes) {
  const int64_t line = std::max<int64_t>(1, 64 / element_bytes), lines = (count + line - 1) / line;
  return std::min(count, lines * rank / ranks * line);
}

Offsets even_parts(int64_t count, int ranks, int64_t element_bytes) {
  Offsets offsets;
  for (int rank = 0; rank <= ranks; ++rank) offsets.push_back(part_begin(count, rank, ranks, element_bytes));
  return offsets;
}

uint64_t fingerprint_of(const Offsets& offsets) {
  Key key = Key{}.with("parts");
  for (const int64_t offset : offsets) key = key.with(static_cast<uint64_t>(offset));
  return key.value;
}

void check_agreement(const std::vector<Call>& calls) {
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    if (calls[rank].agrees_with(calls[0])) continue;
    fail("ranks disagree on what to communicate: rank 0 called {}, rank {} called {}", calls[0].describe(), rank,
         calls[rank].describe());
  }
}

void check_exchange(const std::vector<int64_t>& parts, int ranks) {
  const auto ends = static_cast<size_t>(ranks) + 1;
  const auto bytes = [&](size_t row, size_t r) { return parts[row * ends + r + 1] - parts[row * ends + r]; };
  for (size_t row = 0; row < 2 * (ends - 1); ++row) {
    const auto* begin = &parts[row * ends];
    if (*begin < 0 || !std::is_sorted(begin, begin + ends))
      fail("rank {} shows parts of an all_to_all that cannot be true: its memory may be faulty", row / 2);
  }
  for (size_t from = 0; from + 1 < ends; ++from) {
    for (size_t to = 0; to + 1 < ends; ++to) {
      const int64_t given = bytes(2 * from, to), taken = bytes(2 * to + 1, from);
      if (given != taken)
        fail("ranks disagree on an all_to_all: rank {} gives rank {} {} bytes, which expects {}", from, to, given,
             taken);
    }
  }
}

}  // namespace trireme
