// The operations of image models.
#include <algorithm>
#include <cmath>

#include "trireme/spec/replay_functions.h"

namespace trireme::replay {

namespace {

// An image of one pixel, or of one channel, lies in either order.
ReplayTensor channels_last(Replay& pass, const ReplayTensor& x, const ImageShape& shape) {
  if (x.channels_last || shape.size == 1 || shape.channels == 1) return x;
  auto y = pass.like(x);
  y.channels_last = true;
  return y;
}

ReplayTensor make_image(Replay& pass, const ImageShape& shape, Element element = Element::value) {
  auto y = pass.make(pass.samples() * static_cast<double>(shape.elements()), element);
  y.channels_last = true;
  return y;
}

// By LibTorch's choice of library: oneDNN, or its own loops, which write out the pixels of all windows first.
bool is_onednn(const Replay& pass, const Image& image, const Window& window) {
  if (pass.is_bf16()) return true;
  if (!pass.is_fp32()) return false;
  const auto& conditions = pass.conditions();
  return (window.stride > 1 || window.size > 1 || conditions.samples >= 16 || conditions.threads > 1) &&
         (window.size > 3 || conditions.samples > 1 || image.x.elements > 20480);
}

}  // namespace

Image convolution(Replay& pass, const Image& image, const ConvolutionSpec& spec) {
  const auto& window = spec.window;
  const ImageShape to{spec.outputs, window.places(image.shape.size)};
  const auto x = channels_last(pass, image.x, image.shape);
  const double weight = static_cast<double>(spec.outputs * image.shape.channels * window.size * window.size),
               bytes = weight * pass.bytes_of(Element::value);
  const bool onednn = is_onednn(pass, image, window);
  const bool flat = window.size == 1 && window.stride == 1 && window.padding == 0;
  const double windows = flat ? 0
                              : pass.samples() * static_cast<double>(to.size * to.size * image.shape.channels *
                                                                     window.size * window.size) *
                                    pass.bytes_of(Element::value);
  auto y = make_image(pass, to);
  // oneDNN takes outputs by 32.
  const double whole = spec.outputs > 16 ? std::ceil(static_cast<double>(spec.outputs) / 32) * 32
                                         : static_cast<double>(spec.outputs);
  pass.use_scratch(onednn ? bytes * whole / static_cast<double>(spec.outputs) : windows);
  const auto backward = [&pass, onednn, windows, weight, bytes, to, needed = image.x.needs_gradient(),
                         biased = spec.bias](const ReplayTensors& saved, const ReplayTensors& gradients) {
    const auto g = channels_last(pass, gradients[0], to);
    ReplayTensor of_x;
    if (needed) {
      of_x = pass.like(saved[0]);
      if (onednn) pass.use_scratch(bytes);
    }
    const double sample = (g.elements + saved[0].elements) / pass.samples() * pass.bytes_of(Element::value);
    pass.write_gradient(g, saved[0], [&pass, onednn, windows, weight, bytes, sample] {
      const auto found = pass.make(weight);
      pass.use_scratch(onednn ? 2 * bytes : windows);
      if (!pass.is_bf16()) return;
      // Summed up in fp32, from copies of a sample for each thread.
      pass.use_scratch(weight * pass.bytes_of(Element::wide) + pass.conditions().threads * sample);
    });
    if (biased) {
      pass.write_gradient(g, {}, [&pass, elements = g.elements] {
        if (pass.is_bf16()) pass.use_scratch(elements * pass.bytes_of(Element::wide));
      });
    }
    return ReplayTensors{of_x};
  };
  return {pass.record(std::move(y), {image.x}, true, {x}, backward), to};
}

Image batch_norm(Replay& pass, const Image& image, bool relu, const ReplayTensor& residual) {
  const auto x = channels_last(pass, image.x, image.shape);
  const auto added = residual.defined() ? channels_last(pass, residual, image.shape) : residual;
  const auto channels = static_cast<double>(image.shape.channels);
  const auto statistics = pass.make(5 * channels, Element::exact);
  auto y = pass.like(x);
  const bool masks = residual.defined() && relu;
  const auto backward = [&pass, channels, masks, shape = image.shape, adds = residual.defined()](
                            const ReplayTensors& saved, const ReplayTensors& gradients) {
    auto g = channels_last(pass, gradients[0], shape);
    const auto sums = pass.make(2 * channels, Element::exact);
    if (masks) g = pass.like(g);
    const auto terms = pass.make(3 * channels, Element::exact);
    return ReplayTensors{pass.like(saved[0]), adds ? g : ReplayTensor()};
  };
  const ReplayTensors saved{x, masks ? y.detached() : ReplayTensor(), statistics};
  return {pass.record(std::move(y), {image.x, residual}, true, saved, backward), image.shape};
}

Image unit(Replay& pass, const Image& image, const ConvolutionUnit& spec, bool relu, const ReplayTensor& residual) {
  return batch_norm(pass, convolution(pass, image, spec.convolution), relu, residual);
}

Image max_pool(Replay& pass, const Image& image, const std::optional<Window>& window, bool ceil) {
  if (!window) return image;
  const ImageShape to{image.shape.channels, window->places(image.shape.size, ceil)};
  auto y = make_image(pass, to);
  y.channels_last = image.x.channels_last;
  const auto places = make_image(pass, to, Element::index);
  const auto backward = [&pass](const ReplayTensors& saved, const ReplayTensors& gradients) {
    const auto of_x = pass.like(saved[0]);
    // LibTorch goes by how the gradient lies that comes, and turns all else.
    if (gradients[0].channels_last != of_x.channels_last) pass.use_scratch(pass.bytes_of(of_x) + pass.bytes_of(saved[1]));
    return ReplayTensors{of_x};
  };
  return {pass.record(std::move(y), {image.x}, false, {image.x, places}, backward), to};
}

Image concatenate(Replay& pass, const std::vector<Image>& images) {
  ImageShape shape{0, images.front().shape.size};
  ReplayTensors inputs;
  for (const auto& image : images) {
    shape.channels += image.shape.channels;
    inputs.push_back(image.x);
  }
  auto y = make_image(pass, shape);
  std::vector<double> sizes;
  for (const auto& input : inputs) sizes.push_back(input.elements);
  const auto backward = [sizes](const auto&, const ReplayTensors& gradients) {
    // Parts of it, which do not lie as images of their own.
    ReplayTensors passed(sizes.size(), gradients[0]);
    for (size_t i = 0; i < sizes.size(); ++i) {
      passed[i].elements = sizes[i];
      passed[i].viewed = true;
      passed[i].channels_last = false;
    }
    return passed;
  };
  return {pass.record(std::move(y), inputs, false, {}, backward), shape};
}

namespace {

// Averages over all pixels.
ReplayTensor mean(Replay& pass, const Image& image) {
  auto y = pass.make(pass.samples() * static_cast<double>(image.shape.channels));
  if (pass.is_bf16()) pass.use_scratch(image.x.elements * pass.bytes_of(Element::wide));
  return pass.record(std::move(y), {image.x}, false, {},
                     [&pass, elements = image.x.elements](const auto&, const auto&) {
                       return ReplayTensors{pass.make(elements)};
                     });
}

// Averages over pool × pool parts, one vector a sample.
ReplayTensor flat_averages(Replay& pass, const Image& image, int64_t pool) {
  const ImageShape to{image.shape.channels, pool};
  const bool turned = image.x.channels_last && pool > 1 && image.shape.channels > 1;
  const auto averages = make_image(pass, to);
  auto y = turned ? pass.make(averages.elements) : averages;
  const auto backward = [&pass, turned = turned && image.shape.size > 1](const ReplayTensors& saved,
                                                                         const ReplayTensors& gradients) {
    const auto of_x = pass.like(saved[0]);
    if (turned) pass.use_scratch(pass.bytes_of(gradients[0]));
    return ReplayTensors{of_x};
  };
  return pass.record(std::move(y), {image.x}, false, {image.x}, backward);
}

}  // namespace

ReplayTensor classify(Replay& pass, const Image& image, const ClassifierSpec& spec) {
  auto x = image.x;
  if (spec.pool == 1) x = mean(pass, image);
  if (spec.pool > 1) x = flat_averages(pass, image, spec.pool);
  x = dropout(pass, x, spec.dropout_before);
  auto y = linear(pass, x, spec.linear);
  if (spec.relu) y = relu(pass, y);
  return dropout(pass, y, spec.dropout_after);
}

}  // namespace trireme::replay
