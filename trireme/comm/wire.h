// Bytes from rank to rank of a group, for collectives that are made of messages. What was posted moves while the caller
// goes on, and its memory must stay until it is finished. Messages from one rank to another arrive in the order in
// which they were posted, and sender and receiver agree on their lengths.
#pragma once

#include <cstdint>

namespace trireme {

class Wire {
 public:
  using Posted = uint64_t;

  virtual ~Wire() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Posted send(int to, const void* data, int64_t bytes) = 0;
  virtual Posted receive(int from, void* data, int64_t bytes) = 0;
  // Returns when this one is done. Each must be finished once.
  virtual void finish(Posted posted) = 0;
};

}  // namespace trireme
