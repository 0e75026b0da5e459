#include "trireme/fleet/failures.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::fleet {

namespace {

double exponential(double mean_s, Key key, uint64_t index) { return -mean_s * std::log(1 - uniform(key, index)); }

// "90s", "30m", "4h", "2d" in seconds; -1 for anything else.
double duration_s(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (error != std::errc() || !(value > 0) || value > 1e12) return -1;
  return unit == "s" ? value : unit == "m" ? 60 * value : unit == "h" ? 3600 * value : unit == "d" ? 86400 * value : -1;
}

}  // namespace

FailureOptions parse_failures(const std::string& text) {
  FailureOptions options;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto entry = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = entry.find('=');
    const auto name = entry.substr(0, equals);
    double* field = name == "device"   ? &options.device_mean_s
                    : name == "server" ? &options.server_mean_s
                    : name == "repair" ? &options.repair_mean_s
                                       : nullptr;
    const double value = equals == std::string::npos ? -1 : duration_s(std::string_view(entry).substr(equals + 1));
    if (!field || value < 0) {
      refuse("--failures {}: \"{}\" must be like device=500h, server=2000h or repair=4h (s, m, h or d)", text, entry);
    }
    *field = value;
  }
  if (!options.any()) refuse("--failures {}: says neither how often devices fail nor servers", text);
  return options;
}

Failures::Failures(const FailureOptions& options, const Cluster& cluster)
    : options_(options),
      cluster_(cluster),
      devices_of_server_(cluster.servers.size()),
      reasons_(cluster.devices.size(), 0) {
  for (size_t device = 0; device < cluster.devices.size(); ++device) {
    devices_of_server_[static_cast<size_t>(cluster.devices[device].server)].push_back(static_cast<int>(device));
  }
  const int parts = static_cast<int>(cluster.devices.size() + cluster.servers.size());
  for (int part = 0; part < parts; ++part) plan_failure(0, part, 0);
}

void Failures::plan_failure(double now_s, int part, uint64_t count) {
  const bool is_device = part < static_cast<int>(cluster_.devices.size());
  const double mean_s = is_device ? options_.device_mean_s : options_.server_mean_s;
  if (mean_s <= 0) return;
  const auto key = Key{options_.seed}.with("failure").with(static_cast<uint64_t>(part));
  events_.push({now_s + exponential(mean_s, key, count), part, count, false});
}

double Failures::next_s() const {
  return events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().at_s;
}

void Failures::advance(double now_s, std::vector<int>& lost, std::vector<int>& repaired) {
  const int devices = static_cast<int>(cluster_.devices.size());
  while (!events_.empty() && events_.top().at_s <= now_s) {
    const Event event = events_.top();
    events_.pop();
    const std::vector<int> only{event.part};
    const auto& touched = event.part < devices ? only : devices_of_server_[static_cast<size_t>(event.part - devices)];
    for (int device : touched) {
      int& reasons = reasons_[static_cast<size_t>(device)];
      if (event.repair) {
        if (--reasons == 0) repaired.push_back(device);
      } else {
        if (reasons++ == 0) lost.push_back(device);
      }
    }
    broken_ += event.repair ? -1 : 1;
    if (event.repair) {
      plan_failure(event.at_s, event.part, event.count + 1);
    } else {
      const auto key = Key{options_.seed}.with("repair").with(static_cast<uint64_t>(event.part));
      events_.push({event.at_s + exponential(options_.repair_mean_s, key, event.count), event.part, event.count, true});
    }
  }
}

}  // namespace trireme::fleet
