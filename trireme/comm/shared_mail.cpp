#include "trireme/comm/shared_mail.h"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/device/device_slots.h"
#include "trireme/observe/board.h"
#include "trireme/observe/ledger.h"

namespace trireme {

namespace {
constexpr uint32_t slots = device_slots;  // in each ring
constexpr int64_t least_slot_bytes = 4096, most_slot_bytes = 8 << 20, most_device_slot_bytes = 64 << 20;

int64_t slot_bytes_for(const MailPeers& peers, int64_t most) {
  return std::clamp((peers.message_bytes + 63) / 64 * 64, least_slot_bytes, most);
}

TraceSpan copying(const char* what, const MessageHeader& header) {
  return {.track = TraceTrack::copies, .name = what, .index = header.tag.microbatch, .step = header.step};
}
}  // namespace

// In shared memory. `put` counts the slots filled by the sender, `taken` those emptied by the receiver.
struct SharedMail::Ring {
  struct Slot {
    MessageHeader header;
    int64_t offset, bytes;  // of the message: what this slot holds
    bool on_device;         // in the slot of the same number there
  };
  alignas(128) std::atomic<uint32_t> put;
  alignas(128) std::atomic<uint32_t> taken;
  std::atomic<uint32_t> starving;  // the sender waits for a free slot
  int64_t slot_bytes, device_slot_bytes;
  SlotEnd receiver, sender;           // on the card; without one no process is named there
  std::atomic<uint32_t> sender_left;  // of the card's memory
  alignas(128) Slot slot[slots];

  std::byte* data(uint32_t index, int64_t bytes_of_slot) {
    return reinterpret_cast<std::byte*>(this + 1) + (index % slots) * bytes_of_slot;
  }
  static size_t bytes_for(int64_t slot_bytes) { return sizeof(Ring) + slots * static_cast<size_t>(slot_bytes); }
};

struct SharedMail::Message {
  MessageHeader header;
  at::Tensor tensor;
  DeviceEvent ready;   // on a card: the work that makes the tensor
  int64_t offset = 0;  // bytes that have left
};

struct SharedMail::Outgoing {
  ~Outgoing() {
    if (!device) return;
    device.reset();
    ring->sender_left.store(1);
  }

  std::shared_ptr<Segment> memory;
  Ring* ring = nullptr;
  int64_t slot_bytes = 0, device_slot_bytes = 0;  // as the ring was when it was opened
  std::unique_ptr<SlotSender> device;             // none where the receiver's card cannot be reached
  int to = 0;
  std::mutex mutex;  // senders, and the thread that pushes on what waits
  std::deque<Message> waiting;
};

struct SharedMail::Incoming {
  ~Incoming() {
    if (device && ring->sender_left.load()) device->sender_left();
  }

  std::shared_ptr<Segment> memory;
  Ring* ring = nullptr;
  int64_t slot_bytes = 0, device_slot_bytes = 0;
  std::unique_ptr<SlotReceiver> device;
  uint32_t taken = 0;           // slots that were emptied
  ChargedBytes held, held_on_card;  // here: both ends map it, and one counts it
  int64_t bytes = 0, came = 0;  // of the message that is arriving now, and how many of them are here
  at::Tensor arriving;          // on the card
  std::byte* place = nullptr;   // where it goes
};

SharedMail::SharedMail(std::shared_ptr<SharedGroup> group, int rank, int number, const MailPeers& peers)
    : group_(std::move(group)), rank_(rank), number_(number), peers_(peers) {
  const int64_t slot_bytes = slot_bytes_for(peers, most_slot_bytes);
  const size_t bytes = Ring::bytes_for(slot_bytes);
  const OwnerScope scope(Owner::messages);
  for (const int from : peers_.from) {
    auto way = std::make_unique<Incoming>();
    const auto make = [&] {
      return std::make_shared<Segment>(group_->threads() ? Segment::anonymous(bytes) : Segment::create(bytes));
    };
    way->memory = group_->threads() ? group_->common<Segment>(name_among_threads(from, rank_), make) : make();
    way->ring = reinterpret_cast<Ring*>(way->memory->data());  // fresh memory is zero: an empty ring
    way->ring->slot_bytes = way->slot_bytes = slot_bytes;
    if (peers.device.is_cuda() && peers.on_cards) {
      way->ring->device_slot_bytes = way->device_slot_bytes = slot_bytes_for(peers, most_device_slot_bytes);
      way->device = SlotReceiver::make(peers.device, way->device_slot_bytes, peers.trace);
      if (way->device) {
        way->ring->receiver = way->device->end();
        way->held_on_card = ChargedBytes(Memory::card, device_slots * way->device_slot_bytes);
      }
    }
    way->held = ChargedBytes(Memory::host, static_cast<int64_t>(bytes));
    incoming_.emplace(from, std::move(way));
  }
}

SharedMail::~SharedMail() = default;

std::string SharedMail::name_among_threads(int from, int to) const {
  return fmt::format("mail{}.{}-{}", number_, from, to);
}

std::vector<SegmentName> SharedMail::ring_names(int ranks) const {
  std::vector<SegmentName> names(static_cast<size_t>(ranks));
  for (const auto& [from, way] : incoming_) names[static_cast<size_t>(from)] = way->memory->name();
  return names;
}

void SharedMail::connect(const std::function<SegmentName(int to)>& name_at) {
  for (const int to : peers_.to) {
    auto way = std::make_unique<Outgoing>();
    const auto missing = [&]() -> std::shared_ptr<Segment> {
      fail("rank {} expects no messages from rank {}", to, rank_);
    };
    const auto open = [&] {
      const auto name = name_at(to);
      return name.is_set() ? std::make_shared<Segment>(Segment::open(name)) : missing();
    };
    way->memory = group_->threads() ? group_->common<Segment>(name_among_threads(rank_, to), missing) : open();
    way->ring = reinterpret_cast<Ring*>(way->memory->data());
    way->to = to;
    auto& ring = *way->ring;
    const auto bytes = static_cast<int64_t>(way->memory->bytes());
    way->slot_bytes = bytes > static_cast<int64_t>(sizeof(Ring)) ? ring.slot_bytes : 0;
    if (way->slot_bytes < least_slot_bytes || way->slot_bytes > most_slot_bytes ||
        Ring::bytes_for(way->slot_bytes) != way->memory->bytes())
      fail("the ring of messages to rank {} has slots of {} bytes and {} in all, which cannot be", to, way->slot_bytes,
           bytes);
    if (peers_.device.is_cuda() && peers_.on_cards) {
      const SlotEnd receiver = ring.receiver;
      if (receiver.pid != 0) {
        group_->check_process(to, receiver.pid);
        group_->check_process(to, receiver.memory.pid);
        way->device_slot_bytes = ring.device_slot_bytes;
        if (way->device_slot_bytes < least_slot_bytes || way->device_slot_bytes > most_device_slot_bytes)
          fail("the ring of messages to rank {} has slots of {} bytes on its card, which cannot be", to,
               way->device_slot_bytes);
        way->device = SlotSender::meet(peers_.device, receiver, way->device_slot_bytes, peers_.trace);
      }
      if (way->device) {
        ring.sender = way->device->end();
      } else {
        log::warn("the card of rank {} cannot be reached from here: messages to it go through the host", to);
      }
    }
    outgoing_.emplace(to, std::move(way));
  }
}

void SharedMail::hide() {
  if (group_->threads()) return;
  for (auto& [from, way] : incoming_) way->memory->hide();
}

SharedMail::Outgoing& SharedMail::way_to(int to) const {
  const auto found = outgoing_.find(to);
  if (found == outgoing_.end()) fail("no way for messages to rank {} was opened", to);
  return *found->second;
}

bool SharedMail::takes_device(int to) const { return way_to(to).device != nullptr; }

void SharedMail::send(int to, const MessageHeader& header, const at::Tensor& tensor, DeviceEvent ready) {
  auto& way = way_to(to);
  std::lock_guard lock(way.mutex);
  Message message{header, tensor, std::move(ready), 0};
  if (!way.waiting.empty() || !put_down(way, message)) way.waiting.push_back(std::move(message));
}

// Pushes on what waits; the way's mutex is held.
bool SharedMail::push(Outgoing& way) {
  bool moved = false;
  while (!way.waiting.empty()) {
    auto& message = way.waiting.front();
    const int64_t before = message.offset;
    const bool whole = put_down(way, message);
    moved |= whole || message.offset != before;
    if (!whole) break;
    way.waiting.pop_front();
  }
  return moved;
}

// Puts as much of the message into free slots as they take; true when all of it has left.
bool SharedMail::put_down(Outgoing& way, Message& message) {
  auto& ring = *way.ring;
  do {
    const uint32_t put = ring.put.load(std::memory_order_relaxed);
    const auto full = [&] {
      const uint32_t taken = ring.taken.load(std::memory_order_seq_cst);
      if (put - taken > slots)
        fail("the ring of messages to rank {} has {} slots filled and {} emptied, of {}: its memory may be faulty",
             way.to, put, taken, slots);
      return put - taken == slots;
    };
    if (full()) {
      ring.starving.store(1, std::memory_order_seq_cst);
      // A slot may have been freed before the receiver could see that we starve.
      if (full()) return false;
    }
    auto& slot = ring.slot[put % slots];
    const bool on_device = message.tensor.is_cuda();
    const int64_t bytes =
        std::min(on_device ? way.device_slot_bytes : way.slot_bytes, message.header.bytes - message.offset);
    slot.header = message.header;
    slot.offset = message.offset;
    slot.bytes = bytes;
    slot.on_device = on_device;
    if (on_device) {
      way.device->fill(put % slots, message.tensor, message.offset, bytes, message.ready,
                       copying("copy out", message.header));
    } else if (bytes > 0) {
      std::memcpy(ring.data(put, way.slot_bytes),
                  static_cast<const std::byte*>(message.tensor.const_data_ptr()) + message.offset,
                  static_cast<size_t>(bytes));
    }
    message.offset += bytes;
    ring.put.store(put + 1, std::memory_order_release);
    group_->ring(way.to);
  } while (message.offset < message.header.bytes);
  return true;
}

// What a slot says of the message that it holds, before anything is done with it.
void SharedMail::check(int from, const Incoming& way, const MessageHeader& header, int64_t offset, int64_t bytes,
                       bool on_device) {
  const int64_t most = on_device ? way.device_slot_bytes : way.slot_bytes;
  const bool goes_on = offset == way.came && (offset == 0 || header.bytes == way.bytes);
  const bool fits =
      goes_on && bytes >= 0 && bytes <= most && bytes <= header.bytes - offset && (bytes > 0 || header.bytes == 0);
  if (!fits || (on_device && !way.device))
    fail(
        "the ring of messages from rank {} holds {} bytes at {} of a message of {}, which cannot be ({} have come, a "
        "slot has {}): its memory may be faulty",
        from, bytes, offset, header.bytes, way.came, most);
}

bool SharedMail::take(int from, Incoming& way, MailHandler& handler) {
  auto& ring = *way.ring;
  bool moved = false;
  while (true) {
    const uint32_t taken = way.taken, put = ring.put.load(std::memory_order_acquire);
    if (taken == put) return moved;
    if (put - taken > slots)
      fail("the ring of messages from rank {} has {} slots filled and {} emptied, of {}: its memory may be faulty",
           from, put, taken, slots);
    // Copied once, and not looked at again: what is checked is what is used.
    const Ring::Slot slot = ring.slot[taken % slots];
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const auto& header = slot.header;
    check(from, way, header, slot.offset, slot.bytes, slot.on_device);
    if (slot.offset == 0) way.bytes = header.bytes;
    if (slot.on_device) {
      if (slot.offset == 0) {
        header.check(from);
        const SlotEnd sender = ring.sender;
        group_->check_process(from, sender.pid);
        way.device->meet(sender);
        way.arriving = way.device->allocate(header.shape(), header.dtype);
      }
      way.device->empty(taken % slots, way.arriving, slot.offset, slot.bytes, copying("copy in", header));
    } else {
      if (slot.offset == 0) way.place = static_cast<std::byte*>(handler.place_for(from, header));
      if (slot.bytes > 0)
        std::memcpy(way.place + slot.offset, ring.data(taken, way.slot_bytes), static_cast<size_t>(slot.bytes));
    }
    way.came = slot.offset + slot.bytes;
    const bool whole = way.came == header.bytes;
    if (whole) way.came = 0;
    ring.taken.store(++way.taken, std::memory_order_seq_cst);
    if (ring.starving.exchange(0, std::memory_order_seq_cst)) group_->ring(from);
    moved = true;
    if (!whole) continue;
    if (slot.on_device) {
      handler.arrived(from, header, {std::move(way.arriving), way.device->emptied()});
    } else {
      handler.arrived(from, header);
    }
  }
}

bool SharedMail::poll(MailHandler& handler) {
  if (group_->aborted()) fail("another rank ended while this one waited for its messages");
  seen_ = group_->lane(rank_).bell.load(std::memory_order_seq_cst);
  bool moved = false;
  for (auto& [from, way] : incoming_) moved |= take(from, *way, handler);
  for (auto& [to, way] : outgoing_) {
    std::lock_guard lock(way->mutex);
    moved |= push(*way);
  }
  return moved;
}

void SharedMail::sleep(int64_t deadline_ns) {
  auto& lane = group_->lane(rank_);
  lane.listening.fetch_add(1, std::memory_order_seq_cst);
  const int64_t left_ns = deadline_ns - monotonic_ns();
  const uint32_t seen = seen_.load();
  if (left_ns > 0 && lane.bell.load(std::memory_order_seq_cst) == seen) futex_wait(lane.bell, seen, left_ns);
  lane.listening.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace trireme
