// Clusters, jobs and throughputs as a person writes them. One file may hold all three, or each its own; docs/fleet.md
// shows them.
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/words.h"
#include "trireme/base/yaml_error.h"
#include "trireme/fleet/jobs.h"
#include "trireme/fleet/text_file.h"

namespace trireme::fleet {

namespace {

const std::vector<std::string> file_keys = {"types", "servers", "owners", "jobs", "throughputs", "together"};

// A node and where it stands.
struct Place {
  const std::string& file;
  YAML::Node node;
  std::string key;  // "servers[2].devices"

  std::string location() const { return fmt::format("{}:{}", file, node.Mark().line + 1); }
  [[noreturn]] void refuse_it(const std::string& why) const { refuse("{}: {} {}", location(), key, why); }

  Place at(const std::string& name) const { return {file, node[name], key.empty() ? name : key + "." + name}; }

  std::vector<Place> items() const {
    if (!node.IsSequence()) refuse_it("must be a list");
    std::vector<Place> all;
    for (size_t i = 0; i < node.size(); ++i) all.push_back({file, node[i], fmt::format("{}[{}]", key, i)});
    return all;
  }

  // Every entry once; yaml-cpp takes a repeated key in silence.
  std::vector<std::pair<std::string, Place>> entries() const {
    if (!node.IsMap()) refuse_it("must be a map");
    std::vector<std::pair<std::string, Place>> all;
    std::set<std::string> seen;
    for (const auto& pair : node) {
      if (!pair.first.IsScalar()) refuse_it("has a key that is not a word");
      const auto& name = pair.first.Scalar();
      if (!seen.insert(name).second) {
        refuse("{}:{}: {} is given twice", file, pair.first.Mark().line + 1, key.empty() ? name : key + "." + name);
      }
      all.push_back({name, {file, pair.second, key.empty() ? name : key + "." + name}});
    }
    return all;
  }

  void allow(const std::vector<std::string>& valid) const {
    for (const auto& [name, place] : entries()) {
      if (std::find(valid.begin(), valid.end(), name) != valid.end()) continue;
      const auto meant = nearest(name, valid);
      refuse("{}: unknown key {}{}", place.location(), place.key,
             meant.empty() ? fmt::format("; there are {}", fmt::join(valid, ", "))
                           : fmt::format(", did you mean {}?", meant));
    }
  }

  std::string text() const {
    if (!node.IsScalar()) refuse_it("must be a single value");
    return node.Scalar();
  }

  double number(double least) const {
    const auto word = text();
    double value = 0;
    try {
      size_t used = 0;
      value = std::stod(word, &used);
      if (used != word.size()) value = std::nan("");
    } catch (const std::exception&) {
      value = std::nan("");
    }
    if (!std::isfinite(value) || value > 1e15) refuse_it(fmt::format("must be a number, not {}", word));
    if (value < least) refuse_it(fmt::format("must be at least {}, not {}", least, word));
    return value;
  }

  int whole(int least) const {
    const double value = number(least);
    if (value != std::floor(value) || value > 1e6) refuse_it(fmt::format("must be a whole number, not {}", text()));
    return static_cast<int>(value);
  }
};

struct File {
  std::string name;
  YAML::Node top;

  explicit File(const std::filesystem::path& path) : name(path.string()) {
    const std::string text = read_text_file(path);
    try {
      top = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      refuse_yaml(name, text, error);
    }
    Place all{name, top, ""};
    if (!top.IsMap()) refuse("{}: must be a map of {}", name, fmt::join(file_keys, ", "));
    all.allow(file_keys);
  }

  Place section(const std::string& key, const char* example) const {
    if (!top[key]) refuse("{}: has no {}, such as {}", name, key, example);
    return {name, top[key], key};
  }
  bool has(const std::string& key) const { return static_cast<bool>(top[key]); }
};

DeviceType read_type(const std::string& name, const Place& place) {
  DeviceType type{name};
  if (place.node.IsNull()) return type;
  place.allow({"cost_per_hour", "memory_gb"});
  if (place.node["cost_per_hour"]) type.cost_per_hour = place.at("cost_per_hour").number(0);
  if (place.node["memory_gb"]) type.memory_gb = place.at("memory_gb").number(0);
  return type;
}

ServerGroup read_group(const Place& place, std::vector<DeviceType>& types, bool types_given) {
  place.allow({"name", "count", "devices"});
  ServerGroup group;
  group.name = place.node["name"] ? place.at("name").text() : "";
  if (place.node["count"]) group.count = place.at("count").whole(1);
  if (!place.node["devices"]) place.refuse_it("has no devices, such as devices: {v100: 4}");
  for (const auto& [name, amount] : place.at("devices").entries()) {
    std::vector<std::string> known;
    for (const auto& type : types) known.push_back(type.name);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      if (types_given) {
        const auto meant = nearest(name, known);
        refuse("{}: {}: unknown device type{}", amount.location(), amount.key,
               meant.empty() ? "; types lists those that there are" : fmt::format(", did you mean {}?", meant));
      }
      types.push_back({name});
    }
    group.devices.emplace_back(name, amount.whole(1));
  }
  return group;
}

Job read_job(const Place& place) {
  place.allow({"id", "type", "steps", "scale", "weight", "owner", "deadline_s", "memory_gb", "arrival_s"});
  const auto required = [&](const char* key) {
    if (!place.node[key]) place.refuse_it(fmt::format("has no {}", key));
    return place.at(key);
  };
  Job job;
  job.place = place.location();
  job.type = required("type").text();
  job.steps = required("steps").number(0);
  if (job.steps == 0) place.at("steps").refuse_it("must be above 0");
  if (place.node["id"]) job.name = place.at("id").text();
  if (place.node["scale"]) job.scale = place.at("scale").whole(1);
  if (place.node["weight"]) job.weight = place.at("weight").number(1e-9);
  if (place.node["owner"]) job.owner = place.at("owner").text();
  if (place.node["deadline_s"]) job.deadline_s = place.at("deadline_s").number(0);
  if (place.node["memory_gb"]) job.memory_gb = place.at("memory_gb").number(0);
  if (place.node["arrival_s"]) job.arrival_s = place.at("arrival_s").number(0);
  return job;
}

// "v100: 18.3" is the rate on one device, "v100: {1: 18.3, 2: 35}" by how many of them.
void read_rates(const std::string& job_type, const Place& place, Throughputs& table) {
  for (const auto& [device, rates] : place.entries()) {
    const int type = table.add_device_type(device);
    if (!rates.node.IsMap()) {
      table.set_alone(table.add_kind(job_type, 1), type, rates.number(0));
      continue;
    }
    for (const auto& [scale, rate] : rates.entries()) {
      const Place count{place.file, YAML::Node(scale), rates.key + "." + scale};
      table.set_alone(table.add_kind(job_type, count.whole(1)), type, rate.number(0));
    }
  }
}

void read_together(const Place& place, Throughputs& table) {
  if (!place.node.IsMap() || !place.node["jobs"] || !place.node["jobs"].IsSequence() ||
      place.node["jobs"].size() != 2) {
    place.refuse_it("must be like {jobs: [A, B], devices: 1, v100: [9.1, 4.2]}");
  }
  const int scale = place.node["devices"] ? place.at("devices").whole(1) : 1;
  const auto jobs = place.at("jobs").items();
  int kinds[2];
  for (int i = 0; i < 2; ++i) {
    kinds[i] = table.find_kind(jobs[i].text(), scale);
    if (kinds[i] < 0)
      jobs[i].refuse_it(fmt::format("= {} has no throughput alone on {}", jobs[i].text(), counted(scale, "device")));
  }
  for (const auto& [device, rates] : place.entries()) {
    if (device == "jobs" || device == "devices") continue;
    const auto both = rates.items();
    if (both.size() != 2) rates.refuse_it("must hold two numbers: the steps a second of both jobs");
    table.set_together(kinds[0], kinds[1], table.add_device_type(device), both[0].number(0), both[1].number(0));
  }
}

}  // namespace

Cluster read_cluster_yaml(const std::filesystem::path& path) {
  const File file(path);
  std::vector<DeviceType> types;
  if (file.has("types")) {
    for (const auto& [name, place] : Place{file.name, file.top["types"], "types"}.entries()) {
      types.push_back(read_type(name, place));
    }
  }
  const bool types_given = !types.empty();
  std::vector<ServerGroup> groups;
  for (const auto& place : file.section("servers", "servers: [{count: 3, devices: {v100: 4}}]").items()) {
    groups.push_back(read_group(place, types, types_given));
    if (groups.back().name.empty()) groups.back().name = fmt::format("server-{}", groups.size() - 1);
  }
  std::erase_if(types, [&](const DeviceType& type) {
    return std::none_of(groups.begin(), groups.end(), [&](const ServerGroup& group) {
      return std::any_of(group.devices.begin(), group.devices.end(),
                         [&](auto& some) { return some.first == type.name; });
    });
  });
  if (groups.empty()) refuse("{}: servers lists none", file.name);
  return make_cluster(std::move(types), groups);
}

std::vector<Job> read_jobs_yaml(const std::filesystem::path& path) {
  const File file(path);
  std::vector<Job> jobs;
  std::map<std::string, std::string> place_of;
  for (const auto& place : file.section("jobs", "jobs: [{type: A3C, steps: 1000}]").items()) {
    Job job = read_job(place);
    job.id = static_cast<int64_t>(jobs.size());
    if (job.name.empty()) job.name = std::to_string(job.id);
    const auto [earlier, is_new] = place_of.emplace(job.name, job.place);
    if (!is_new) refuse("{}: the id {} was given before, at {}", job.place, job.name, earlier->second);
    if (!jobs.empty() && job.arrival_s < jobs.back().arrival_s) {
      refuse("{}: {}.arrival_s = {} is before the job above it ({}): sort the jobs by arrival", job.place, place.key,
             job.arrival_s, jobs.back().arrival_s);
    }
    jobs.push_back(std::move(job));
  }
  if (jobs.empty()) refuse("{}: jobs lists none", file.name);
  return jobs;
}

std::vector<Owner> read_owners_yaml(const std::filesystem::path& path) {
  const File file(path);
  std::vector<Owner> owners;
  if (!file.has("owners")) return owners;
  for (const auto& [name, place] : Place{file.name, file.top["owners"], "owners"}.entries()) {
    Owner owner{name};
    if (!place.node.IsNull()) {
      place.allow({"weight", "inside"});
      if (place.node["weight"]) owner.weight = place.at("weight").number(1e-9);
      if (place.node["inside"]) {
        const auto inside = place.at("inside").text();
        if (inside != "fair" && inside != "fifo") place.at("inside").refuse_it("must be fair or fifo, not " + inside);
        owner.in_order = inside == "fifo";
      }
    }
    owners.push_back(owner);
  }
  return owners;
}

Throughputs read_throughputs_yaml(const std::filesystem::path& path) {
  const File file(path);
  Throughputs table(file.name);
  for (const auto& [name, place] : file.section("throughputs", "throughputs: {A3C: {v100: 2.5, k80: 1}}").entries()) {
    read_rates(name, place, table);
  }
  if (file.has("together")) {
    for (const auto& place : Place{file.name, file.top["together"], "together"}.items()) read_together(place, table);
  }
  if (table.kinds() == 0) refuse("{}: throughputs lists none", file.name);
  return table;
}

std::vector<Job> read_jobs(const std::filesystem::path& path) {
  const auto ending = path.extension();
  return ending == ".yaml" || ending == ".yml" ? read_jobs_yaml(path) : read_trace(path);
}

std::vector<Owner> read_owners(const std::filesystem::path& path) {
  const auto ending = path.extension();
  return ending == ".yaml" || ending == ".yml" ? read_owners_yaml(path) : std::vector<Owner>();
}

Cluster read_cluster(const std::string& text) {
  const auto ending = std::filesystem::path(text).extension();
  return ending == ".yaml" || ending == ".yml" ? read_cluster_yaml(text) : parse_cluster(text);
}

}  // namespace trireme::fleet
