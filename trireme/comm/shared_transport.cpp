#include "trireme/comm/shared_transport.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/reduction.h"
#include "trireme/comm/shared_group.h"
#include "trireme/comm/shared_mail.h"
#include "trireme/observe/board.h"

namespace trireme {

namespace {

constexpr int spins = 64;

}  // namespace

std::shared_ptr<SharedGroup> make_thread_group(int size, std::shared_ptr<SharedGroup> parent) {
  auto group =
      std::make_shared<SharedGroup>(Segment::anonymous(SharedGroup::bytes_for(size)), size, "", std::move(parent));
  for (int i = 0; i < size; ++i) new (&group->lane(i)) Lane;
  return group;
}

std::shared_ptr<SharedGroup> meet_processes(const std::string& meeting, int rank, int size, double timeout_s) {
  const auto name = meeting + ".comm";
  const size_t bytes = SharedGroup::bytes_for(size);
  // Fresh files read as zeros, and zeros are a valid start for every field that a peer may read before it is written.
  auto group = std::make_shared<SharedGroup>(
      rank == 0 ? Segment::create(name, bytes) : Segment::open(name, bytes, timeout_s), size, meeting);
  auto& present = group->header().present;
  present.fetch_add(1);
  futex_wake_all(present);
  const int64_t deadline = monotonic_ns() + static_cast<int64_t>(timeout_s * 1e9);
  for (uint32_t here = present.load(); here < static_cast<uint32_t>(size); here = present.load()) {
    if (monotonic_ns() > deadline) {
      if (rank == 0) Segment::unlink(name);
      fail("only {} of {} ranks came to {} within {:.0f} s", here, size, meeting, timeout_s);
    }
    futex_wait(present, here, 50'000'000);
  }
  if (rank == 0) Segment::unlink(name);
  return group;
}

namespace {

class SharedTransport final : public Transport {
 public:
  SharedTransport(std::shared_ptr<SharedGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), size_(group_->size), calls_(size_), addresses_(size_) {}

  ~SharedTransport() override {
    lane(rank_).left.store(1);
    futex_wake_all(lane(rank_).arrived);
  }

  const char* name() const override { return group_->threads() ? "threads" : "shared"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void abort() override { group_->abort(); }

  void carry_out(const Call& call, const Arguments& arguments) override {
    try {
      take_part(call, arguments);
    } catch (...) {
      if (group_->threads()) group_->keep(arguments.tensor);
      throw;
    }
  }

  at::Tensor allocate(const Call& call, int64_t bytes) override;
  std::unique_ptr<Transport> split(const Call& call, int color) override;
  std::unique_ptr<Mail> open_mail(const Call& call, const MailPeers& peers) override;

 private:
  // Allocated by all ranks together: each one's part, mapped by every rank.
  struct Allocation {
    std::vector<Segment> parts;
  };

  void show(const Call& call) {
    turn_ = call.sequence % 2;
    exhibit(rank_).call = call;
  }

  // Does one rank's part of something that all make together. Whatever goes wrong at one is told to all: `given` shows
  // what each has to say, or -1.
  void attempt(std::string& problem, int64_t given, const std::function<void()>& part) {
    try {
      if (problem.empty()) part();
    } catch (const Error& error) {
      problem = error.what();
    }
    lane(rank_).given = problem.empty() ? given : -1;
  }
  // After a meeting: throws, on all ranks alike, when it failed at one of them.
  void check_attempts(const std::string& problem, const std::string& what) {
    int failed = -1;
    for (int i = 0; i < size_; ++i) {
      if (lane(i).given < 0) failed = i;
    }
    meet();  // everybody has read it: the next call may write there again
    if (failed < 0) return;
    const auto why = failed == rank_ ? problem : "its own message says why";
    fail("rank {} could not {} ({}); free some of /dev/shm, or use comm.transport=mpi", failed, what, why);
  }

  void take_part(const Call& call, const Arguments& arguments) {
    show(call);
    auto& mine = exhibit(rank_);
    const auto& tensor = arguments.tensor;
    if (call.collective == Collective::all_to_all) {
      mine.place = place_of(tensor.data_ptr());
      return all_to_all(arguments);
    }
    if (call.collective == Collective::barrier || call.count == 0) return meet_and_check();
    auto* data = static_cast<std::byte*>(tensor.data_ptr());
    mine.place = place_of(data);
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    switch (call.collective) {
      case Collective::all_reduce: return all_reduce(call, data, tensor.element_size());
      case Collective::broadcast: return broadcast(call.root, data, bytes);
      case Collective::all_gather: return all_gather(data, static_cast<std::byte*>(arguments.output.data_ptr()), bytes);
      case Collective::reduce: return reduce_to(call, data, tensor.element_size());
      case Collective::reduce_scatter: return reduce_scatter(call, data, tensor.element_size(), arguments.give);
      case Collective::gather_parts:
        return gather_parts(data, static_cast<int64_t>(tensor.element_size()), arguments.give);
      default: return;  // made by functions of their own
    }
  }

  Lane& lane(int rank) { return group_->lane(rank); }
  Exhibit& exhibit(int rank) { return lane(rank).exhibits[turn_]; }

  // Says that this rank has come to the next meeting point, and waits for all others.
  void meet() {
    auto& mine = lane(rank_);
    const uint32_t target = mine.arrived.load(std::memory_order_relaxed) + 1;
    mine.arrived.store(target, std::memory_order_seq_cst);
    if (mine.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(mine.arrived);
    for (int i = 0; i < size_; ++i) {
      if (i != rank_) await(i, target);
    }
  }

  void await(int rank, uint32_t target) {
    Lane& peer = lane(rank);
    const auto reached = [&](uint32_t seen) { return static_cast<int32_t>(seen - target) >= 0; };
    for (int spin = 0; spin < spins; ++spin) {
      if (reached(peer.arrived.load(std::memory_order_acquire))) return;
      __builtin_ia32_pause();
    }
    peer.sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (true) {
      const uint32_t seen = peer.arrived.load(std::memory_order_seq_cst);
      if (reached(seen)) break;
      if (group_->aborted()) fail("another rank ended while this one waited for it");
      if (peer.left.load() && !reached(peer.arrived.load())) fail("rank {} has left and will not take part", rank);
      futex_wait(peer.arrived, seen, 100'000'000);
    }
    peer.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

  // The first meeting of every call: all fingerprints are there and must agree.
  void meet_and_check() {
    meet();
    const Call& mine = exhibit(rank_).call;
    for (int i = 0; i < size_; ++i) {
      if (exhibit(i).call.agrees_with(mine)) continue;
      for (int k = 0; k < size_; ++k) calls_[k] = exhibit(k).call;
      meet();  // a rank that fails may end at once: nobody leaves before everybody has read
      check_agreement(calls_);
    }
  }

  Place place_of(const void* pointer) {
    if (group_->threads()) return {0, reinterpret_cast<uint64_t>(pointer)};
    const auto* address = static_cast<const std::byte*>(pointer);
    for (size_t n = 0; n < allocations_.size(); ++n) {
      const auto& part = allocations_[n]->parts[rank_];
      if (address >= part.data() && address < part.data() + part.bytes()) {
        return {static_cast<int64_t>(n) + 1, static_cast<uint64_t>(address - part.data())};
      }
    }
    return {};
  }

  std::byte* address_of(int rank) {
    const Place place = exhibit(rank).place;
    if (place.segment == 0) return reinterpret_cast<std::byte*>(place.offset);
    return allocations_[place.segment - 1]->parts[rank].data() + place.offset;
  }

  bool all_reachable() {
    for (int i = 0; i < size_; ++i) {
      if (exhibit(i).place.segment < 0) return false;
    }
    return true;
  }

  void all_reduce(const Call& call, void* data, size_t element) {
    const int64_t bytes = call.count * static_cast<int64_t>(element);
    if (bytes <= staging_bytes) return all_reduce_small(call, data, bytes);
    meet_and_check();
    if (all_reachable()) {
      for (int i = 0; i < size_; ++i) addresses_[i] = address_of(i);
      reduce_slice(call, static_cast<int64_t>(element), call.count, addresses_);
      return meet();
    }
    // Piece by piece through the staging buffers.
    auto* mine = static_cast<std::byte*>(data);
    const int64_t piece = staging_bytes / static_cast<int64_t>(element);
    for (int i = 0; i < size_; ++i) addresses_[i] = exhibit(i).staging;
    for (int64_t first = 0; first < call.count; first += piece) {
      const int64_t count = std::min(piece, call.count - first);
      std::memcpy(exhibit(rank_).staging, mine + first * element, count * element);
      meet();
      reduce_slice(call, static_cast<int64_t>(element), count, addresses_);
      meet();
      std::memcpy(mine + first * element, exhibit(rank_).staging, count * element);
    }
  }

  // Each rank reduces everything for itself, so that one meeting is enough.
  void all_reduce_small(const Call& call, void* data, int64_t bytes) {
    std::memcpy(exhibit(rank_).staging, data, bytes);
    meet_and_check();
    for (int i = 0; i < size_; ++i) addresses_[i] = exhibit(i).staging;
    void* target = data;
    reduce(call.dtype, call.op, std::span<const void* const>(addresses_.data(), size_),
           std::span<void* const>(&target, 1), call.count);
  }

  // Elements [first, last) of all buffers, which begin at element `origin` of the tensor, into one target, or, without
  // one, into all of them.
  void reduce_span(const Call& call, int64_t element, int64_t origin, int64_t first, int64_t last,
                   const std::vector<void*>& buffers, void* target = nullptr) {
    if (first >= last) return;
    slice_.assign(buffers.begin(), buffers.end());
    for (auto& address : slice_) address = static_cast<std::byte*>(address) + (first - origin) * element;
    const std::span<void* const> all(slice_.data(), size_), one(&target, 1);
    reduce(call.dtype, call.op, std::span<const void* const>(slice_.data(), size_), target ? one : all, last - first);
  }

  int64_t my_part(int64_t count, int64_t element, int further = 0) const {
    return part_begin(count, rank_ + further, size_, element);
  }

  // This rank's share of [0, count) from all buffers into all buffers.
  void reduce_slice(const Call& call, int64_t element, int64_t count, const std::vector<void*>& buffers) {
    reduce_span(call, element, 0, my_part(count, element), my_part(count, element, 1), buffers);
  }

  void broadcast(int root, std::byte* data, int64_t bytes) {
    meet_and_check();
    if (exhibit(root).place.segment >= 0) {
      if (rank_ != root) std::memcpy(data, address_of(root), bytes);
      return meet();
    }
    for (int64_t first = 0; first < bytes; first += staging_bytes) {
      const int64_t size = std::min(staging_bytes, bytes - first);
      if (rank_ == root) std::memcpy(exhibit(root).staging, data + first, size);
      meet();
      if (rank_ != root) std::memcpy(data + first, exhibit(root).staging, size);
      meet();
    }
  }

  void all_gather(const std::byte* data, std::byte* output, int64_t bytes) {
    meet_and_check();
    for (int64_t first = 0; first < bytes; first += staging_bytes) {
      const int64_t size = std::min(staging_bytes, bytes - first);
      std::memcpy(exhibit(rank_).staging, data + first, size);
      meet();
      for (int i = 0; i < size_; ++i) std::memcpy(output + i * bytes + first, exhibit(i).staging, size);
      meet();
    }
  }

  // All ranks work, each on a slice; only the root's buffer is written.
  void reduce_to(const Call& call, std::byte* data, size_t element_size) {
    const auto element = static_cast<int64_t>(element_size);
    meet_and_check();
    const bool direct = all_reachable();
    const int64_t piece = direct ? call.count : staging_bytes / element;
    for (int64_t first = 0; first < call.count; first += piece) {
      const int64_t count = std::min(piece, call.count - first);
      for (int i = 0; i < size_; ++i) addresses_[i] = direct ? address_of(i) : exhibit(i).staging;
      if (!direct) {
        std::memcpy(exhibit(rank_).staging, data + first * element, static_cast<size_t>(count * element));
        meet();
      }
      const int64_t begin = my_part(count, element);
      reduce_span(call, element, 0, begin, my_part(count, element, 1), addresses_,
                  static_cast<std::byte*>(addresses_[call.root]) + begin * element);
      meet();
      if (direct) continue;
      // Nobody writes there again before the root has come to the next meeting.
      if (rank_ == call.root)
        std::memcpy(data + first * element, exhibit(rank_).staging, static_cast<size_t>(count * element));
    }
  }

  void reduce_scatter(const Call& call, std::byte* data, size_t element_size, const Offsets& parts) {
    const auto element = static_cast<int64_t>(element_size);
    meet_and_check();
    const bool direct = all_reachable();
    const int64_t piece = direct ? call.count : staging_bytes / element;
    for (int64_t origin = 0; origin < call.count; origin += piece) {
      const int64_t end = std::min(origin + piece, call.count);
      for (int i = 0; i < size_; ++i) addresses_[i] = direct ? address_of(i) : exhibit(i).staging;
      if (!direct) {
        std::memcpy(exhibit(rank_).staging, data + origin * element, static_cast<size_t>((end - origin) * element));
        meet();
      }
      const int64_t first = std::max(origin, parts[rank_]), last = std::min(end, parts[rank_ + 1]);
      reduce_span(call, element, origin, first, last, addresses_, data + first * element);
      meet();
    }
  }

  void gather_parts(std::byte* data, int64_t element, const Offsets& parts) {
    meet_and_check();
    const auto bytes = [&](int r) { return (parts[r + 1] - parts[r]) * element; };
    if (all_reachable()) {
      for (int i = 1; i < size_; ++i) {
        const int from = (rank_ + i) % size_;  // not all at one rank's memory at once
        const int64_t begin = parts[from] * element;
        std::memcpy(data + begin, address_of(from) + begin, static_cast<size_t>(bytes(from)));
      }
      return meet();
    }
    int64_t longest = 0;
    for (int i = 0; i < size_; ++i) longest = std::max(longest, bytes(i));
    for (int64_t first = 0; first < longest; first += staging_bytes) {
      const auto count = [&](int r) { return std::clamp<int64_t>(bytes(r) - first, 0, staging_bytes); };
      const auto place = [&](int r) { return data + parts[r] * element + first; };
      if (count(rank_) > 0) std::memcpy(exhibit(rank_).staging, place(rank_), static_cast<size_t>(count(rank_)));
      meet();
      for (int i = 0; i < size_; ++i) {
        if (i != rank_ && count(i) > 0) std::memcpy(place(i), exhibit(i).staging, static_cast<size_t>(count(i)));
      }
      meet();
    }
  }

  // Each rank first shows where its parts begin; it then takes its own part of every other's.
  void all_to_all(const Arguments& arguments) {
    const auto element = static_cast<int64_t>(arguments.tensor.element_size());
    const size_t ends = static_cast<size_t>(size_) + 1;
    auto* shown = reinterpret_cast<int64_t*>(exhibit(rank_).staging);
    for (size_t i = 0; i < ends; ++i) {
      shown[i] = arguments.give[i] * element;
      shown[ends + i] = arguments.take[i] * element;
    }
    meet_and_check();
    parts_.resize(2 * ends * static_cast<size_t>(size_));
    for (int i = 0; i < size_; ++i) std::memcpy(&parts_[2 * ends * i], exhibit(i).staging, sizeof(int64_t) * 2 * ends);
    meet();  // everybody has read them
    check_exchange(parts_, size_);
    const auto begin = [&](int from, int to) { return parts_[2 * ends * from + to]; };
    const auto bytes = [&](int from, int to) { return begin(from, to + 1) - begin(from, to); };
    int64_t longest = 0;
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) longest = std::max(longest, bytes(from, to));
    }
    const auto* given = static_cast<const std::byte*>(arguments.tensor.const_data_ptr());
    auto* taken = static_cast<std::byte*>(arguments.output.data_ptr());
    if (all_reachable()) {
      for (int i = 0; i < size_; ++i) {
        const int from = (rank_ + i) % size_;
        const auto count = static_cast<size_t>(bytes(from, rank_));
        if (count > 0)
          std::memcpy(taken + arguments.take[from] * element, address_of(from) + begin(from, rank_), count);
      }
      return meet();
    }
    // A piece for each rank in every staging buffer.
    const int64_t piece = staging_bytes / size_;
    for (int64_t first = 0; first < longest; first += piece) {
      const auto count = [&](int from, int to) { return std::clamp<int64_t>(bytes(from, to) - first, 0, piece); };
      for (int to = 0; to < size_; ++to) {
        if (count(rank_, to) > 0)
          std::memcpy(exhibit(rank_).staging + to * piece, given + begin(rank_, to) + first,
                      static_cast<size_t>(count(rank_, to)));
      }
      meet();
      for (int from = 0; from < size_; ++from) {
        if (count(from, rank_) > 0)
          std::memcpy(taken + arguments.take[from] * element + first, exhibit(from).staging + rank_ * piece,
                      static_cast<size_t>(count(from, rank_)));
      }
      meet();
    }
  }

  std::shared_ptr<SharedGroup> group_;
  const int rank_;
  const int size_;
  size_t turn_ = 0;  // which exhibit the current call uses
  std::vector<Call> calls_;
  std::vector<void*> addresses_;
  std::vector<void*> slice_;
  std::vector<int64_t> parts_;  // where each rank's parts begin, those that it gives and those that it takes
  std::vector<std::shared_ptr<Allocation>> allocations_;
  int splits_ = 0, mails_ = 0;
};

at::Tensor SharedTransport::allocate(const Call& call, int64_t bytes) {
  show(call);
  if (group_->threads()) {
    meet_and_check();
    return at::zeros({bytes}, at::kByte);
  }
  const auto number = allocations_.size();
  const auto name_for = [&](int rank) { return fmt::format("{}.{}.{}", group_->meeting, rank, number); };
  auto allocation = std::make_shared<Allocation>();
  allocation->parts.resize(size_);
  std::string problem;
  attempt(problem, bytes, [&] {
    if (bytes > 0) allocation->parts[rank_] = Segment::create(name_for(rank_), static_cast<size_t>(bytes));
  });
  meet_and_check();
  attempt(problem, bytes, [&] {
    for (int i = 0; i < size_; ++i) {
      const int64_t theirs = lane(i).given;
      if (i != rank_ && theirs > 0) allocation->parts[i] = Segment::open(name_for(i), static_cast<size_t>(theirs), 1);
    }
  });
  meet();
  if (bytes > 0) Segment::unlink(name_for(rank_));
  check_attempts(problem, fmt::format("share {} bytes of memory", bytes));
  if (bytes == 0) return at::empty({0}, at::kByte);
  allocations_.push_back(allocation);
  // The tensor keeps the mapping alive, even beyond this transport.
  return at::from_blob(allocation->parts[rank_].data(), {bytes}, [allocation](void*) {}, at::kByte);
}

std::unique_ptr<Transport> SharedTransport::split(const Call& call, int color) {
  show(call);
  lane(rank_).given = color;
  meet_and_check();
  std::vector<int> members;
  for (int i = 0; i < size_; ++i) {
    if (lane(i).given == color) members.push_back(i);
  }
  meet();  // everybody has read the colors
  const int size = static_cast<int>(members.size());
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  const size_t bytes = SharedGroup::bytes_for(size);
  const auto name = fmt::format("{}.group{}.{}", group_->meeting, splits_++, members[0]);
  std::shared_ptr<SharedGroup> group;
  std::string problem;
  attempt(problem, 0, [&] {
    if (color < 0) return;
    if (group_->threads()) {
      group = group_->common<SharedGroup>(name, [&] { return make_thread_group(size, group_); });
    } else if (place == 0) {
      group = std::make_shared<SharedGroup>(Segment::create(name, bytes), size, name, group_);
    }
  });
  meet();
  attempt(problem, 0, [&] {
    if (color >= 0 && !group) {
      group = std::make_shared<SharedGroup>(Segment::open(name, bytes, 1), size, name, group_);
    }
  });
  meet();
  if (!group_->threads() && color >= 0 && place == 0) Segment::unlink(name);
  check_attempts(problem, "join its group");
  if (color < 0) return nullptr;
  return std::make_unique<SharedTransport>(group, static_cast<int>(place));
}

std::unique_ptr<Mail> SharedTransport::open_mail(const Call& call, const MailPeers& peers) {
  show(call);
  const auto number = mails_++;
  std::string problem;
  std::unique_ptr<SharedMail> mail;
  attempt(problem, 0, [&] { mail = std::make_unique<SharedMail>(group_, rank_, number, peers); });
  meet_and_check();
  attempt(problem, 0, [&] { mail->connect(); });
  meet();
  if (mail) mail->hide();
  check_attempts(problem, "open the ways for its messages");
  return mail;
}

}  // namespace

std::unique_ptr<Transport> make_shared_transport(std::shared_ptr<SharedGroup> group, int rank) {
  return std::make_unique<SharedTransport>(std::move(group), rank);
}

}  // namespace trireme
