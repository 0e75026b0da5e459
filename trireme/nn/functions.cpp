#include "trireme/nn/functions.h"

#include <ATen/ATen.h>

#include <optional>

#include "trireme/nn/dropout_kernel.h"
#include "trireme/nn/function_context.h"
#include "trireme/nn/gelu_kernel.h"
#include "trireme/nn/product.h"

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Of y = x · W, from the rows of x and of y's gradient.
void add_weight_gradient(Parameter& weight, const at::Tensor& rows, const at::Tensor& gradients, bool out_in) {
  if (!weight.trained) return;
  if (out_in) {
    weight.gradient.add_product(gradients.t(), rows);
  } else {
    weight.gradient.add_product(rows.t(), gradients);
  }
}

struct LinearFunction : Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const ParameterPtr& weight_parameter,
                            const ParameterPtr& bias_parameter, bool out_in) {
    const auto rows = rows_of(x);
    const auto matrix = out_in ? weight.t() : weight;
    auto y = product(rows, matrix, bias.value_or(at::Tensor()));
    context->save_for_backward({rows, weight});
    context->saved_data["out_in"] = out_in;
    context->saved_data["shape"] = x.sizes().vec();
    keep(context, {weight_parameter, bias_parameter});
    auto shape = x.sizes().vec();
    shape.back() = y.size(1);
    return y.view(shape);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& rows = saved[0];
    const auto& weight = saved[1];
    const bool out_in = context->saved_data["out_in"].toBool();
    const auto g = rows_of(gradients[0]).contiguous();
    at::Tensor input_gradient;
    if (context->needs_input_grad(0)) {
      input_gradient = product(g, out_in ? weight : weight.t()).view(context->saved_data["shape"].toIntVector());
    }
    const auto& parameters = kept(context);
    add_weight_gradient(*parameters[0], rows, g, out_in);
    if (parameters[1] && parameters[1]->trained) parameters[1]->gradient.add_column_sums(g);
    return {input_gradient, {}, {}, {}, {}, {}};
  }
};

// One function for all of them, so that the input's gradient is summed by the products themselves.
struct LinearsFunction : Function<LinearsFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                               const ParameterList& parameters) {
    const auto rows = rows_of(x);
    auto shape = x.sizes().vec();
    variable_list saved{rows}, results;
    for (const auto& weight : weights) {
      const auto y = product(rows, weight.t());
      shape.back() = y.size(1);
      results.push_back(y.view(shape));
      saved.push_back(weight);
    }
    context->save_for_backward(saved);
    context->saved_data["shape"] = x.sizes().vec();
    keep(context, parameters);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& rows = saved[0];
    for (auto& g : gradients) g = rows_of(g).contiguous();
    at::Tensor input_gradient;
    if (context->needs_input_grad(0)) {
      input_gradient = product(gradients[0], saved[1]);
      for (size_t i = 1; i < gradients.size(); ++i)
        product_into(input_gradient, gradients[i], saved[i + 1], /*add=*/true);
      input_gradient = input_gradient.view(context->saved_data["shape"].toIntVector());
    }
    const auto& parameters = kept(context);
    for (size_t i = 0; i < gradients.size(); ++i)
      add_weight_gradient(*parameters[i], rows, gradients[i], /*out_in=*/true);
    variable_list results(parameters.size() + 2);
    results[0] = input_gradient;
    return results;
  }
};

struct EmbeddingFunction : Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& table, const at::Tensor& ids,
                            const ParameterPtr& parameter) {
    context->save_for_backward({ids});
    keep(context, {parameter});
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto ids = context->get_saved_variables()[0];
    kept(context)[0]->gradient.add_rows(ids.reshape({-1}), rows_of(gradients[0]));
    return {{}, {}, {}};
  }
};

struct LayerNormFunction : Function<LayerNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gain,
                            const at::Tensor& bias, const ParameterPtr& gain_parameter,
                            const ParameterPtr& bias_parameter, double epsilon) {
    auto [y, mean, inverse_deviation] = at::native_layer_norm(x, {x.size(-1)}, gain, bias, epsilon);
    context->save_for_backward({x, gain, mean, inverse_deviation});
    keep(context, {gain_parameter, bias_parameter});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& x = saved[0];
    const auto& gain = *kept(context)[0];
    const auto& bias = *kept(context)[1];
    auto [dx, dgain, dbias] =
        at::native_layer_norm_backward(gradients[0].contiguous(), x, {x.size(-1)}, saved[2], saved[3], saved[1],
                                       bias.value, {true, gain.trained, bias.trained});
    if (gain.trained) kept(context)[0]->gradient.add(dgain);
    if (bias.trained) kept(context)[1]->gradient.add(dbias);
    return {dx, {}, {}, {}, {}, {}};
  }
};

struct GeluFunction : Function<GeluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return gelu_values(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gelu_gradients(gradients[0], context->get_saved_variables()[0])};
  }
};

struct DropoutFunction : Function<DropoutFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double probability, int64_t key,
                            const at::Tensor& samples) {
    context->saved_data["probability"] = probability;
    context->saved_data["key"] = key;
    context->save_for_backward({samples});
    return drop(x, probability, {static_cast<uint64_t>(key)}, samples);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Key key{static_cast<uint64_t>(context->saved_data["key"].toInt())};
    return {drop(gradients[0], context->saved_data["probability"].toDouble(), key, context->get_saved_variables()[0]),
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias, WeightLayout layout) {
  const auto bias_value = bias ? std::optional<at::Tensor>(bias->value) : std::nullopt;
  return LinearFunction::apply(x, weight->value, bias_value, weight, bias, layout == WeightLayout::out_in);
}

std::vector<at::Tensor> linears(const at::Tensor& x, const ParameterList& weights) {
  std::vector<at::Tensor> values;
  for (const auto& weight : weights) values.push_back(weight->value);
  return LinearsFunction::apply(x, at::TensorList(values), weights);
}

at::Tensor embedding(const at::Tensor& ids, const ParameterPtr& table) {
  return EmbeddingFunction::apply(table->value, ids, table);
}

at::Tensor layer_norm(const at::Tensor& x, const ParameterPtr& gain, const ParameterPtr& bias, double epsilon) {
  return LayerNormFunction::apply(x, gain->value, bias->value, gain, bias, epsilon);
}

at::Tensor gelu_tanh(const at::Tensor& x) { return GeluFunction::apply(x); }

at::Tensor dropout(const at::Tensor& x, double probability, Key key, const at::Tensor& samples) {
  if (probability <= 0) return x;
  return DropoutFunction::apply(x, probability, static_cast<int64_t>(key.value), samples);
}

}  // namespace trireme
