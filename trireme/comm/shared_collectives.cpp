#include "trireme/comm/shared_collectives.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme {

namespace {

constexpr int everyone = -1;

// Up to so many ranks it pays to copy through the kernel, which is slow but copies once, what all ranks need of each
// other; and to let every rank reduce everything for itself, which reads more but writes less and meets less often.
constexpr int few_ranks = 3;
constexpr int64_t little_bytes = 64 << 10;  // of all ranks together: reduced by everybody, however many they are

}  // namespace

void SharedCollectives::meet() {
  work_.settle();
  meeting_.meet();
}

void SharedCollectives::meet_and_check() {
  work_.settle();
  meeting_.meet_and_check();
}

void SharedCollectives::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) work_.copy(to, from, bytes);
}

void SharedCollectives::carry_out(const Call& call, const Arguments& arguments) {
  if (arguments.ready) work_.after(*arguments.ready);
  this->call(call, arguments);
  work_.settle();
}

void SharedCollectives::call(const Call& call, const Arguments& arguments) {
  const auto& tensor = arguments.tensor;
  way_ = "in place";  // unless it is found out otherwise
  if (call.collective == Collective::all_to_all) return all_to_all(arguments);
  if (call.collective == Collective::barrier || call.count == 0) return meet_and_check();
  auto* data = static_cast<std::byte*>(tensor.data_ptr());
  const auto element = static_cast<int64_t>(tensor.element_size());
  const int64_t bytes = call.count * element;
  switch (call.collective) {
    case Collective::all_reduce: return all_reduce(call, data, element);
    case Collective::broadcast: return broadcast(call.root, data, bytes);
    case Collective::all_gather:
      return gather(data, static_cast<std::byte*>(arguments.output.data_ptr()), even_offsets(bytes * size_, size_),
                    false);
    case Collective::reduce: return reduce_to_root(call, data, element);
    case Collective::reduce_scatter: return reduce_scatter(call, data, element, arguments.give);
    case Collective::gather_parts: {
      auto parts = arguments.give;
      for (auto& part : parts) part *= element;
      return gather(data, data, parts, true);
    }
    default: return;  // made by functions of their own
  }
}

template <class Bytes>
void SharedCollectives::take_places(const Bytes& bytes) {
  for (int i = 0; i < size_; ++i) {
    const Place place = meeting_.exhibit(i).place;
    if (place.bytes < bytes(i))
      fail("rank {} shows a buffer of {} bytes where {} are needed: its memory may be faulty", i, place.bytes,
           bytes(i));
    if (place.segment < 0 && (place.segment != -1 || place.offset > UINT64_MAX - static_cast<uint64_t>(place.bytes)))
      fail("rank {} shows {} bytes at {:#x}, where no memory can be: its memory may be faulty", i, place.bytes,
           place.offset);
    places_[static_cast<size_t>(i)] = place;
    addresses_of_buffers_[static_cast<size_t>(i)] = place.segment < 0 ? nullptr : find_(i, place);
  }
}

void SharedCollectives::take_places(int64_t bytes) {
  take_places([bytes](int) { return bytes; });
}

bool SharedCollectives::all_have_addresses() {
  for (int i = 0; i < size_; ++i) {
    if (!has_address(i)) return false;
  }
  return true;
}

template <class Copy>
void SharedCollectives::by_kernel(Copy copy, int rank, int64_t offset, std::byte* here, int64_t bytes) {
  way_ = "through the kernel";
  const pid_t process = meeting_.group().processes[static_cast<size_t>(rank)];
  auto* there = reinterpret_cast<std::byte*>(places_[static_cast<size_t>(rank)].offset) + offset;
  while (bytes > 0) {
    const iovec mine{here, static_cast<size_t>(bytes)}, theirs{there, static_cast<size_t>(bytes)};
    const ssize_t count = copy(process, &mine, 1, &theirs, 1, 0);
    if (count <= 0) {
      const int reason = errno;
      // It has died. The watchdog ends this process in a moment, and knows what the other was doing.
      if (reason == ESRCH || reason == EFAULT) std::this_thread::sleep_for(std::chrono::seconds(5));
      fail("the memory of rank {} (process {}) cannot be reached: {}", rank, process, std::strerror(reason));
    }
    here += count;
    there += count;
    bytes -= count;
  }
}

void SharedCollectives::check_range(int rank, int64_t offset, int64_t bytes) const {
  const int64_t room = places_[static_cast<size_t>(rank)].bytes;
  if (offset < 0 || bytes > room || offset > room - std::max<int64_t>(bytes, 0))
    fail("{} bytes at {} of the buffer of rank {} lie beyond its {}", bytes, offset, rank, room);
}

void SharedCollectives::read(int rank, int64_t offset, std::byte* to, int64_t bytes) {
  check_range(rank, offset, bytes);
  if (has_address(rank)) return copy(to, address_of(rank) + offset, bytes);
  by_kernel(process_vm_readv, rank, offset, to, bytes);
}

void SharedCollectives::write(int rank, int64_t offset, std::byte* from, int64_t bytes) {
  check_range(rank, offset, bytes);
  if (has_address(rank)) return copy(address_of(rank) + offset, from, bytes);
  by_kernel(process_vm_writev, rank, offset, from, bytes);
}

const std::vector<void*>& SharedCollectives::staged(int64_t piece) {
  for (int i = 0; i < size_; ++i) addresses_[static_cast<size_t>(i)] = staging(i, piece);
  return addresses_;
}

const std::vector<void*>& SharedCollectives::reached() {
  for (int i = 0; i < size_; ++i) addresses_[static_cast<size_t>(i)] = address_of(i);
  return addresses_;
}

void SharedCollectives::stage(int64_t bytes) {
  way_ = "staged";
  if (grow_ && bytes > piece_bytes_) piece_bytes_ = grow_(bytes);
}

template <class Put, class Take>
void SharedCollectives::in_pieces(int64_t bytes, const Put& put, const Take& take) {
  stage(bytes);
  for (int64_t first = 0, piece = 0; first < bytes; first += piece_bytes_, ++piece) {
    const int64_t count = std::min(piece_bytes_, bytes - first);
    put(piece, first, count);
    if (piece > 0) meet();
    if (piece == 0) meet_and_check();
    take(piece, first, count);
  }
}

void SharedCollectives::reduce_span(const Call& call, int64_t element, int64_t origin, int64_t first, int64_t last,
                                    const std::vector<void*>& buffers, void* target) {
  if (first >= last) return;
  slice_.assign(buffers.begin(), buffers.end());
  for (auto& address : slice_) address = static_cast<std::byte*>(address) + (first - origin) * element;
  const std::span<void* const> all(slice_), one(&target, 1);
  work_.combine(call.dtype, call.op, std::span<const void* const>(slice_.data(), slice_.size()), target ? one : all,
                last - first);
}

void SharedCollectives::all_reduce(const Call& call, std::byte* data, int64_t element) {
  const auto begin = [&](int r) { return part_begin(call.count, r, size_, element); };
  if (call.count * element < worth_reaching) return all_reduce_staged(call, data, element);
  meet_and_check();
  take_places(call.count * element);
  if (all_have_addresses()) {
    reduce_span(call, element, 0, begin(rank_), begin(rank_ + 1), reached());
    return meet();
  }
  if (!reads_ || size_ > few_ranks) return all_reduce_staged(call, data, element);
  reduce_by_kernel(call, data, element, begin(rank_), begin(rank_ + 1), everyone);
  meet();
}

// Nobody else touches these elements, in whichever buffer, before all meet again.
void SharedCollectives::reduce_by_kernel(const Call& call, std::byte* data, int64_t element, int64_t begin, int64_t end,
                                         int to) {
  constexpr int64_t bit_bytes = 1 << 20;  // in smaller ones the kernel is slower
  const int64_t bit = bit_bytes / element;
  scratch_.resize(static_cast<size_t>(size_ * bit_bytes));
  for (int64_t first = begin; first < end; first += bit) {
    const int64_t last = std::min(first + bit, end), bytes = (last - first) * element;
    std::byte* mine = data + first * element;
    for (int i = 0; i < size_; ++i) {
      std::byte* source = i == rank_ ? mine : &scratch_[static_cast<size_t>(i * bit_bytes)];
      if (i != rank_) read(i, first * element, source, bytes);
      addresses_[static_cast<size_t>(i)] = source;
    }
    reduce_span(call, element, first, first, last, addresses_, mine);
    for (int i = 1; i < size_; ++i) {
      const int other = (rank_ + i) % size_;  // not all at one rank's memory at once
      if (to == everyone || to == other) write(other, first * element, mine, bytes);
    }
  }
}

void SharedCollectives::all_reduce_staged(const Call& call, std::byte* data, int64_t element) {
  const int64_t bytes = call.count * element;
  const auto put = [&](int64_t piece, int64_t first, int64_t count) {
    copy(staging(rank_, piece), data + first, count);
  };
  if (size_ <= few_ranks || bytes * size_ <= little_bytes) {
    return in_pieces(bytes, put, [&](int64_t piece, int64_t first, int64_t count) {
      reduce_span(call, element, 0, 0, count / element, staged(piece), data + first);
    });
  }
  // Each reduces its slice of a piece in all buffers, and takes the whole piece out after the next meeting.
  int64_t before = -1, before_first = 0, before_count = 0;
  in_pieces(bytes, put, [&](int64_t piece, int64_t first, int64_t count) {
    if (before >= 0) copy(data + before_first, staging(rank_, before), before_count);
    const int64_t elements = count / element;
    reduce_span(call, element, 0, part_begin(elements, rank_, size_, element),
                part_begin(elements, rank_ + 1, size_, element), staged(piece));
    before = piece;
    before_first = first;
    before_count = count;
  });
  meet();
  copy(data + before_first, staging(rank_, before), before_count);
}

// All ranks work, each on a slice; the root ends with all of them.
void SharedCollectives::reduce_to_root(const Call& call, std::byte* data, int64_t element) {
  const int64_t bytes = call.count * element;
  const auto begin = [&](int r) { return part_begin(call.count, r, size_, element); };
  if (bytes >= worth_reaching) {
    meet_and_check();
    take_places(bytes);
    if (all_have_addresses()) {
      reduce_span(call, element, 0, begin(rank_), begin(rank_ + 1), reached(),
                  address_of(call.root) + begin(rank_) * element);
      return meet();
    }
    if (reads_ && size_ <= few_ranks) {
      reduce_by_kernel(call, data, element, begin(rank_), begin(rank_ + 1), call.root);
      return meet();
    }
  }
  // The root alone reduces: the others have nothing to write to but its staging buffer, which they would all share.
  in_pieces(
      bytes, [&](int64_t piece, int64_t first, int64_t count) { copy(staging(rank_, piece), data + first, count); },
      [&](int64_t piece, int64_t first, int64_t count) {
        if (rank_ == call.root) reduce_span(call, element, 0, 0, count / element, staged(piece), data + first);
      });
}

void SharedCollectives::reduce_scatter(const Call& call, std::byte* data, int64_t element, const Offsets& parts) {
  const int64_t begin = parts[static_cast<size_t>(rank_)], end = parts[static_cast<size_t>(rank_) + 1];
  const int64_t bytes = call.count * element;
  if (bytes >= worth_reaching) {
    meet_and_check();
    take_places(bytes);
    if (all_have_addresses()) {
      reduce_span(call, element, 0, begin, end, reached(), data + begin * element);
      return meet();
    }
    if (reads_) {
      reduce_by_kernel(call, data, element, begin, end, rank_);
      return meet();
    }
  }
  in_pieces(
      bytes, [&](int64_t piece, int64_t first, int64_t count) { copy(staging(rank_, piece), data + first, count); },
      [&](int64_t piece, int64_t from, int64_t count) {
        const int64_t origin = from / element;
        const int64_t first = std::max(origin, begin), last = std::min(origin + count / element, end);
        reduce_span(call, element, origin, first, last, staged(piece), data + first * element);
      });
}

void SharedCollectives::broadcast(int root, std::byte* data, int64_t bytes) {
  if (bytes >= worth_reaching) {
    meet_and_check();
    take_places(bytes);
    if (reads_ || has_address(root)) {
      if (rank_ != root) read(root, 0, data, bytes);
      return meet();
    }
  }
  in_pieces(
      bytes,
      [&](int64_t piece, int64_t first, int64_t count) {
        if (rank_ == root) copy(staging(root, piece), data + first, count);
      },
      [&](int64_t piece, int64_t first, int64_t count) {
        if (rank_ != root) copy(data + first, staging(root, piece), count);
      });
}

void SharedCollectives::gather(const std::byte* tensor, std::byte* output, const Offsets& parts, bool in_place) {
  const auto begin = [&](int r) { return parts[static_cast<size_t>(r)]; };
  const auto bytes = [&](int r) { return begin(r + 1) - begin(r); };
  const std::byte* given = in_place ? tensor + begin(rank_) : tensor;
  const bool is_there = given == output + begin(rank_);
  int64_t longest = 0;
  for (int i = 0; i < size_; ++i) longest = std::max(longest, bytes(i));
  if (longest >= worth_reaching) {
    meet_and_check();
    take_places([&](int i) { return in_place ? begin(size_) : bytes(i); });
    if (all_have_addresses() || (reads_ && size_ <= few_ranks)) {
      for (int i = 1; i < size_; ++i) {
        const int from = (rank_ + i) % size_;
        read(from, in_place ? begin(from) : 0, output + begin(from), bytes(from));
      }
      if (!is_there) copy(output + begin(rank_), given, bytes(rank_));
      return meet();
    }
  }
  in_pieces(
      longest,
      [&](int64_t piece, int64_t first, int64_t count) {
        copy(staging(rank_, piece), given + first, std::min(count, bytes(rank_) - first));
      },
      [&](int64_t piece, int64_t first, int64_t count) {
        for (int i = 1; i < size_; ++i) {
          const int from = (rank_ + i) % size_;
          copy(output + begin(from) + first, staging(from, piece), std::min(count, bytes(from) - first));
        }
        if (!is_there) copy(output + begin(rank_) + first, given + first, std::min(count, bytes(rank_) - first));
      });
}

// Each rank also shows where its parts begin: what one gives must be what the other takes.
void SharedCollectives::all_to_all(const Arguments& arguments) {
  const auto element = static_cast<int64_t>(arguments.tensor.element_size());
  const size_t ends = static_cast<size_t>(size_) + 1;
  if (2 * ends > std::size(meeting_.mine().words)) fail("an all_to_all of {} ranks of one host is too large", size_);
  for (size_t i = 0; i < ends; ++i) {
    meeting_.mine().words[i] = arguments.give[i] * element;
    meeting_.mine().words[ends + i] = arguments.take[i] * element;
  }
  const auto* given = static_cast<const std::byte*>(arguments.tensor.const_data_ptr());
  auto* taken = static_cast<std::byte*>(arguments.output.data_ptr());
  const auto give = [&](int to) { return arguments.give[static_cast<size_t>(to)] * element; };
  const auto take = [&](int from) { return arguments.take[static_cast<size_t>(from)] * element; };
  const auto part = [](const auto& begin, int r, int64_t first, int64_t most) {
    return std::min(most, begin(r + 1) - begin(r) - first);
  };
  // A place for each rank in every staging buffer.
  int64_t share = piece_bytes_ / size_ / 64 * 64;
  const auto put = [&](int64_t piece, int64_t first) {
    for (int i = 1; i < size_; ++i) {
      const int to = (rank_ + i) % size_;
      copy(staging(rank_, piece) + to * share, given + give(to) + first, part(give, to, first, share));
    }
  };
  const int64_t long_part = worth_reaching / size_;
  bool is_put = true;
  for (int i = 0; i < size_; ++i) is_put = is_put && (i == rank_ || give(i + 1) - give(i) <= long_part);
  if (is_put) put(0, 0);
  meet_and_check();
  parts_.resize(2 * ends * static_cast<size_t>(size_));
  for (int i = 0; i < size_; ++i) std::copy_n(meeting_.exhibit(i).words, 2 * ends, &parts_[2 * ends * i]);
  check_exchange(parts_, size_);
  copy(taken + take(rank_), given + give(rank_), part(take, rank_, 0, take(rank_ + 1) - take(rank_)));
  const auto begin = [&](int from, int to) { return parts_[2 * ends * static_cast<size_t>(from) + to]; };
  int64_t longest = 0;
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      if (to != from) longest = std::max(longest, begin(from, to + 1) - begin(from, to));
    }
  }
  if (longest >= long_part) take_places([&](int i) { return begin(i, size_); });
  if (longest >= long_part && (reads_ || all_have_addresses())) {
    for (int i = 1; i < size_; ++i) {
      const int from = (rank_ + i) % size_;
      read(from, begin(from, rank_), taken + take(from), take(from + 1) - take(from));
    }
    return meet();
  }
  stage(longest >= long_part ? longest * size_ : 0);
  share = piece_bytes_ / size_ / 64 * 64;
  // Where all parts are short, the first pieces have been put before the meeting.
  for (int64_t first = 0, piece = 0; first < longest; first += share, ++piece) {
    if (piece > 0 || longest >= long_part) {
      put(piece, first);
      meet();
    }
    for (int i = 1; i < size_; ++i) {
      const int from = (rank_ + i) % size_;
      copy(taken + take(from) + first, staging(from, piece) + rank_ * share, part(take, from, first, share));
    }
  }
}

}  // namespace trireme
