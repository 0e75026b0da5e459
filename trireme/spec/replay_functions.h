// The operations that layers are made of, those of the room nn and LibTorch's own, as a replay knows them: by the memory
// that they and their backward passes take. The allocations are those of LibTorch 2.13 on a host, which
// tests/nn/layer_bytes_test.cpp holds them against.
#pragma once

#include <optional>

#include "trireme/spec/models/image_models.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/replay.h"

namespace trireme::replay {

// As in nn/functions.h. Parameters are places among those of the layer.
ReplayTensor linear(Replay& pass, const ReplayTensor& x, const ProjectionSpec& matrix);
ReplayTensor embedding(Replay& pass, const ReplayTensor& ids, size_t table, double width);
ReplayTensor layer_norm(Replay& pass, const ReplayTensor& x, double width, size_t gain, size_t bias);
ReplayTensor rms_norm(Replay& pass, const ReplayTensor& x, double width, size_t gain);
ReplayTensor rotary(Replay& pass, const ReplayTensor& x);
ReplayTensor swiglu(Replay& pass, const ReplayTensor& gate, const ReplayTensor& up);
ReplayTensor gelu_tanh(Replay& pass, const ReplayTensor& x);
ReplayTensor dropout(Replay& pass, const ReplayTensor& x, double probability);

// As in nn/projection.h: with adapters, where there are any.
ReplayTensor project(Replay& pass, const ReplayTensor& x, const ProjectionSpec& matrix);
ReplayTensors project(Replay& pass, const ReplayTensor& x, const std::vector<ProjectionSpec>& matrices);

// As in nn/attention.h, of queries, keys and values of `context` tokens.
struct AttentionShape {
  double context = 0, heads = 0, key_heads = 0, head_width = 0, dropout = 0;

  static AttentionShape of(const ModelConfig& config);
};
ReplayTensor attention(Replay& pass, const ReplayTensor& q, const ReplayTensor& k, const ReplayTensor& v,
                       const AttentionShape& shape);

// LibTorch's own.
ReplayTensor add(Replay& pass, const ReplayTensor& x, const ReplayTensor& y, double scale_of_y = 1);
ReplayTensors split(Replay& pass, const ReplayTensor& x, size_t parts);
ReplayTensor relu(Replay& pass, const ReplayTensor& x);
ReplayTensor relu_in_place(Replay& pass, const ReplayTensor& x);
// The sum over all rows of `output`.
ReplayTensor cross_entropy(Replay& pass, const ReplayTensor& output);

// Of images, as in nn/image_layers.h. Their shape goes with them.
struct Image {
  ReplayTensor x;
  ImageShape shape;
};
Image convolution(Replay& pass, const Image& image, const ConvolutionSpec& spec);
Image batch_norm(Replay& pass, const Image& image, bool relu, const ReplayTensor& residual = {});
Image unit(Replay& pass, const Image& image, const ConvolutionUnit& spec, bool relu = true,
           const ReplayTensor& residual = {});
Image max_pool(Replay& pass, const Image& image, const std::optional<Window>& window, bool ceil = false);
Image concatenate(Replay& pass, const std::vector<Image>& images);
ReplayTensor classify(Replay& pass, const Image& image, const ClassifierSpec& spec);

}  // namespace trireme::replay
