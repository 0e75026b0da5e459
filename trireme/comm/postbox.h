// The postbox: tensors sent from rank to rank while both go on computing. A receiver opens a box for each tag that it
// will get, once; each step it says that it expects the next message there, and is called when that has come, which may
// be before it asked. One thread takes messages in, and sleeps when there are none; a thread with nothing to do may
// help.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/comm/mail.h"
#include "trireme/device/device.h"
#include "trireme/engine/executor.h"
#include "trireme/observe/recorder.h"

namespace trireme {

struct PostboxOptions {
  int rank = 0;
  at::Device device = at::kCPU;  // where received tensors shall lie
  double jitter_s = 0;           // every message is held back for a random time up to this, for tests of schedules
  uint64_t seed = 0;
  bool settled = false;  // on a card: a message is told of when it is whole, not when the copy that makes it is given
};

class Postbox final : public Helper, MailHandler {
 public:
  // Called when an expected message is there, or will not come; on whichever thread took it in. Must not wait.
  using Arrived = std::function<void(PendingTensor, std::exception_ptr)>;
  using Box = size_t;

  Postbox(std::unique_ptr<Mail> mail, Recorder& recorder, PostboxOptions options);
  ~Postbox() override;

  // Returns at once, on a card before the work is done that makes the tensor; it must be left alone from then on.
  void send(int to, MessageTag tag, const at::Tensor& tensor);

  Box open(int from, MessageTag tag, Arrived arrived);
  void expect(Box box);

  // Takes every message with this tag as it comes. `failed` is called when none will come any more.
  using Take = std::function<void(at::Tensor)>;
  using Failed = std::function<void(std::exception_ptr)>;
  void listen(int from, MessageTag tag, Take take, Failed failed);

  bool help(bool may_be_kept) override;
  // Every message that is expected now will not come: who waits is told.
  void cancel(const std::exception_ptr& error) override;

 private:
  // Messages of one tag from one rank: those that came before they were expected wait in their order.
  struct Slot {
    Arrived arrived;
    bool expected = false;
    std::deque<PendingTensor> waiting;
    at::Tensor arriving;  // on the host
    bool listened = false;       // its messages are expected one after the other, without end
    std::exception_ptr untold{};  // what a listener hears that was busy when all were told
  };
  struct Delayed {
    int64_t due_ns;
    Box box;
    PendingTensor message;
  };
  // A tensor on its way from a card to the host.
  struct Leaving {
    int to;
    MessageHeader header;
    PendingTensor message;
  };

  void* place_for(int from, const MessageHeader& header) override;
  void arrived(int from, const MessageHeader& header) override;
  void arrived(int from, const MessageHeader& header, PendingTensor message) override;
  void check(int from, const MessageHeader& header);
  bool ends();
  Box box_of(int from, MessageTag tag);
  void deliver(Box box, PendingTensor message);
  void hand_over(std::unique_lock<std::mutex>& lock, Box box, PendingTensor message);
  bool is_due(const Delayed& one, int64_t now_ns) const;
  bool send_ready();
  void draw(const char* what, int64_t begun_ns, int from, int to, const MessageHeader& header) const;
  bool deliver_due();
  at::Tensor take_buffer(const MessageHeader& header);
  void run();
  bool poll();
  void fail_all(std::exception_ptr error);
  void tell_all(const std::exception_ptr& error);

  std::unique_ptr<Mail> mail_;
  Recorder& recorder_;
  const PostboxOptions options_;

  std::mutex sending_;  // who holds it hands a message over; taken before mutex_
  std::mutex polling_;  // who holds it takes messages in
  std::mutex mutex_;    // guards what follows
  std::deque<Slot> boxes_;
  std::unordered_map<uint64_t, Box> by_key_;
  std::unordered_map<int, uint64_t> sent_, received_;  // messages by peer
  std::vector<Delayed> delayed_;
  std::deque<Leaving> leaving_;
  uint64_t delays_ = 0;
  int64_t arriving_ns_ = 0;          // when the message began to come in that is coming now
  std::vector<at::Tensor> buffers_;  // on the host, reused when nobody holds them any more
  std::exception_ptr failure_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace trireme
