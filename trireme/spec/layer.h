// The table of a model: its layers and parameters by description, and what each layer costs per sample, before anything
// is run or any tensor is made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

class Replay;
struct ReplayTensor;
// A layer's forward pass without tensors, from its input to its output, for the bytes that it holds: see spec/replay.h.
using LayerReplay = std::function<ReplayTensor(Replay& pass, const ReplayTensor& input)>;

// How a parameter starts: a distribution and its scale.
struct Initial {
  enum class Kind : uint8_t { zeros, ones, normal, uniform, given } kind = Kind::zeros;
  double scale = 0;  // standard deviation, or bound of the uniform

  static Initial zeros() { return {Kind::zeros, 0}; }
  static Initial ones() { return {Kind::ones, 0}; }
  static Initial normal(double deviation) { return {Kind::normal, deviation}; }
  static Initial uniform(double bound) { return {Kind::uniform, bound}; }
  static Initial given() { return {Kind::given, 0}; }  // as it is

  bool operator==(const Initial&) const = default;
};

// What a parameter is to those who update or send it: a matrix of a product, a vector such as a bias or a gain, or a
// table that is read by rows.
enum class ParameterKind : uint8_t { matrix, vector, table };

struct ParameterSpec {
  std::string name;            // the same on every mesh
  std::vector<int64_t> shape;  // of a convolution [O, I, H, W], which lies in memory as [O, H, W, I]
  Initial initial;
  ParameterKind kind = ParameterKind::matrix;
  bool trained = true;  // frozen otherwise: it has no gradient and never changes
  bool wide = false;    // computed with in the master's type also where the others are bf16
  bool adapter = false;  // a half of a low-rank adapter (LoRA) of a matrix

  // Weight decay applies to matrices and tables, not to biases and gains.
  bool decays() const { return kind != ParameterKind::vector; }
  int64_t elements() const;

  bool operator==(const ParameterSpec&) const = default;
};

// What a layer remembers from step to step besides its parameters, and no gradient changes.
struct BufferSpec {
  std::string name;
  std::vector<int64_t> shape;
  double start = 0;     // of each element
  bool counts = false;  // int64; otherwise fp32 at least

  int64_t elements() const;

  bool operator==(const BufferSpec&) const = default;
};

// How the two halves of the adapter of a matrix NAME.weight are called, in our files and in those of peft: B · A is
// added to the matrix.
struct AdapterNames {
  std::string a, b;
};
AdapterNames adapter_names(const std::string& name);
// The NAME whose adapter's first half this is, or nothing.
std::string adapted_by(const std::string& parameter);

struct LayerSpec {
  std::string name;
  double forward_flops = 0;   // work of the forward pass
  double backward_flops = 0;  // work of the backward pass
  double depth = 0;           // longest chain of dependent operations: work / depth is the average parallelism
  int64_t parameters = 0;     // elements; a tied parameter counts where it is first used
  int64_t tied = 0;           // elements that an earlier layer counts, and that a stage without that layer holds too
  int64_t frozen = 0;         // of the parameters, elements that are not trained
  int64_t output = 0;         // elements handed to the next layer
  std::vector<size_t> uses;   // parameters, by number in the table, in the order of their first use
  std::vector<BufferSpec> buffers;
  bool takes_ids = false;     // its input are numbers of tokens (int64)
  LayerReplay replay;

  // By all that can be compared: replays cannot.
  bool operator==(const LayerSpec& other) const;
};

// The output of layer `from` is also added to the input of layer `to`, however many layers lie between.
struct Skip {
  size_t from, to;

  bool operator==(const Skip&) const = default;
};

struct LayerTable {
  std::vector<LayerSpec> layers;
  std::vector<ParameterSpec> weights;  // every parameter once, in the order of first use
  std::vector<Skip> skips;
  int64_t input = 0;               // elements of a sample, as the first layer takes it
  int64_t element_bytes = 4;       // of parameters and activations

  LayerSpec& add_layer(std::string name);
  // These two work on the last layer. A parameter of one dim is a vector unless it is said otherwise.
  ParameterSpec& add(std::string name, std::vector<int64_t> shape, Initial initial);
  void share(const std::string& name);  // uses another layer's parameter too
  // Counts the elements of all layers anew, when parameters were added or changed.
  void count();

  int64_t parameters() const;
  double flops() const;  // forward and backward of one sample
  // Of an element as its optimizer works on it.
  int64_t master_bytes() const { return std::max<int64_t>(element_bytes, 4); }
  // What a layer, or all of them, keep of one sample for the backward pass: the input too, the output not. Less than the
  // sum, where layers keep the same.
  int64_t kept_bytes(size_t layer) const;
  int64_t activation_bytes() const;
  std::string full() const;  // a table for people

 private:
  int64_t sum(int64_t LayerSpec::* field) const;
};

// Work and depth of a matrix product [m, k] × [k, n]: a multiplication and a tree of additions.
double product_flops(double m, double k, double n);
double product_depth(double k);

}  // namespace trireme
