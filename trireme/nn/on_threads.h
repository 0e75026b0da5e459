// Work on the elements of a tensor by torch's own threads. at::parallel_for is a template: compiled into this program,
// without OpenMP, it is a plain loop, and an OpenMP of our own beside torch's would be a second set of threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace trireme {

// Calls work(begin, end) for pieces of [0, numel) of a contiguous tensor of the host, of about `grain` elements or
// more.
void on_threads(const at::Tensor& tensor, int64_t grain, c10::function_ref<void(int64_t begin, int64_t end)> work);

}  // namespace trireme
