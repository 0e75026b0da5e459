#include "trireme/spec/analysis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/spec/mesh.h"
#include "trireme/spec/models/models.h"

namespace trireme {

namespace {

double parallelism(const LayerSpec& layer) { return layer.depth > 0 ? layer.forward_flops / layer.depth : 0; }

}  // namespace

double Analysis::work() const { return table.flops() * static_cast<double>(batch); }

// The backward pass of a layer is about as deep as its forward pass, twice: input and weights are independent.
double Analysis::depth() const {
  double total = 0;
  for (const auto& layer : table.layers) total += 2 * layer.depth;
  return total;
}

std::vector<Analysis::Split> Analysis::splits() const {
  std::vector<Split> found;
  const double parameter_bytes = static_cast<double>(table.parameters() * table.element_bytes);
  for (const int p : ranks) {
    Split split;
    split.ranks = p;
    split.data_bytes = 2.0 * (p - 1) / p * parameter_bytes;
    if (static_cast<size_t>(p) <= table.layers.size()) {
      ParallelConfig parallel;
      parallel.pipe = p;
      Mesh straight;
      straight.stages = p;
      split.begins = part_begins(table, parallel, straight);
      double largest = 0;
      for (size_t stage = 0; stage < split.begins.size(); ++stage) {
        const auto first = static_cast<size_t>(split.begins[stage]);
        const auto last =
            stage + 1 < split.begins.size() ? static_cast<size_t>(split.begins[stage + 1]) : table.layers.size();
        double flops = 0;
        for (size_t i = first; i < last; ++i) flops += table.layers[i].forward_flops + table.layers[i].backward_flops;
        largest = std::max(largest, flops);
        if (first > 0) {
          const auto output = static_cast<double>(table.layers[first - 1].output * table.element_bytes);
          split.pipe_bytes = std::max(split.pipe_bytes, 2 * output * static_cast<double>(batch));
        }
      }
      split.pipe_imbalance = largest / (table.flops() / p);
    }
    found.push_back(std::move(split));
  }
  return found;
}

std::string Analysis::full() const {
  std::string text =
      fmt::format("{}: {}, {} parameters; of one sample:\n{}", name, counted(std::ssize(table.layers), "layer"),
                  human_count(static_cast<double>(table.parameters())), table.full());
  text +=
      fmt::format("\na step of {}: work {} FLOP, depth {}, average parallelism {}; {} kept for the backward pass\n",
                  counted(batch, "sample"), human_count(work()), human_count(depth()), human_count(work() / depth()),
                  human_bytes(static_cast<double>(table.activation_bytes() * batch)));
  text += fmt::format("\n{:<6} {:>22} {:>26} {:>16}  {}\n", "ranks", "replicas: each sends", "stages: widest border",
                      "largest stage", "stages begin at");
  for (const auto& split : splits()) {
    if (split.begins.empty()) {
      text += fmt::format("{:<6} {:>22} {:>26}\n", split.ranks, human_bytes(split.data_bytes), "too few layers");
      continue;
    }
    std::vector<std::string> names;
    for (const auto begin : split.begins) names.push_back(table.layers[static_cast<size_t>(begin)].name);
    text += fmt::format("{:<6} {:>22} {:>26} {:>15.2f}x  {}\n", split.ranks, human_bytes(split.data_bytes),
                        human_bytes(split.pipe_bytes), split.pipe_imbalance, fmt::join(names, ", "));
  }
  return text;
}

nlohmann::ordered_json Analysis::json() const {
  nlohmann::ordered_json result{
      {"model", name},  {"batch", batch},   {"element_bytes", table.element_bytes}, {"parameters", table.parameters()},
      {"work", work()}, {"depth", depth()}, {"parallelism", work() / depth()}};
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const auto& layer = table.layers[i];
    result["layers"].push_back({{"name", layer.name},
                                {"forward_flops", layer.forward_flops},
                                {"backward_flops", layer.backward_flops},
                                {"depth", layer.depth},
                                {"parallelism", parallelism(layer)},
                                {"parameters", layer.parameters},
                                {"tied", layer.tied},
                                {"activation_bytes", table.kept_bytes(i)},
                                {"output", layer.output}});
  }
  for (const auto& split : splits()) {
    nlohmann::ordered_json one{{"ranks", split.ranks}, {"data_bytes", split.data_bytes}};
    if (!split.begins.empty()) {
      one["begins"] = split.begins;
      one["pipe_bytes"] = split.pipe_bytes;
      one["pipe_imbalance"] = split.pipe_imbalance;
    }
    result["splits"].push_back(one);
  }
  return result;
}

std::string Analysis::svg() const {
  constexpr double left = 190, column = 240, gap = 30, row = 18, top = 70;
  struct Bars {
    const char* title;
    const char* color;
    std::function<double(size_t)> value;  // of a layer
    std::function<std::string(double)> shown;
  };
  const auto bytes = [](double value) { return human_bytes(value); };
  const auto count = [](double value) { return human_count(value); };
  const auto element = static_cast<double>(table.element_bytes);
  const auto& layers = table.layers;
  const std::vector<Bars> panels{
      {"work, FLOP a sample", "#5b8ff9", [&](size_t i) { return layers[i].forward_flops + layers[i].backward_flops; },
       count},
      {"parameters", "#61ddaa", [&](size_t i) { return static_cast<double>(layers[i].parameters) * element; }, bytes},
      {"kept for the backward pass", "#f6bd16",
       [&](size_t i) { return static_cast<double>(table.kept_bytes(i)); }, bytes},
      {"average parallelism", "#c2a5cf", [&](size_t i) { return parallelism(layers[i]); }, count},
  };
  const double height = top + row * static_cast<double>(table.layers.size()) + 20;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"10\" y=\"24\" font-size=\"15\">{}: {} parameters, {} FLOP a sample</text>\n",
      left + static_cast<double>(panels.size()) * (column + gap), height, name,
      human_count(static_cast<double>(table.parameters())), human_count(table.flops()));
  for (size_t i = 0; i < table.layers.size(); ++i) {
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n", left - 10,
                       top + row * static_cast<double>(i) + 13, table.layers[i].name);
  }
  for (size_t p = 0; p < panels.size(); ++p) {
    const double x = left + static_cast<double>(p) * (column + gap);
    double most = 0;
    for (size_t i = 0; i < layers.size(); ++i) most = std::max(most, panels[p].value(i));
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">{} (longest: {})</text>\n", x, top - 12, panels[p].title,
                       panels[p].shown(most));
    for (size_t i = 0; i < table.layers.size(); ++i) {
      const double value = panels[p].value(i);
      svg += fmt::format(
          "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\"><title>{}: "
          "{}</title></rect>\n",
          x, top + row * static_cast<double>(i), most > 0 ? column * value / most : 0, row - 4, panels[p].color,
          table.layers[i].name, panels[p].shown(value));
    }
  }
  return svg + "</svg>\n";
}

Analysis analyze(const RunConfig& config, int64_t vocab) {
  RunConfig named = config;
  Analysis analysis;
  analysis.table = model_table(config.model, vocab, value_bytes(config.train.precision));
  analysis.name = describe(named).text("model.kind");
  analysis.batch = config.train.batch;
  return analysis;
}

}  // namespace trireme
