// Parameters that live on servers: each bucket on one rank, its server, which also trains. Whoever has something to say
// about a bucket sends it there, and gets an answer; servers work on their message threads, whatever their ranks are
// doing meanwhile. What is said and what is answered is up to the user.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "trireme/parallel/loose_sync.h"

namespace trireme {

// A tensor laid out like a bucket, with a few numbers; on the host, wherever the bucket lies.
struct ShardMessage {
  struct Numbers {
    int64_t step = 0, lacks = 0;
    double share = 0, loss = 0;
    bool finite = true, stop = false;
  };
  static constexpr int64_t numbers_bytes = 64;  // a cache line ahead of the tensor
  static_assert(sizeof(Numbers) <= numbers_bytes);

  at::Tensor bytes;

  static ShardMessage like(const at::Tensor& tensor);
  Numbers& numbers() const { return *static_cast<Numbers*>(bytes.data_ptr()); }
  at::Tensor tensor(at::ScalarType type) const {
    return bytes.narrow(0, numbers_bytes, bytes.numel() - numbers_bytes).view(type);
  }
};

class ShardService {
 public:
  // Called on a server for what a rank said of a bucket: on the message thread, or the rank's own; one at a time.
  using Serve = std::function<void(size_t bucket, int from, const ShardMessage& said)>;
  // A rank does not wait for anything any more until it speaks again.
  using Leave = std::function<void(int rank)>;

  ShardService(Replica& replica, Serve serve, Leave leave);

  int server_of(size_t bucket) const { return servers_[bucket]; }
  bool serves(size_t bucket) const { return servers_[bucket] == rank_; }

  // What this rank will say of a bucket next: to be filled in before say().
  ShardMessage& draft(size_t bucket) { return drafts_[bucket]; }
  // Says all drafts, and calls when all have been answered.
  void say(const Communicator::Done& answered);
  const ShardMessage& answer(size_t bucket) const { return answers_[bucket]; }
  void leave();

  // On a server, inside of Serve or Leave: answers a rank. `answer` must be left alone until that rank speaks again.
  void answer(size_t bucket, int to, const ShardMessage& answer);

 private:
  void serve(size_t bucket, int from, ShardMessage said);
  void take_answer(size_t bucket, ShardMessage answer);
  void fail(std::exception_ptr error);  // there will be no answers any more
  void listen();

  Replica& replica_;
  const int rank_, ranks_;
  const Serve serve_;
  const Leave leave_;
  std::vector<int> servers_;  // by bucket
  std::vector<ShardMessage> drafts_, answers_;
  std::mutex serving_;  // one at a time
  std::mutex mutex_;    // guards what follows
  size_t missing_ = 0;
  Communicator::Done answered_;
  std::exception_ptr failure_;
};

}  // namespace trireme
