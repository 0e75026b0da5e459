// Collectives among ranks that see each other's memory, of the host or of cards. An all-reduce of memory that all of
// them can reach is one pass: rank r reads slice r of every rank's buffer and writes the sum to all of them, so p ranks
// read and write each element once between them. Memory of other processes of the host is reached through the kernel,
// where it allows that. What is short, and all else, goes through staging buffers in pieces (on the host such that they
// stay in a core's cache), with one meeting a piece: while one half of a buffer is read, the other is filled.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "trireme/comm/memory_work.h"
#include "trireme/comm/shared_meeting.h"
#include "trireme/comm/transport.h"

namespace trireme {

class SharedCollectives {
 public:
  // Where a rank's buffer lies in this process, by what that rank has shown, or an error where that cannot be; and its
  // staging buffer of this call, of two pieces.
  using Find = std::function<std::byte*(int rank, const Place& place)>;
  using Staging = std::function<std::byte*(int rank)>;
  // Makes larger staging buffers for a call that takes so many bytes through them, and says how long a piece is now.
  using Grow = std::function<int64_t(int64_t bytes)>;

  SharedCollectives(SharedMeeting& meeting, MemoryWork& work, Find find, Staging staging, int64_t piece_bytes,
                    Grow grow = {})
      : meeting_(meeting),
        work_(work),
        rank_(meeting.rank()),
        size_(meeting.size()),
        find_(std::move(find)),
        staging_(std::move(staging)),
        grow_(std::move(grow)),
        piece_bytes_(piece_bytes),
        places_(static_cast<size_t>(size_)),
        addresses_of_buffers_(static_cast<size_t>(size_)),
        addresses_(static_cast<size_t>(size_)) {}

  // All ranks may read and write each other's memory through the kernel.
  void set_reads(bool reads) { reads_ = reads; }

  // How the data of the last call moved.
  const char* way() const { return way_; }

  // The call has been shown, with `place` saying where the tensor lies.
  void carry_out(const Call& call, const Arguments& arguments);

 private:
  // Shorter ones are copied even where they could be reached: that saves a meeting.
  static constexpr int64_t worth_reaching = 32 << 10;

  void call(const Call& call, const Arguments& arguments);
  void all_reduce(const Call& call, std::byte* data, int64_t element);
  // Reduces elements [begin, end), bit by bit, reading the others' through the kernel. The results go into this rank's
  // own buffer and into that of rank `to`, or everybody's.
  void reduce_by_kernel(const Call& call, std::byte* data, int64_t element, int64_t begin, int64_t end, int to);
  void all_reduce_staged(const Call& call, std::byte* data, int64_t element);
  void reduce_to_root(const Call& call, std::byte* data, int64_t element);
  void reduce_scatter(const Call& call, std::byte* data, int64_t element, const Offsets& parts);
  void broadcast(int root, std::byte* data, int64_t bytes);
  // Part r of the output is what rank r gives: part r of its tensor (`in_place`), or all of it. In bytes.
  void gather(const std::byte* tensor, std::byte* output, const Offsets& parts, bool in_place);
  void all_to_all(const Arguments& arguments);

  // Takes in where the others' buffers lie, once a call: what stands in shared memory is checked when it is copied from
  // there, and not looked at again. The buffer of rank i has at least `bytes(i)` bytes.
  template <class Bytes>
  void take_places(const Bytes& bytes);
  void take_places(int64_t bytes);
  std::byte* address_of(int rank) { return addresses_of_buffers_[static_cast<size_t>(rank)]; }
  bool has_address(int rank) const { return places_[static_cast<size_t>(rank)].segment >= 0; }
  bool all_have_addresses();
  // All that this rank was to do before the others go on is done by then.
  void meet();
  void meet_and_check();
  void copy(std::byte* to, const std::byte* from, int64_t bytes);
  // Copies from where a rank's buffer lies, or to there, through the kernel if need be. Never beyond what it shows.
  void check_range(int rank, int64_t offset, int64_t bytes) const;
  void read(int rank, int64_t offset, std::byte* to, int64_t bytes);
  void write(int rank, int64_t offset, std::byte* from, int64_t bytes);
  template <class Copy>
  void by_kernel(Copy copy, int rank, int64_t offset, std::byte* here, int64_t bytes);
  // All ranks know by now that they take so many bytes through their staging buffers.
  void stage(int64_t bytes);
  // A rank's staging buffer for the k-th piece.
  std::byte* staging(int rank, int64_t piece) { return staging_(rank) + (piece % 2) * piece_bytes_; }
  // Each piece is put into this rank's staging buffer, and taken out of the others' when all have done so. A rank
  // begins on the piece after next only when all have come to the next one, and so are done with this one.
  template <class Put, class Take>
  void in_pieces(int64_t bytes, const Put& put, const Take& take);
  // Elements [first, last) of all buffers, which begin at element `origin` of the tensor, into one target, or, without
  // one, into all of them.
  void reduce_span(const Call& call, int64_t element, int64_t origin, int64_t first, int64_t last,
                   const std::vector<void*>& buffers, void* target = nullptr);
  const std::vector<void*>& staged(int64_t piece);
  const std::vector<void*>& reached();

  SharedMeeting& meeting_;
  MemoryWork& work_;
  const int rank_, size_;
  const Find find_;
  const Staging staging_;
  const Grow grow_;
  int64_t piece_bytes_;
  bool reads_ = false;
  const char* way_ = "";
  std::vector<Place> places_;                     // of the current call,
  std::vector<std::byte*> addresses_of_buffers_;  // and where this process sees them; null where only the kernel does
  std::vector<void*> addresses_, slice_;
  std::vector<std::byte> scratch_;  // what was read of each rank
  std::vector<int64_t> parts_;      // where each rank's parts begin, those that it gives and those that it takes
};

}  // namespace trireme
