#include "trireme/comm/algorithms.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/comm/reduction.h"

namespace trireme {

int64_t WireCollectives::element(const Operand& operand) const {
  return static_cast<int64_t>(c10::elementSize(operand.dtype));
}

std::byte* WireCollectives::scratch(int which, int64_t bytes) {
  auto& memory = scratch_[which];
  if (static_cast<int64_t>(memory.size()) < bytes) memory.resize(static_cast<size_t>(bytes));
  return memory.data();
}

void WireCollectives::finish_sends() {
  for (const auto posted : sends_) wire_.finish(posted);
  sends_.clear();
}

void WireCollectives::combine(const Operand& operand, int64_t begin, int64_t end, const std::byte* with) const {
  std::byte* mine = operand.data + begin * element(operand);
  const void* sources[] = {mine, with};
  void* targets[] = {mine};
  trireme::reduce(operand.dtype, operand.op, sources, targets, end - begin);
}

void WireCollectives::exchange(int to, const std::byte* out, int64_t out_bytes, int from, std::byte* in,
                               int64_t in_bytes) {
  const auto incoming = in_bytes > 0 ? wire_.receive(from, in, in_bytes) : 0;
  const auto outgoing = out_bytes > 0 ? wire_.send(to, out, out_bytes) : 0;
  if (in_bytes > 0) wire_.finish(incoming);
  if (out_bytes > 0) wire_.finish(outgoing);
}

void WireCollectives::exchange_and_combine(const Operand& operand, int to, Span out, int from, Span in) {
  const int64_t size = element(operand), piece = std::max<int64_t>(1, piece_bytes_ / size);
  const auto pieces = [piece](Span span) { return (span.end - span.begin + piece - 1) / piece; };
  const auto piece_of = [piece](Span span, int64_t i) {
    return Span{span.begin + i * piece, std::min(span.begin + (i + 1) * piece, span.end)};
  };
  const int64_t sent = pieces(out), expected = pieces(in);
  for (int64_t i = 0; i < sent; ++i) {
    const auto [begin, end] = piece_of(out, i);
    sends_.push_back(wire_.send(to, operand.data + begin * size, (end - begin) * size));
  }
  std::byte* slots = scratch(0, std::min(wire_window, expected) * piece * size);
  const auto slot = [&](int64_t i) { return slots + i % wire_window * piece * size; };
  Wire::Posted incoming[wire_window] = {};
  for (int64_t i = 0, posted = 0; i < expected; ++i) {
    for (; posted < std::min(expected, i + wire_window); ++posted) {
      const auto [begin, end] = piece_of(in, posted);
      incoming[posted % wire_window] = wire_.receive(from, slot(posted), (end - begin) * size);
    }
    wire_.finish(incoming[i % wire_window]);
    const auto [begin, end] = piece_of(in, i);
    combine(operand, begin, end, slot(i));
  }
  finish_sends();
}

void WireCollectives::all_reduce(Algorithm algorithm, const Operand& operand) {
  if (size_ == 1 || operand.count == 0) return;
  switch (algorithm) {
    case Algorithm::doubling: return by_doubling(operand);
    case Algorithm::halving: return by_halving(operand);
    case Algorithm::ring: return by_ring(operand);
    case Algorithm::trees: return by_trees(operand);
  }
}

int WireCollectives::fold(const Operand& operand) {
  const int extra = size_ - static_cast<int>(std::bit_floor(static_cast<unsigned>(size_)));
  if (rank_ >= 2 * extra) return rank_ - extra;
  const Span all{0, operand.count}, none{0, 0};
  if (rank_ % 2 == 0) {
    exchange_and_combine(operand, rank_ + 1, all, rank_ + 1, none);
    return -1;
  }
  exchange_and_combine(operand, rank_ - 1, none, rank_ - 1, all);
  return rank_ / 2;
}

void WireCollectives::unfold(const Operand& operand) {
  const int extra = size_ - static_cast<int>(std::bit_floor(static_cast<unsigned>(size_)));
  if (rank_ >= 2 * extra) return;
  const int64_t bytes = operand.count * element(operand);
  if (rank_ % 2 == 0) {
    exchange(rank_ + 1, nullptr, 0, rank_ + 1, operand.data, bytes);
  } else {
    exchange(rank_ - 1, operand.data, bytes, rank_ - 1, nullptr, 0);
  }
}

int WireCollectives::unfolded(int place) const {
  const int extra = size_ - static_cast<int>(std::bit_floor(static_cast<unsigned>(size_)));
  return place < extra ? 2 * place + 1 : place + extra;
}

// a + b and b + a have the same bits, so that partners agree.
void WireCollectives::by_doubling(const Operand& operand) {
  const int places = static_cast<int>(std::bit_floor(static_cast<unsigned>(size_)));
  const int64_t bytes = operand.count * element(operand);
  const int place = fold(operand);
  for (int distance = 1; place >= 0 && distance < places; distance *= 2) {
    const int partner = unfolded(place ^ distance);
    std::byte* theirs = scratch(0, bytes);
    exchange(partner, operand.data, bytes, partner, theirs, bytes);
    combine(operand, 0, operand.count, theirs);
  }
  unfold(operand);
}

void WireCollectives::by_halving(const Operand& operand) {
  const int places = static_cast<int>(std::bit_floor(static_cast<unsigned>(size_)));
  const int64_t size = element(operand);
  const int place = fold(operand);
  std::vector<Span> windows{{0, operand.count}};  // before each round
  for (int distance = places / 2; place >= 0 && distance > 0; distance /= 2) {
    const int partner = unfolded(place ^ distance);
    const auto [begin, end] = windows.back();
    const int64_t middle = begin + (end - begin) / 2;
    const Span lower{begin, middle}, upper{middle, end};
    const bool low = (place & distance) == 0;
    exchange_and_combine(operand, partner, low ? upper : lower, partner, low ? lower : upper);
    windows.push_back(low ? lower : upper);
  }
  for (int distance = 1; place >= 0 && distance < places; distance *= 2) {
    const int partner = unfolded(place ^ distance);
    const auto mine = windows.back();
    windows.pop_back();
    const auto both = windows.back();
    const Span theirs = mine.begin == both.begin ? Span{mine.end, both.end} : Span{both.begin, mine.begin};
    exchange(partner, operand.data + mine.begin * size, (mine.end - mine.begin) * size, partner,
             operand.data + theirs.begin * size, (theirs.end - theirs.begin) * size);
  }
  unfold(operand);
}

void WireCollectives::reduce_scatter(const Operand& operand, const Offsets& offsets) {
  const int next = (rank_ + 1) % size_, last = (rank_ + size_ - 1) % size_;
  const auto part = [&](int number) {
    const auto r = static_cast<size_t>(((number % size_) + size_) % size_);
    return Span{offsets[r], offsets[r + 1]};
  };
  for (int step = 0; step + 1 < size_; ++step) {
    exchange_and_combine(operand, next, part(rank_ - 1 - step), last, part(rank_ - 2 - step));
  }
}

void WireCollectives::all_gather(std::byte* data, const Offsets& offsets) {
  const int next = (rank_ + 1) % size_, last = (rank_ + size_ - 1) % size_;
  const auto part = [&](int number) { return static_cast<size_t>(((number % size_) + size_) % size_); };
  for (int step = 0; step + 1 < size_; ++step) {
    const size_t out = part(rank_ - step), in = part(rank_ - 1 - step);
    exchange(next, data + offsets[out], offsets[out + 1] - offsets[out], last, data + offsets[in],
             offsets[in + 1] - offsets[in]);
  }
}

// What a rank has heard of doubles with each round: its own part and those of the ranks after it.
void WireCollectives::all_gather_small(std::byte* data, int64_t part_bytes) {
  if (part_bytes == 0) return;
  const auto bytes = [&](int parts) { return static_cast<size_t>(parts * part_bytes); };
  std::byte* heard = scratch(0, part_bytes * size_);
  std::memcpy(heard, data + rank_ * part_bytes, bytes(1));
  for (int parts = 1; parts < size_; parts *= 2) {
    const int more = std::min(parts, size_ - parts);
    exchange((rank_ + size_ - parts) % size_, heard, more * part_bytes, (rank_ + parts) % size_,
             heard + parts * part_bytes, more * part_bytes);
  }
  for (int i = 0; i < size_; ++i) {
    std::memcpy(data + (rank_ + i) % size_ * part_bytes, heard + i * part_bytes, bytes(1));
  }
}

// What comes in one step goes on in the next: each piece at once, so that the wire never waits for the end of a step.
void WireCollectives::by_ring(const Operand& operand) {
  const int next = (rank_ + 1) % size_, last = (rank_ + size_ - 1) % size_;
  const int64_t size = element(operand), piece = std::max<int64_t>(1, piece_bytes_ / size);
  const auto offsets = even_offsets(operand.count, size_);
  const int scattering = size_ - 1, steps = 2 * scattering;
  const auto each_piece = [&](int part, auto work) {
    const auto r = static_cast<size_t>(((part % size_) + size_) % size_);
    for (int64_t begin = offsets[r]; begin < offsets[r + 1]; begin += piece)
      work(begin, std::min(begin + piece, offsets[r + 1]));
  };
  ring_.clear();
  for (int step = 0; step < steps; ++step) {
    // In the first half a sum that still lacks some ranks, in the second one that is whole.
    const int part = step < scattering ? rank_ - 2 - step : rank_ - 1 - (step - scattering);
    each_piece(part, [&](int64_t begin, int64_t end) { ring_.push_back({begin, end, step, 0}); });
  }
  // Sums on their way leave from where the whole ones will come to: these are awaited when those have left.
  unfinished_.clear();
  size_t left = 0;
  const auto send_on = [&](int64_t begin, int64_t end, bool whole) {
    const auto posted = wire_.send(next, operand.data + begin * size, (end - begin) * size);
    (whole ? sends_ : unfinished_).push_back(posted);
  };
  constexpr size_t ahead = 4;  // receives that wait for their messages; more of them fill queues, and gain nothing
  std::byte* slots = scratch(0, static_cast<int64_t>(ahead) * piece * size);
  const auto slot = [&](size_t i) { return slots + static_cast<int64_t>(i % ahead) * piece * size; };
  const auto post = [&](size_t i) {
    auto& one = ring_[i];
    const bool whole = one.step >= scattering;
    if (whole) wire_.finish(unfinished_[left++]);
    one.posted = wire_.receive(last, whole ? operand.data + one.begin * size : slot(i), (one.end - one.begin) * size);
  };
  each_piece(rank_ - 1, [&](int64_t begin, int64_t end) { send_on(begin, end, false); });
  size_t posted = 0;
  for (size_t i = 0; i < ring_.size(); ++i) {
    const auto whole_next = [&] { return posted < ring_.size() && ring_[posted].step >= scattering; };
    // A whole sum may take the place of one that has left; of those, this step's are not all on their way yet.
    while (posted < ring_.size() && posted < i + ahead && (!whole_next() || left < unfinished_.size())) post(posted++);
    auto& one = ring_[i];
    wire_.finish(one.posted);
    if (one.step < scattering) combine(operand, one.begin, one.end, slot(i));
    if (one.step + 1 < steps) send_on(one.begin, one.end, one.step + 1 >= scattering);
  }
  finish_sends();
}

namespace {

// A rank's neighbours in a binary tree.
struct TreePlace {
  int parent = -1;
  int children[2] = {-1, -1};
};

// Numbers in a tree in which the lowest bit that is set says the level: odd ones are leaves, and 0 stands above all.
TreePlace place_in_tree(int number, int size) {
  TreePlace place;
  if (number == 0) {
    if (size > 1) place.children[0] = static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) / 2;
    return place;
  }
  const int bit = number & -number;
  const int right_parent = (number ^ bit) | (bit << 1);
  place.parent = right_parent < size ? right_parent : number ^ bit;
  int reach = bit / 2;
  if (reach > 0) place.children[0] = number - reach;
  while (reach > 0 && number + reach >= size) reach /= 2;
  if (reach > 0) place.children[1] = number + reach;
  return place;
}

// The second tree is the first with its numbers turned round, or moved by one where turning would leave a rank inner in
// both: who has children in one is a leaf in the other.
TreePlace place_in_tree(int tree, int rank, int size) {
  const bool turned = size % 2 == 0;
  const auto number_of = [&](int r) { return tree == 0 ? r : turned ? size - 1 - r : (r + size - 1) % size; };
  const auto rank_of = [&](int n) { return n < 0 ? -1 : tree == 0 ? n : turned ? size - 1 - n : (n + 1) % size; };
  auto place = place_in_tree(number_of(rank), size);
  place.parent = rank_of(place.parent);
  for (auto& child : place.children) child = rank_of(child);
  return place;
}

}  // namespace

// Nobody waits in a circle: a piece of a tree waits only for the same piece farther down (or up), and for earlier ones.
void WireCollectives::by_trees(const Operand& operand) {
  const int64_t size = element(operand), piece = std::max<int64_t>(1, piece_bytes_ / size);
  const Offsets halves = even_offsets(operand.count, 2);
  const TreePlace places[2] = {place_in_tree(0, rank_, size_), place_in_tree(1, rank_, size_)};
  const int64_t longest = std::max(halves[1] - halves[0], halves[2] - halves[1]);
  const auto each_piece = [&](auto work) {
    for (int64_t first = 0; first < longest; first += piece) {
      for (size_t tree = 0; tree < 2; ++tree) {
        const int64_t begin = halves[tree] + first, end = std::min(begin + piece, halves[tree + 1]);
        if (begin < end) work(places[tree], begin, end);
      }
    }
    finish_sends();
  };
  each_piece([&](const TreePlace& place, int64_t begin, int64_t end) {
    const int64_t bytes = (end - begin) * size;
    Wire::Posted incoming[2] = {};
    for (int i = 0; i < 2; ++i) {
      if (place.children[i] >= 0) incoming[i] = wire_.receive(place.children[i], scratch(i, piece * size), bytes);
    }
    for (int i = 0; i < 2; ++i) {
      if (place.children[i] < 0) continue;
      wire_.finish(incoming[i]);
      combine(operand, begin, end, scratch_[i].data());
    }
    if (place.parent >= 0) sends_.push_back(wire_.send(place.parent, operand.data + begin * size, bytes));
  });
  each_piece([&](const TreePlace& place, int64_t begin, int64_t end) {
    std::byte* data = operand.data + begin * size;
    const int64_t bytes = (end - begin) * size;
    if (place.parent >= 0) wire_.finish(wire_.receive(place.parent, data, bytes));
    for (const int child : place.children) {
      if (child >= 0) sends_.push_back(wire_.send(child, data, bytes));
    }
  });
}

// Up a binomial tree, the root's number being 0.
void WireCollectives::reduce(const Operand& operand, int root) {
  const int number = (rank_ - root + size_) % size_;
  const auto rank_of = [&](int n) { return (n + root) % size_; };
  const Span all{0, operand.count}, none{0, 0};
  for (int distance = 1; distance < size_ && operand.count > 0; distance *= 2) {
    if (number & distance) {
      exchange_and_combine(operand, rank_of(number - distance), all, rank_of(number - distance), none);
      return;
    }
    const int child = number + distance;
    if (child < size_) exchange_and_combine(operand, rank_of(child), none, rank_of(child), all);
  }
}

// Down the same tree.
void WireCollectives::broadcast(std::byte* data, int64_t bytes, int root) {
  if (bytes == 0) return;
  const int number = (rank_ - root + size_) % size_;
  const auto rank_of = [&](int n) { return (n + root) % size_; };
  int below = static_cast<int>(std::bit_ceil(static_cast<unsigned>(size_)));
  if (number > 0) {
    below = number & -number;
    wire_.finish(wire_.receive(rank_of(number - below), data, bytes));
  }
  for (int distance = below / 2; distance > 0; distance /= 2) {
    if (number + distance < size_) sends_.push_back(wire_.send(rank_of(number + distance), data, bytes));
  }
  finish_sends();
}

void WireCollectives::all_to_all(const std::byte* given, const Offsets& give, std::byte* taken, const Offsets& take) {
  const auto bytes = [](const Offsets& offsets, int r) {
    return offsets[static_cast<size_t>(r) + 1] - offsets[static_cast<size_t>(r)];
  };
  const auto mine = static_cast<size_t>(rank_);
  if (bytes(give, rank_) != bytes(take, rank_))
    fail("a rank gives itself {} bytes and takes {}", bytes(give, rank_), bytes(take, rank_));
  if (bytes(give, rank_) > 0)
    std::memcpy(taken + take[mine], given + give[mine], static_cast<size_t>(bytes(give, rank_)));
  for (int step = 1; step < size_; ++step) {
    const int to = (rank_ + step) % size_, from = (rank_ + size_ - step) % size_;
    exchange(to, given + give[static_cast<size_t>(to)], bytes(give, to), from, taken + take[static_cast<size_t>(from)],
             bytes(take, from));
  }
}

}  // namespace trireme
