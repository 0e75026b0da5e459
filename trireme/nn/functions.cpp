#include "trireme/nn/functions.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/nn/dropout_kernel.h"
#include "trireme/nn/gelu_kernel.h"
#include "trireme/nn/product.h"

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// A parameter handed through autograd's context.
struct Holder : torch::CustomClassHolder {
  explicit Holder(ParameterPtr first, ParameterPtr second = nullptr)
      : first(std::move(first)), second(std::move(second)) {}
  ParameterPtr first, second;
};

void keep(AutogradContext* context, ParameterPtr first, ParameterPtr second = nullptr) {
  context->saved_data["parameters"] =
      c10::IValue::make_capsule(c10::make_intrusive<Holder>(std::move(first), std::move(second)));
}

Holder& kept(AutogradContext* context) {
  return *static_cast<Holder*>(context->saved_data["parameters"].toCapsule().get());
}

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

struct LinearFunction : Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const ParameterPtr& weight_parameter, const ParameterPtr& bias_parameter, bool out_in) {
    const auto rows = rows_of(x);
    const auto matrix = out_in ? weight.t() : weight;
    auto y = product(rows, matrix, bias_parameter ? bias_parameter->value : at::Tensor());
    context->save_for_backward({rows, weight});
    context->saved_data["out_in"] = out_in;
    context->saved_data["shape"] = x.sizes().vec();
    keep(context, weight_parameter, bias_parameter);
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
    auto& parameters = kept(context);
    if (out_in) {
      parameters.first->gradient.add_product(g.t(), rows);
    } else {
      parameters.first->gradient.add_product(rows.t(), g);
    }
    if (parameters.second) parameters.second->gradient.add_column_sums(g);
    return {input_gradient, {}, {}, {}, {}};
  }
};

struct EmbeddingFunction : Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& table, const at::Tensor& ids,
                            const ParameterPtr& parameter) {
    context->save_for_backward({ids});
    keep(context, parameter);
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto ids = context->get_saved_variables()[0];
    kept(context).first->gradient.add_rows(ids.reshape({-1}), rows_of(gradients[0]));
    return {{}, {}, {}};
  }
};

struct LayerNormFunction : Function<LayerNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gain,
                            const ParameterPtr& gain_parameter, const ParameterPtr& bias_parameter, double epsilon) {
    auto [y, mean, inverse_deviation] = at::native_layer_norm(x, {x.size(-1)}, gain, bias_parameter->value, epsilon);
    context->save_for_backward({x, gain, mean, inverse_deviation});
    keep(context, gain_parameter, bias_parameter);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& x = saved[0];
    auto& parameters = kept(context);
    auto [dx, dgain, dbias] =
        at::native_layer_norm_backward(gradients[0].contiguous(), x, {x.size(-1)}, saved[2], saved[3], saved[1],
                                       parameters.second->value, {true, true, true});
    parameters.first->gradient.add(dgain);
    parameters.second->gradient.add(dbias);
    return {dx, {}, {}, {}, {}};
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
  return LinearFunction::apply(x, weight->value, weight, bias, layout == WeightLayout::out_in);
}

at::Tensor embedding(const at::Tensor& ids, const ParameterPtr& table) {
  return EmbeddingFunction::apply(table->value, ids, table);
}

at::Tensor layer_norm(const at::Tensor& x, const ParameterPtr& gain, const ParameterPtr& bias, double epsilon) {
  return LayerNormFunction::apply(x, gain->value, gain, bias, epsilon);
}

at::Tensor gelu_tanh(const at::Tensor& x) { return GeluFunction::apply(x); }

at::Tensor dropout(const at::Tensor& x, double probability, Key key, const at::Tensor& samples) {
  if (probability <= 0) return x;
  return DropoutFunction::apply(x, probability, static_cast<int64_t>(key.value), samples);
}

}  // namespace trireme
