// Messages through memory that two ranks of one host share: for each pair a ring of slots, into which the sender copies
// and from which the receiver copies. A message longer than a slot takes several. The slots for tensors of a card lie
// on the receiver's card (device/device_slots); then only headers pass through the host. A rank whose ring is empty, or
// full, sleeps until its bell is rung.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/mail.h"
#include "trireme/comm/shared_group.h"

namespace trireme {

class SharedMail final : public Mail {
 public:
  // Makes the rings of the messages to this rank; connect() opens those from it once all ranks have made theirs, and
  // hide() removes their names once all have connected.
  SharedMail(std::shared_ptr<SharedGroup> group, int rank, int number, const MailPeers& peers);
  ~SharedMail() override;
  // Of the rings to this rank, by sender, of so many ranks; not set where nothing is expected of one.
  std::vector<SegmentName> ring_names(int ranks) const;
  // `name_at(to)`: what rank `to` has named the ring of this rank's messages to it.
  void connect(const std::function<SegmentName(int to)>& name_at);
  void hide();

  bool takes_device(int to) const override;
  void send(int to, const MessageHeader& header, const at::Tensor& tensor, DeviceEvent ready) override;
  bool poll(MailHandler& handler) override;
  void sleep(int64_t deadline_ns) override;
  void wake() override { group_->ring(rank_); }

 private:
  struct Ring;
  struct Outgoing;
  struct Incoming;
  struct Message;

  std::string name_among_threads(int from, int to) const;
  Outgoing& way_to(int to) const;
  bool push(Outgoing& way);
  bool put_down(Outgoing& way, Message& message);
  static void check(int from, const Incoming& way, const MessageHeader& header, int64_t offset, int64_t bytes,
                    bool on_device);
  bool take(int from, Incoming& way, MailHandler& handler);

  std::shared_ptr<SharedGroup> group_;
  const int rank_;
  const int number_;
  const MailPeers peers_;
  std::atomic<uint32_t> seen_{0};  // of the bell, before the last poll by any thread
  std::map<int, std::unique_ptr<Outgoing>> outgoing_;
  std::map<int, std::unique_ptr<Incoming>> incoming_;
};

}  // namespace trireme
