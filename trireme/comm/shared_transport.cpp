#include "trireme/comm/shared_transport.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/kernel_reach.h"
#include "trireme/comm/memory_work.h"
#include "trireme/comm/shared_collectives.h"
#include "trireme/comm/shared_meeting.h"
#include "trireme/comm/shared_mail.h"
#include "trireme/device/card_memory.h"
#include "trireme/observe/board.h"
#include "trireme/observe/ledger.h"

namespace trireme {

std::shared_ptr<SharedGroup> make_thread_group(int size, std::shared_ptr<SharedGroup> parent) {
  auto group = std::make_shared<SharedGroup>(Segment::anonymous(SharedGroup::bytes_for(size)), size, /*threads=*/true,
                                             std::move(parent));
  for (int i = 0; i < size; ++i) new (&group->lane(i)) Lane;
  return group;
}

std::shared_ptr<SharedGroup> meet_processes(int rank, int size, const TellAll& tell_all, double timeout_s) {
  const size_t bytes = SharedGroup::bytes_for(size);
  // Fresh memory reads as zeros, and zeros are a valid start for every field that a peer may read before it is written.
  auto memory = rank == 0 ? Segment::create(bytes) : Segment();
  const auto name = tell_all(memory.name());
  if (rank != 0) memory = Segment::open(name, bytes);
  auto group = std::make_shared<SharedGroup>(std::move(memory), size, /*threads=*/false);
  auto& present = group->header().present;
  present.fetch_add(1);
  futex_wake_all(present);
  const int64_t deadline = monotonic_ns() + static_cast<int64_t>(timeout_s * 1e9);
  for (uint32_t here = present.load(); here < static_cast<uint32_t>(size); here = present.load()) {
    if (monotonic_ns() > deadline) fail("only {} of {} ranks of this host came within {:.0f} s", here, size, timeout_s);
    futex_wait(present, here, 50'000'000);
  }
  if (rank == 0) group->hide();
  return group;
}

std::shared_ptr<SharedGroup> meet_processes(Board& board, int rank, double timeout_s) {
  const auto tell_all = [&](const SegmentName& of_first) {
    if (rank == 0) board.announce(of_first);
    const int64_t deadline = monotonic_ns() + static_cast<int64_t>(timeout_s * 1e9);
    while (!board.announced().is_set()) {
      if (monotonic_ns() > deadline)
        fail("the first rank of this host did not come within {:.0f} s: is it missing?", timeout_s);
      usleep(1000);
    }
    return board.announced();
  };
  return meet_processes(rank, board.ranks(), tell_all, timeout_s);
}

namespace {

class SharedTransport final : public Transport {
 public:
  SharedTransport(const std::shared_ptr<SharedGroup>& group, int rank)
      : meeting_(group, rank),
        collectives_(
            meeting_, host_work(), finder(), [this](int peer) { return meeting_.exhibit(peer).staging; },
            staging_bytes / 2),
        group_(group),
        rank_(rank),
        size_(group->size) {
    const OwnerScope scope(Owner::messages);
    held_ = ChargedBytes(Memory::host, sizeof(Lane));
    reads_ = !group_->threads() && try_reaching(meeting_);
    collectives_.set_reads(reads_);
  }

  const char* name() const override { return group_->threads() ? "threads" : "shared"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void abort() override { group_->abort(); }
  void try_with(const TransportTrial& trial) override {
    meeting_.set_checking(trial.checking);
    collectives_.set_reads(trial.reading && reads_);
    uses_cards_ = trial.cards;
  }
  bool reaches(at::Device device) const override { return device.is_cpu() || (cards_ && uses_cards_); }

  void carry_out(const Call& call, const Arguments& arguments) override {
    try {
      meeting_.show(call, arguments.idle);
      if (arguments.tensor.defined()) meeting_.mine().place = place_of(arguments.tensor);
      (call.on_card ? cards_->collectives : collectives_).carry_out(call, arguments);
    } catch (...) {
      if (group_->threads()) group_->keep(arguments.tensor);
      throw;
    }
  }

  const char* way(const Call& call) const override {
    if (call.collective == Collective::barrier) return "";
    return (call.on_card ? cards_->collectives : collectives_).way();
  }

  at::Tensor allocate(const Call& call, int64_t bytes, at::Device device) override;
  std::unique_ptr<Transport> split(const Call& call, int color) override;
  std::unique_ptr<Mail> open_mail(const Call& call, const MailPeers& peers) override;

 private:
  // Allocated by all ranks together: each one's part, mapped by every rank.
  struct Allocation {
    explicit Allocation(int ranks) : segments(ranks), cards(ranks), parts(ranks), bytes(ranks) {}

    std::vector<Segment> segments;                   // of the host,
    std::vector<std::unique_ptr<CardMemory>> cards;  // or of cards
    std::vector<std::byte*> parts;
    std::vector<int64_t> bytes;  // of each rank's part
  };
  using AllocationPtr = std::shared_ptr<Allocation>;

  // Once tensors of cards stay there. A rank's staging buffer has two pieces for each of two calls in turn. Ranks that
  // take turns on a card wait long for each other: pieces are large, but only once they are needed.
  struct Cards {
    static constexpr int64_t least_piece_bytes = 1 << 20, most_piece_bytes = 64 << 20;
    std::unique_ptr<MemoryWork> work;
    AllocationPtr staging;
    int64_t piece_bytes = least_piece_bytes;
    SharedCollectives collectives;
    ChargedBytes held{};

    void charge() {
      const OwnerScope scope(Owner::messages);
      held = ChargedBytes(Memory::card, 4 * piece_bytes);
    }
  };

  AllocationPtr share(int64_t bytes);
  AllocationPtr share_on_cards(int64_t bytes, at::Device device);
  void use_cards(at::Device device);
  int64_t grow_staging(int64_t bytes, at::Device device);

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
    meeting_.meet();  // everybody has read it: the next call may write there again
    if (failed < 0) return;
    const auto why = failed == rank_ ? problem : "its own message says why";
    fail(
        "rank {} could not {} ({}); free some of /dev/shm, or let messages go by MPI (trireme train: "
        "comm.transport=mpi, bench comm: --transport mpi)",
        failed, what, why);
  }

  // Names of segments that this rank has made, in the exhibit of the current call; and what another one shows.
  void show_names(const std::vector<SegmentName>& names) {
    auto& words = meeting_.mine().words;
    if (names.size() * sizeof(SegmentName) > sizeof words)
      fail("{} ranks of one host are too many for messages through shared memory: use comm.transport=mpi", size_);
    std::memcpy(words, names.data(), names.size() * sizeof(SegmentName));
  }
  SegmentName name_shown(int rank, int number) {
    SegmentName name;
    std::memcpy(name.words, &meeting_.exhibit(rank).words[2 * number], sizeof name.words);
    return name;
  }

  Lane& lane(int rank) { return meeting_.lane(rank); }

  Place place_of(const at::Tensor& tensor) const {
    const auto* address = static_cast<const std::byte*>(tensor.const_data_ptr());
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (group_->threads() && tensor.is_cpu()) return {0, reinterpret_cast<uint64_t>(address), bytes};
    for (size_t n = 0; n < allocations_.size(); ++n) {
      const auto* part = allocations_[n]->parts[static_cast<size_t>(rank_)];
      if (address >= part && address < part + allocations_[n]->bytes[static_cast<size_t>(rank_)]) {
        return {static_cast<int64_t>(n) + 1, static_cast<uint64_t>(address - part), bytes};
      }
    }
    return {-1, reinterpret_cast<uint64_t>(address), bytes};
  }

  SharedCollectives::Find finder() {
    return [this](int rank, const Place& place) {
      if (place.segment == 0 && group_->threads()) return reinterpret_cast<std::byte*>(place.offset);
      if (place.segment <= 0 || place.segment > static_cast<int64_t>(allocations_.size()))
        fail("rank {} shows memory of its allocation {}, but there are {}: its memory may be faulty", rank,
             place.segment, allocations_.size());
      const auto& allocation = *allocations_[static_cast<size_t>(place.segment) - 1];
      const int64_t room = allocation.bytes[static_cast<size_t>(rank)];
      if (place.bytes < 0 || place.bytes > room || place.offset > static_cast<uint64_t>(room - place.bytes))
        fail("rank {} shows {} bytes at {} of its allocation {}, which has {}: its memory may be faulty", rank,
             place.bytes, place.offset, place.segment, room);
      return allocation.parts[static_cast<size_t>(rank)] + place.offset;
    };
  }

  SharedMeeting meeting_;
  SharedCollectives collectives_;
  std::shared_ptr<SharedGroup> group_;
  const int rank_;
  const int size_;
  std::vector<AllocationPtr> allocations_;
  std::unique_ptr<Cards> cards_;
  ChargedBytes held_;  // of the group's memory: this rank's lane
  int splits_ = 0, mails_ = 0;
  bool reads_ = false, uses_cards_ = true;
};

// Each rank makes its part and opens the others'.
SharedTransport::AllocationPtr SharedTransport::share(int64_t bytes) {
  auto allocation = std::make_shared<Allocation>(size_);
  auto& segments = allocation->segments;
  std::string problem;
  meeting_.meet_and_check();  // names are there for a moment only: nobody is waited for while they are
  attempt(problem, bytes, [&] {
    if (bytes > 0) segments[rank_] = Segment::create(static_cast<size_t>(bytes));
  });
  show_names({segments[rank_].name()});
  meeting_.meet();
  attempt(problem, bytes, [&] {
    for (int i = 0; i < size_; ++i) {
      const int64_t theirs = lane(i).given;
      if (i != rank_ && theirs > 0) segments[i] = Segment::open(name_shown(i, 0), static_cast<size_t>(theirs));
    }
  });
  meeting_.meet();
  segments[rank_].hide();
  check_attempts(problem, fmt::format("share {} bytes of memory", bytes));
  for (int i = 0; i < size_; ++i) {
    allocation->parts[i] = segments[i].data();
    allocation->bytes[i] = static_cast<int64_t>(segments[i].bytes());
  }
  return allocation;
}

// The same on cards. Null, on all ranks alike, where one cannot reach another's memory.
SharedTransport::AllocationPtr SharedTransport::share_on_cards(int64_t bytes, at::Device device) {
  auto allocation = std::make_shared<Allocation>(size_);
  auto& cards = allocation->cards;
  CardHandle handle;
  std::string problem;
  attempt(problem, 1, [&] {
    cards[rank_] = CardMemory::make(device, std::max<int64_t>(bytes, 1));
    if (cards[rank_]) handle = cards[rank_]->handle();
  });
  constexpr size_t bytes_word = 64;  // behind the handle
  static_assert(sizeof handle <= bytes_word * sizeof(int64_t));
  std::memcpy(meeting_.mine().words, &handle, sizeof handle);
  meeting_.mine().words[bytes_word] = bytes;
  meeting_.meet_and_check();
  bool reached = cards[rank_] != nullptr;
  attempt(problem, 1, [&] {
    for (int i = 0; i < size_; ++i) {
      std::memcpy(&handle, meeting_.exhibit(i).words, sizeof handle);
      allocation->bytes[i] = meeting_.exhibit(i).words[bytes_word];
      if (i != rank_ && handle.pid != 0) {
        group_->check_process(i, handle.pid);
        cards[i] = CardMemory::open(device, handle);
      }
      reached = reached && cards[i];
    }
  });
  if (lane(rank_).given == 1 && !reached) lane(rank_).given = 0;
  meeting_.meet();
  for (int i = 0; i < size_; ++i) reached = reached && lane(i).given == 1;
  check_attempts(problem, fmt::format("share {} bytes of its card", bytes));
  if (!reached) return nullptr;
  for (int i = 0; i < size_; ++i) allocation->parts[i] = cards[i]->data();
  if (!group_->threads()) cards[rank_]->keep(true);
  return allocation;
}

void SharedTransport::use_cards(at::Device device) {
  auto staging = share_on_cards(4 * Cards::least_piece_bytes, device);
  if (!staging) return;
  auto work = make_card_work(device);
  const auto staged = [this](int rank) {
    return cards_->staging->parts[static_cast<size_t>(rank)] +
           static_cast<int64_t>(meeting_.turn()) * 2 * cards_->piece_bytes;
  };
  const auto grow = [this, device](int64_t bytes) { return grow_staging(bytes, device); };
  SharedCollectives collectives(meeting_, *work, finder(), staged, Cards::least_piece_bytes, grow);
  cards_.reset(new Cards{std::move(work), std::move(staging), Cards::least_piece_bytes, std::move(collectives)});
  cards_->charge();
}

int64_t SharedTransport::grow_staging(int64_t bytes, at::Device device) {
  int64_t piece = cards_->piece_bytes;
  while (piece < std::min(bytes, Cards::most_piece_bytes)) piece *= 2;
  if (piece == cards_->piece_bytes) return piece;
  meeting_.meet();  // all are done with what they showed each other, and with the buffers
  if (auto larger = share_on_cards(4 * piece, device)) {
    const auto smaller = std::exchange(cards_->staging, std::move(larger));
    cards_->piece_bytes = piece;
    cards_->charge();
    for (int i = 0; i < size_; ++i) {
      if (i != rank_) smaller->cards[i].reset();
    }
    meeting_.meet();  // nobody maps it any more
    smaller->cards[rank_]->keep(false);
  }
  return cards_->piece_bytes;
}

at::Tensor SharedTransport::allocate(const Call& call, int64_t bytes, at::Device device) {
  meeting_.show(call, /*idle=*/true);
  const auto options = at::TensorOptions().device(device).dtype(at::kByte);
  AllocationPtr allocation;
  if (device.is_cuda() && size_ > 1) {
    allocation = share_on_cards(bytes, device);
    if (allocation && !cards_) use_cards(device);
    if (!allocation) log::warn("the cards of this host cannot reach each other: their tensors go through the host");
  } else if (device.is_cuda() || group_->threads()) {
    meeting_.meet_and_check();
  } else {
    allocation = share(bytes);
  }
  if (allocation) allocations_.push_back(allocation);  // also of nothing: all ranks count them alike
  if (!allocation || bytes == 0) return at::zeros({bytes}, options);
  // The tensor keeps the mapping alive, even beyond this transport.
  return at::from_blob(allocation->parts[rank_], {bytes}, [allocation](void*) {}, options);
}

std::unique_ptr<Transport> SharedTransport::split(const Call& call, int color) {
  meeting_.show(call, /*idle=*/true);
  lane(rank_).given = color;
  meeting_.meet_and_check();
  std::vector<int> members;
  for (int i = 0; i < size_; ++i) {
    if (lane(i).given == color) members.push_back(i);
  }
  meeting_.meet();  // everybody has read the colors
  const int size = static_cast<int>(members.size());
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  const size_t bytes = SharedGroup::bytes_for(size);
  const auto name = fmt::format("group{}.{}", splits_++, members[0]);
  std::shared_ptr<SharedGroup> group;
  std::string problem;
  attempt(problem, 0, [&] {
    if (color < 0) return;
    if (group_->threads()) {
      group = group_->common<SharedGroup>(name, [&] { return make_thread_group(size, group_); });
    } else if (place == 0) {
      group = std::make_shared<SharedGroup>(Segment::create(bytes), size, /*threads=*/false, group_);
      show_names({group->name()});
    }
  });
  meeting_.meet();
  attempt(problem, 0, [&] {
    if (color >= 0 && !group) {
      group = std::make_shared<SharedGroup>(Segment::open(name_shown(members[0], 0), bytes), size, /*threads=*/false,
                                            group_);
    }
  });
  meeting_.meet();
  if (!group_->threads() && group && place == 0) group->hide();
  check_attempts(problem, "join its group");
  if (color < 0) return nullptr;
  return std::make_unique<SharedTransport>(group, static_cast<int>(place));
}

std::unique_ptr<Mail> SharedTransport::open_mail(const Call& call, const MailPeers& peers) {
  meeting_.show(call, /*idle=*/true);
  const auto number = mails_++;
  std::string problem;
  std::unique_ptr<SharedMail> mail;
  auto mine = peers;
  mine.on_cards = peers.on_cards && uses_cards_;
  meeting_.meet_and_check();
  attempt(problem, 0, [&] {
    mail = std::make_unique<SharedMail>(group_, rank_, number, mine);
    show_names(mail->ring_names(size_));
  });
  meeting_.meet();
  attempt(problem, 0, [&] { mail->connect([this](int to) { return name_shown(to, rank_); }); });
  meeting_.meet();
  if (mail) mail->hide();
  check_attempts(problem, "open the ways for its messages");
  return mail;
}

}  // namespace

std::unique_ptr<Transport> make_shared_transport(std::shared_ptr<SharedGroup> group, int rank) {
  return std::make_unique<SharedTransport>(std::move(group), rank);
}

}  // namespace trireme
