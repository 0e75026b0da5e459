// How fast jobs run: steps a second by kind of job (its type and how many devices it takes) and type of device, alone
// and beside another job on the same devices.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/fleet/model.h"

namespace trireme::fleet {

class Throughputs {
 public:
  explicit Throughputs(std::string source) : source_(std::move(source)) {}

  // Kinds are numbered from 0 in the order in which they are first named.
  int add_kind(const std::string& type, int scale);
  int find_kind(const std::string& type, int scale) const;  // -1: not in the table
  bool knows_type(const std::string& type) const;
  std::vector<std::string> type_names() const;

  int add_device_type(const std::string& name);

  // Steps a second; not given is different from 0, which means that the job cannot run there.
  void set_alone(int kind, int device_type, double rate);
  void set_together(int kind, int other, int device_type, double rate, double other_rate);

  // The table with the columns of the cluster's types. Refuses types that are not in it.
  Throughputs select(const Cluster& cluster) const;

  size_t kinds() const { return kinds_.size(); }
  const std::vector<std::string>& device_types() const { return device_types_; }
  const std::string& source() const { return source_; }
  const std::pair<std::string, int>& kind(int number) const { return kinds_[static_cast<size_t>(number)]; }

  static constexpr double not_given = -1;
  double alone(int kind, int device_type) const { return alone_[cell(kind, device_type)]; }

  // What each of two jobs gets; zeros where they cannot run together or nobody measured it.
  std::array<double, 2> together(int kind, int other, int device_type) const;

 private:
  static constexpr int most_device_types = 64;

  size_t cell(int kind, int device_type) const {
    return static_cast<size_t>(kind) * most_device_types + static_cast<size_t>(device_type);
  }
  static uint64_t key(int kind, int other, int device_type) {
    return (static_cast<uint64_t>(kind) << 35) | (static_cast<uint64_t>(other) << 6) |
           static_cast<uint64_t>(device_type);
  }

  std::string source_;
  std::vector<std::string> device_types_;
  std::vector<std::pair<std::string, int>> kinds_;
  std::map<std::pair<std::string, int>, int> kind_numbers_;
  std::vector<double> alone_;
  std::unordered_map<uint64_t, std::array<double, 2>> together_;
};

// The published layout: device type -> "('ResNet-18 (batch size 64)', 1)" -> "null" or another such key.
Throughputs read_throughputs_json(const std::filesystem::path& path);

// A person's: see docs/fleet.md.
Throughputs read_throughputs_yaml(const std::filesystem::path& path);

// By the file's name: .yaml and .yml are a person's, all else is JSON.
Throughputs read_throughputs(const std::filesystem::path& path);

}  // namespace trireme::fleet
