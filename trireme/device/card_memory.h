// Memory of a card that ranks of one host share: one of them makes it, the others open it (CUDA IPC between processes).
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme {

// How others find it: plain bytes, valid in every process of the host while the one that made it lives.
struct CardHandle {
  int64_t pid = 0;          // of the process that made it; 0: there is none
  void* address = nullptr;  // there
  std::byte handle[64] = {};
};

class CardMemory {
 public:
  // Zeroed. Null where the driver does not let processes share a card's memory.
  static std::unique_ptr<CardMemory> make(c10::Device device, int64_t bytes);
  // Null when the card of this rank cannot reach it.
  static std::unique_ptr<CardMemory> open(c10::Device device, const CardHandle& handle);
  ~CardMemory();

  std::byte* data() const { return data_; }
  const CardHandle& handle() const { return handle_; }
  // Whether another process may still map it: then it must not be freed under that, and goes with this process.
  void keep(bool mapped) { kept_ = mapped; }

 private:
  CardMemory(c10::Device device, std::byte* data) : device_(device), data_(data) {}

  const c10::Device device_;
  std::byte* const data_;
  CardHandle handle_;
  bool made_ = false, opened_ = false, kept_ = false;
};

}  // namespace trireme
