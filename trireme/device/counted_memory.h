// Counts the bytes of the tensors that a thread has allocated on the host and that are still alive, whoever frees them.
// So what a forward pass leaves behind for its backward pass is known by counting, not by guessing.
#pragma once

#include <cstdint>

namespace trireme {

// From the first call on, all CPU tensors of this process are counted, by the thread that allocates them.
void count_memory();

// Bytes that tensors of the calling thread hold now.
int64_t counted_bytes();

}  // namespace trireme
