#include "trireme/nn/on_threads.h"

#include <ATen/TensorIterator.h>

#include <atomic>

#include "trireme/base/error.h"

namespace trireme {

// An iterator over the tensor alone: torch cuts it into pieces for its threads, and a piece is known by its address.
void on_threads(const at::Tensor& tensor, int64_t grain, c10::function_ref<void(int64_t begin, int64_t end)> work) {
  if (!tensor.is_cpu() || !tensor.is_contiguous()) fail("only contiguous tensors of the host are worked on by threads");
  if (tensor.numel() == 0) return;
  const auto flat = tensor.view({-1});
  auto pieces = at::TensorIteratorConfig()
                    .set_check_mem_overlap(false)
                    .check_all_same_dtype(false)
                    .resize_outputs(false)
                    .add_output(flat)
                    .build();
  const auto* base = static_cast<const char*>(flat.const_data_ptr());
  const auto element = static_cast<int64_t>(flat.element_size());
  std::atomic<int> done{0};  // OpenMP joins its threads anyway; this says it to a sanitizer that does not see OpenMP
  pieces.for_each(
      [&](char** data, const int64_t* strides, int64_t count, int64_t times) {
        for (int64_t i = 0; i < times; ++i) {
          const int64_t begin = (data[0] + i * strides[1] - base) / element;
          work(begin, begin + count);
        }
        done.fetch_add(1, std::memory_order_release);
      },
      grain);
  done.load(std::memory_order_acquire);
}

}  // namespace trireme
