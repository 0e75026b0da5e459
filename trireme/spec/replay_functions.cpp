#include "trireme/spec/replay_functions.h"

#include <algorithm>
#include <cmath>

namespace trireme::replay {

namespace {

// oneDNN copies what it reads into blocks of the processor's caches, and sums up in others: each thread for itself.
// These are the sizes that it takes on a host with AVX-512; MKL, which multiplies fp64, has its own memory.
constexpr double block_rows = 256, block_columns = 64, block_depth = 512;

// x · W, where `turned` says that the matrix does not lie as it is read.
double product_blocks(const Replay& pass, double rows, double inputs, bool turned) {
  const double threads = pass.conditions().threads;
  const double depth = inputs > 2 * block_depth ? 2 * block_depth : std::min(inputs, block_depth);
  const double read = depth * block_columns * pass.bytes_of(Element::value);
  if (pass.is_fp32()) return turned ? threads * read : 0;
  return pass.is_bf16() ? threads * (read + std::min(rows, block_rows) * block_columns * 4) : 0;
}

// The same, added to what is there.
double sum_blocks(const Replay& pass, double rows, double inputs) {
  if (pass.is_bf16()) return product_blocks(pass, rows, inputs, false);
  return pass.is_fp32() ? pass.conditions().threads * std::min(rows, block_rows) * block_columns * 4 : 0;
}

// leftᵀ · right of two matrices of many rows, which is [m, n].
double gradient_blocks(const Replay& pass, double rows, double m, double n) {
  const double value = pass.bytes_of(Element::value), taken = std::min(m, block_rows);
  const double read = taken * (rows > block_depth ? block_depth + 16 : rows) * value;
  if (pass.is_fp32()) {
    const double columns = std::min(n, rows > block_depth ? 4 * block_rows : block_columns);
    return pass.conditions().threads * (read + (pass.conditions().adds ? taken * columns * value : 0));
  }
  if (!pass.is_bf16()) return 0;
  return pass.conditions().threads * (read + taken * block_columns * 4 + std::min(n, block_rows) * 256 + 50e3);
}

// A weight's gradient is computed where it stays; one of bf16 products is bf16 first.
void add_product(Replay& pass, const ReplayTensor& left, const ReplayTensor& right, double rows) {
  pass.write_gradient(left, right, [&pass, rows, m = left.elements / rows, n = right.elements / rows] {
    const auto product = pass.is_bf16() ? pass.make(m * n) : ReplayTensor();
    pass.use_scratch(gradient_blocks(pass, rows, m, n));
    if (pass.is_bf16() && pass.conditions().adds) pass.use_scratch(m * n * pass.bytes_of(Element::wide));
  });
}

// LibTorch widens all of a bf16 tensor before it sums it up.
void add_column_sums(Replay& pass, const ReplayTensor& rows) {
  pass.write_gradient(rows, {}, [&pass, elements = rows.elements] {
    if (pass.is_bf16()) pass.use_scratch(elements * pass.bytes_of(Element::wide));
  });
}

ReplayTensor as_view(ReplayTensor tensor) {
  tensor.viewed = true;
  return tensor;
}

// An operation whose backward pass makes one tensor of one: `saved` is what it needs for that.
ReplayTensor elementwise(Replay& pass, const ReplayTensor& x, ReplayTensor y, const ReplayTensors& saved) {
  return pass.record(std::move(y), {x}, false, saved, [&pass](const auto&, const ReplayTensors& gradients) {
    return ReplayTensors{pass.like(gradients[0])};
  });
}

}  // namespace

ReplayTensor linear(Replay& pass, const ReplayTensor& x, const ProjectionSpec& matrix) {
  const auto inputs = static_cast<double>(matrix.inputs), outputs = static_cast<double>(matrix.outputs);
  const double rows = x.elements / inputs;
  const bool trains = pass.trained(matrix.weight), trains_bias = matrix.bias && pass.trained(*matrix.bias);
  auto y = pass.make(rows * outputs);
  pass.use_scratch(product_blocks(pass, rows, inputs, !matrix.in_out));
  const auto backward = [&pass, rows, inputs, outputs, trains, trains_bias, in_out = matrix.in_out,
                         needed = x.needs_gradient()](const ReplayTensors& saved, const ReplayTensors& gradients) {
    const auto &x = saved[0], &g = gradients[0];
    ReplayTensor of_x;
    if (needed) {
      of_x = as_view(pass.make(rows * inputs));
      pass.use_scratch(product_blocks(pass, rows, outputs, in_out));
    }
    if (trains) in_out ? add_product(pass, x, g, rows) : add_product(pass, g, x, rows);
    if (trains_bias) add_column_sums(pass, g);
    return ReplayTensors{of_x};
  };
  return pass.record(std::move(y), {x}, trains || trains_bias, {x}, backward);
}

namespace {

// Several that read the same input.
ReplayTensors linears(Replay& pass, const ReplayTensor& x, const std::vector<ProjectionSpec>& matrices) {
  const auto inputs = static_cast<double>(matrices.front().inputs);
  const double rows = x.elements / inputs;
  ReplayTensors results;
  std::vector<bool> trains;
  bool any = false;
  for (const auto& matrix : matrices) {
    const auto outputs = static_cast<double>(matrix.outputs);
    results.push_back(pass.make(rows * outputs));
    pass.use_scratch(product_blocks(pass, rows, inputs, true));
    trains.push_back(pass.trained(matrix.weight));
    any = any || trains.back();
  }
  std::vector<ReplayTensor*> recorded;
  for (auto& result : results) recorded.push_back(&result);
  pass.record(recorded, {x}, any, {x},
              [&pass, rows, inputs, trains, needed = x.needs_gradient()](const ReplayTensors& saved,
                                                                         const ReplayTensors& gradients) {
                ReplayTensor of_x;
                if (needed) {
                  of_x = as_view(pass.make(rows * inputs));
                  for (const auto& g : gradients) pass.use_scratch(sum_blocks(pass, rows, g.elements / rows));
                }
                for (size_t i = 0; i < gradients.size(); ++i) {
                  if (trains[i]) add_product(pass, gradients[i], saved[0], rows);
                }
                return ReplayTensors{of_x};
              });
  return results;
}

ReplayTensor with_adapter(Replay& pass, const ReplayTensor& y, const ReplayTensor& x, const ProjectionSpec& matrix) {
  if (!matrix.lora_a) return y;
  const auto inner = linear(pass, x, {.inputs = matrix.inputs, .outputs = matrix.rank, .weight = *matrix.lora_a});
  return add(pass, y, linear(pass, inner, {.inputs = matrix.rank, .outputs = matrix.outputs, .weight = *matrix.lora_b}),
             matrix.lora_scale);
}

}  // namespace

ReplayTensor project(Replay& pass, const ReplayTensor& x, const ProjectionSpec& matrix) {
  return with_adapter(pass, linear(pass, x, matrix), x, matrix);
}

ReplayTensors project(Replay& pass, const ReplayTensor& x, const std::vector<ProjectionSpec>& matrices) {
  auto results = linears(pass, x, matrices);
  for (size_t i = 0; i < results.size(); ++i) results[i] = with_adapter(pass, results[i], x, matrices[i]);
  return results;
}

ReplayTensor embedding(Replay& pass, const ReplayTensor& ids, size_t table, double width) {
  auto y = pass.make(ids.elements * width);
  return pass.record(std::move(y), {}, pass.trained(table), {ids},
                     [&pass](const ReplayTensors&, const ReplayTensors& gradients) {
                       if (pass.is_bf16()) pass.use_scratch(gradients[0].elements * pass.bytes_of(Element::wide));
                       return ReplayTensors();
                     });
}

ReplayTensor layer_norm(Replay& pass, const ReplayTensor& x, double width, size_t gain, size_t bias) {
  auto y = pass.like(x);
  const auto mean = pass.make(x.elements / width), inverse = pass.like(mean);
  return pass.record(std::move(y), {x}, pass.trained(gain) || pass.trained(bias), {x, mean, inverse},
                     [&pass](const ReplayTensors& saved, const ReplayTensors&) {
                       return ReplayTensors{pass.like(saved[0])};
                     });
}

namespace {

constexpr double rms_chunk = 64;  // see nn/rms_norm_kernel.cpp

// The type in which rows are summed: a copy of its own under bf16.
ReplayTensor widened(Replay& pass, const ReplayTensor& x) {
  return pass.is_bf16() ? pass.like(x, Element::wide) : x;
}
ReplayTensor narrowed(Replay& pass, const ReplayTensor& x) {
  return pass.is_bf16() ? pass.like(x, Element::value) : x;
}

std::pair<ReplayTensor, ReplayTensor> rms_norm_values(Replay& pass, const ReplayTensor& x, double width) {
  if (pass.is_fp32()) {
    const auto y = pass.like(x);
    return {y, pass.make(x.elements / width)};
  }
  const auto wide = widened(pass, x);
  const auto inverse = pass.make(x.elements / width, Element::wide);
  pass.use_scratch(pass.bytes_of(wide) + 2 * pass.bytes_of(inverse));  // its squares
  const auto normal = pass.like(wide), y = pass.like(wide);
  return {narrowed(pass, y), inverse};
}

ReplayTensor rms_norm_gradient(Replay& pass, const ReplayTensor& g, const ReplayTensor& x, double width) {
  if (pass.is_fp32()) {
    const auto of_x = pass.like(x);
    pass.use_scratch(std::ceil(x.elements / width / rms_chunk) * width * pass.bytes_of(x.element));
    return of_x;
  }
  const auto wide = widened(pass, x), pull = widened(pass, g);
  const auto normal = pass.like(wide), through = pass.like(wide);
  ReplayTensor of_x;
  {
    const auto turned = pass.like(wide), mean = pass.make(x.elements / width, Element::wide), part = pass.like(wide),
               difference = pass.like(wide);
    of_x = pass.like(wide);
  }
  auto result = narrowed(pass, of_x);
  pass.use_scratch(pass.bytes_of(wide));  // the products whose sums are the gain's gradient
  return result;
}

}  // namespace

ReplayTensor rms_norm(Replay& pass, const ReplayTensor& x, double width, size_t gain) {
  auto [y, inverse] = rms_norm_values(pass, x, width);
  return pass.record(std::move(y), {x}, pass.trained(gain), {x, inverse},
                     [&pass, width](const ReplayTensors& saved, const ReplayTensors& gradients) {
                       return ReplayTensors{rms_norm_gradient(pass, gradients[0], saved[0], width)};
                     });
}

ReplayTensor rotary(Replay& pass, const ReplayTensor& x) { return elementwise(pass, x, pass.like(x), {}); }

ReplayTensor swiglu(Replay& pass, const ReplayTensor& gate, const ReplayTensor& up) {
  ReplayTensor y;
  {
    const auto silu = pass.is_fp32() ? ReplayTensor() : pass.like(gate);
    y = pass.like(gate);
  }
  return pass.record(std::move(y), {gate, up}, false, {gate, up},
                     [&pass](const ReplayTensors& saved, const ReplayTensors& gradients) {
                       ReplayTensor product, silu;
                       if (!pass.is_fp32()) product = pass.like(gradients[0]);
                       const auto of_gate = pass.like(saved[0]);
                       if (!pass.is_fp32()) silu = pass.like(saved[0]);
                       return ReplayTensors{of_gate, pass.like(saved[1])};
                     });
}

ReplayTensor gelu_tanh(Replay& pass, const ReplayTensor& x) { return elementwise(pass, x, pass.like(x), {x}); }

ReplayTensor dropout(Replay& pass, const ReplayTensor& x, double probability) {
  return probability > 0 ? elementwise(pass, x, pass.like(x), {}) : x;
}

namespace {

// How many queries and keys LibTorch takes at once.
double queries_at_once(double context) { return context >= 768 ? 256 : context >= 192 ? 64 : 32; }
double keys_at_once(double context) { return std::min(512.0, context); }

ReplayTensor fused_attention(Replay& pass, const ReplayTensor& q, const ReplayTensor& k, const ReplayTensor& v,
                             const AttentionShape& shape) {
  auto y = pass.like(q);
  const auto sums = pass.make(q.elements / shape.head_width, Element::wide);
  const double block = std::min(shape.context, queries_at_once(shape.context)) * keys_at_once(shape.context) *
                       pass.conditions().threads * (pass.bytes_of(Element::wide) + (pass.is_bf16() ? 2 : 0));
  pass.use_scratch(block);
  return pass.record(y, {q, k, v}, false, {q, k, v, y, sums},
                     [&pass, block](const ReplayTensors& saved, const ReplayTensors&) {
                       const ReplayTensors found{pass.like(saved[0]), pass.like(saved[1]), pass.like(saved[2])};
                       pass.use_scratch(2 * block);
                       return found;
                     });
}

// A tensor that does not lie as a product wants it, and so its gradient does not as the tensor does.
ReplayTensor copied(Replay& pass, const ReplayTensor& x) { return elementwise(pass, x, pass.like(x), {}); }

// For all the queries' heads.
ReplayTensor repeated(Replay& pass, const ReplayTensor& x, double times) {
  return pass.record(pass.make(times * x.elements), {x}, false, {},
                     [&pass, elements = x.elements](const auto&, const auto&) {
                       return ReplayTensors{pass.make(elements)};
                     });
}

ReplayTensor batched_product(Replay& pass, const ReplayTensor& x, const ReplayTensor& y, double elements) {
  return pass.record(pass.make(elements), {x, y}, false, {x, y}, [&pass](const ReplayTensors& saved, const auto&) {
    return ReplayTensors{pass.like(saved[0]), pass.like(saved[1])};
  });
}

ReplayTensor attention_with_dropout(Replay& pass, const ReplayTensor& q, const ReplayTensor& k, const ReplayTensor& v,
                                    const AttentionShape& shape) {
  const double groups = shape.heads / shape.key_heads, pairs = q.elements / shape.head_width * shape.context;
  const bool repeats = groups > 1;
  const auto k_all = repeats ? repeated(pass, k, groups) : k, v_all = repeats ? repeated(pass, v, groups) : v;
  ReplayTensor weights;
  {
    const auto product =
        batched_product(pass, copied(pass, q), repeats ? k_all : copied(pass, k_all), pairs);
    weights = elementwise(pass, product, pass.like(product), {});
  }
  {
    const auto masked = elementwise(pass, weights, pass.like(weights), {});
    const auto result = pass.like(masked);
    weights = elementwise(pass, masked, result, {result});
  }
  const auto kept = dropout(pass, weights, shape.dropout);
  return batched_product(pass, kept, repeats ? v_all : copied(pass, v_all), q.elements);
}

}  // namespace

AttentionShape AttentionShape::of(const ModelConfig& config) {
  const auto heads = static_cast<double>(config.heads);
  return {.context = static_cast<double>(config.context),
          .heads = heads,
          .key_heads = config.kv_heads > 0 ? static_cast<double>(config.kv_heads) : heads,
          .head_width = static_cast<double>(config.width) / heads,
          .dropout = config.dropout};
}

ReplayTensor attention(Replay& pass, const ReplayTensor& q, const ReplayTensor& k, const ReplayTensor& v,
                       const AttentionShape& shape) {
  if (shape.dropout <= 0) return fused_attention(pass, q, k, v, shape);
  return copied(pass, attention_with_dropout(pass, q, k, v, shape));
}

ReplayTensor add(Replay& pass, const ReplayTensor& x, const ReplayTensor& y, double scale_of_y) {
  const bool both = x.elements == y.elements;
  auto sum = x.elements >= y.elements ? pass.like(x) : pass.like(y);
  return pass.record(std::move(sum), {x, y}, false, {},
                     [&pass, both, scale_of_y, elements = y.elements, x_needs = x.needs_gradient(),
                      y_needs = y.needs_gradient()](const auto&, const ReplayTensors& gradients) {
                       ReplayTensors passed(2);
                       if (x_needs) passed[0] = gradients[0];
                       if (y_needs) passed[1] = !both            ? pass.make(elements)
                                                : scale_of_y != 1 ? pass.like(gradients[0])
                                                                  : gradients[0];
                       return passed;
                     });
}

ReplayTensors split(Replay& pass, const ReplayTensor& x, size_t parts) {
  auto part = x.detached();
  part.elements /= static_cast<double>(parts);
  ReplayTensors results(parts, part);
  std::vector<ReplayTensor*> recorded;
  for (auto& result : results) recorded.push_back(&result);
  pass.record(recorded, {x}, false, {}, [&pass, elements = x.elements](const auto&, const auto&) {
    return ReplayTensors{pass.make(elements)};
  });
  return results;
}

namespace {

// Of values that are kept, whose gradient lies as they do.
ReplayTensor relu_to(Replay& pass, const ReplayTensor& x, const ReplayTensor& y) {
  return pass.record(y, {x}, false, {y}, [&pass](const ReplayTensors& saved, const ReplayTensors&) {
    return ReplayTensors{pass.like(saved[0])};
  });
}

}  // namespace

ReplayTensor relu(Replay& pass, const ReplayTensor& x) { return relu_to(pass, x, pass.like(x)); }

ReplayTensor relu_in_place(Replay& pass, const ReplayTensor& x) { return relu_to(pass, x, x.detached()); }

ReplayTensor cross_entropy(Replay& pass, const ReplayTensor& output) {
  ReplayTensor rows = output;
  if (pass.is_bf16()) {
    rows = pass.record(pass.like(output, Element::wide), {output}, false, {},
                       [&pass](const auto&, const ReplayTensors& gradients) {
                         return ReplayTensors{as_view(pass.like(gradients[0], Element::value))};
                       });
  }
  const auto logarithms = pass.like(rows);
  const auto chosen = elementwise(pass, rows, logarithms, {logarithms});
  return pass.record(pass.make(1, Element::wide), {chosen}, false, {chosen},
                     [&pass](const ReplayTensors& saved, const auto&) { return ReplayTensors{pass.like(saved[0])}; });
}

}  // namespace trireme::replay
