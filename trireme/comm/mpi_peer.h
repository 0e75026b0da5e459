// MPI's own collectives, blocking, on fp32 buffers: what the benchmark measures beside ours. Nothing else uses them.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// The ranks must be processes that MPI started and World joined.
struct MpiPeer {
  static void all_reduce(float* data, int64_t count);
  static void reduce_scatter(const float* data, float* part, int64_t part_count);
  static void all_gather(const float* part, float* data, int64_t part_count);
  static void all_to_all(const float* given, float* taken, int64_t part_count);
  static void barrier();
  // Started, then waited for after `work` has been done. Open MPI moves data only inside of its calls: work may call
  // progress() between its pieces.
  template <class Work>
  static void all_reduce_beside(float* data, int64_t count, Work work) {
    start_all_reduce(data, count);
    work();
    finish_all_reduce();
  }
  static void progress();

  // Which MPI this is, how it moves bytes between ranks of one host, and on how many cores its ranks may run: "Open MPI
  // v4.1.4, copies in one pass by cma, ranks on any of 2 cores".
  static std::string describe();

 private:
  static void start_all_reduce(float* data, int64_t count);
  static void finish_all_reduce();
};

}  // namespace trireme
