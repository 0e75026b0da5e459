#include "trireme/spec/links.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/paths.h"
#include "trireme/base/settings.h"

namespace trireme {

namespace {

// A link in the file's words.
struct Written {
  double latency_us = 0, bandwidth_gb = 0, reduce_gb = 0;

  explicit Written(const LinkCost& cost)
      : latency_us(cost.alpha_s * 1e6),
        bandwidth_gb(1e-9 / cost.beta_s_per_byte),
        reduce_gb(1e-9 / cost.gamma_s_per_byte) {}
  LinkCost cost() const { return {latency_us * 1e-6, 1e-9 / bandwidth_gb, 1e-9 / reduce_gb}; }
};

Settings describe(Written& inside, Written& between) {
  Settings settings;
  const auto add = [&](const std::string& name, Written& link, const char* sentence) {
    settings.section(name, sentence);
    settings.add(name + ".latency_us", link.latency_us, "α: what a message costs whatever its length.")
        .unit("µs")
        .at_least(0);
    settings.add(name + ".bandwidth_gb", link.bandwidth_gb, "1/β: how fast a long message goes.").unit("GB/s").above(0);
    settings.add(name + ".reduce_gb", link.reduce_gb, "1/γ: how fast two buffers are combined.").unit("GB/s").above(0);
  };
  add("inside", inside, "Between ranks of one host.");
  add("between", between, "Between hosts.");
  return settings;
}

}  // namespace

Links read_links(const std::filesystem::path& path) {
  if (const auto link = dangling_link(path); !link.empty()) refuse("comm.links: {}", link);
  if (!std::filesystem::exists(path))
    refuse("comm.links = {}: there is no such file; trireme bench comm --tune {} makes it", path.string(),
           path.string());
  const Links usual;
  Written inside(usual.inside), between(usual.between);
  auto settings = describe(inside, between);
  settings.read_file(path);
  settings.check();
  return {inside.cost(), between.cost()};
}

void write_links(const Links& links, const std::filesystem::path& path) {
  Written inside(links.inside), between(links.between);
  write_atomically(path, describe(inside, between).resolved_yaml() + "\n");
}

LinkCost fit_link(const std::vector<std::pair<int64_t, double>>& messages) {
  // With weights 1/t², of t ≈ α + nβ.
  double w = 0, wn = 0, wnn = 0, wt = 0, wnt = 0;
  for (const auto& [bytes, seconds] : messages) {
    const double n = static_cast<double>(bytes), weight = 1 / (seconds * seconds);
    w += weight;
    wn += weight * n;
    wnn += weight * n * n;
    wt += weight * seconds;
    wnt += weight * n * seconds;
  }
  const double determinant = w * wnn - wn * wn;
  if (!(determinant > 0)) fail("messages of at least two lengths are needed to fit a link");
  LinkCost cost;
  cost.beta_s_per_byte = std::max(1e-13, (w * wnt - wn * wt) / determinant);
  cost.alpha_s = std::max(0.0, (wt - cost.beta_s_per_byte * wn) / w);
  return cost;
}

}  // namespace trireme
