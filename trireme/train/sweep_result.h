// What a sweep found: a line for each point, kept in SWEEP/sweep.jsonl while it runs, and shown as a table, as JSON and
// as a page with pictures.
//
//   {"format":"trireme-sweep","version":1,"best":"eval_loss","axes":["optimizer.lr=1e-3,1e-2"],"seed":1,"config":"…"}
//   {"point":1,"settings":{"optimizer.lr":"1e-3"},"status":"done","eval_loss":2.31,"loss":2.2,…,"checkpoint":"…"}
//   {"point":2,"settings":{"optimizer.lr":"1e-2"},"status":"failed","error":"step 9: loss nan …"}
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trireme/spec/sweep.h"

namespace trireme {

struct PointResult {
  enum class Status { waiting, done, failed };

  int64_t number = 0;  // from 1
  SweepPoint settings;
  Status status = Status::waiting;
  std::optional<double> loss, eval_loss, eval_accuracy;  // none: not reported, or not finite
  double seconds = 0;
  std::string checkpoint;  // empty: it was not kept
  std::string error;

  std::optional<double> objective(const std::string& name) const;
  nlohmann::ordered_json json() const;
};

struct SweepResult {
  std::filesystem::path folder;
  std::string best = "eval_loss";  // what is compared: eval_loss or loss, smaller is better, or eval_accuracy
  nlohmann::ordered_json header;   // the first line of sweep.jsonl: what makes two sweeps the same
  std::vector<SweepAxis> axes;
  std::vector<PointResult> points;  // by number
  int stopped_by = 0;               // the signal that ended it early, or 0

  // The best first; then failed ones, and those that have not been run.
  std::vector<const PointResult*> sorted() const;
  const PointResult* winner() const;  // none before a point is done
  int64_t count(PointResult::Status status) const;

  std::string brief() const;  // the table
  std::string page() const;   // with a picture for each key
  nlohmann::ordered_json json() const;
  int exit_status() const;  // 0 when a point is done: others may fail, as at a rate that is too high

  // Takes over what sweep.jsonl says of points that are done; refuses one of another sweep or of a newer program.
  void read();
  void write() const;
};

}  // namespace trireme
