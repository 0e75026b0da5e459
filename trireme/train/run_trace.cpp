#include "trireme/train/run_trace.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/observe/timeline.h"

namespace trireme {

namespace {

constexpr size_t spans_kept = 200'000;

// What must be added to this rank's clock to get rank 0's. Ranks of one host share a clock; others read theirs right
// after leaving the same barrier, several times, and the median tells.
int64_t clock_offset_ns(World& world) {
  if (world.local_size() == world.size()) return 0;
  constexpr int rounds = 15;
  std::vector<int64_t> offsets;
  auto& communicator = world.communicator();
  auto all = at::empty({world.size()}, at::kLong);
  for (int round = 0; round < rounds; ++round) {
    communicator.wait(communicator.barrier("compare clocks"));
    const auto mine = at::tensor({monotonic_ns()}, at::kLong);
    communicator.wait(communicator.all_gather(mine, all, "compare clocks"));
    offsets.push_back(all[0].item<int64_t>() - mine[0].item<int64_t>());
  }
  std::nth_element(offsets.begin(), offsets.begin() + rounds / 2, offsets.end());
  return offsets[rounds / 2];
}

}  // namespace

void check_trace_built() {
  if (!trace_built())
    refuse("log.trace_steps: this program was built without protozero; install libprotozero-dev and build again");
}

RunTrace::RunTrace(const LogConfig& config, World& world, const Mesh& mesh, std::filesystem::path folder)
    : config_(config), world_(world), mesh_(mesh), folder_(std::move(folder)) {}

RunTrace::~RunTrace() { world_.recorder().set_trace(nullptr); }

void RunTrace::before(int64_t step) {
  const bool wanted = step >= config_.trace_from && step < config_.trace_from + config_.trace_steps;
  if (!wanted || trace_) return;
  trace_ = std::make_unique<Trace>(spans_kept);
  world_.recorder().set_trace(trace_.get());
}

void RunTrace::after(int64_t step, bool last) {
  if (!trace_ || !world_.recorder().trace()) return;
  if (step + 1 < config_.trace_from + config_.trace_steps && !last) return;
  world_.recorder().set_trace(nullptr);
  write();
}

// Every rank's spans come to rank 0, one rank after another.
void RunTrace::write() {
  auto& communicator = world_.communicator();
  const auto spans = trace_->spans();
  const auto mine =
      at::tensor({static_cast<int64_t>(spans.size()), clock_offset_ns(world_), trace_->dropped()}, at::kLong);
  auto all = at::empty({world_.size(), 3}, at::kLong);
  communicator.wait(communicator.all_gather(mine, all.view({-1}), "gather the trace"));
  std::string packets;
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const auto count = all[rank][0].item<int64_t>();
    auto buffer = at::empty({count * static_cast<int64_t>(sizeof(TraceSpan))}, at::kByte);
    if (rank == world_.rank() && count > 0) std::memcpy(buffer.data_ptr(), spans.data(), buffer.nbytes());
    communicator.wait(communicator.broadcast(buffer, rank, "gather the trace"));
    if (world_.rank() != 0) continue;
    RankTimeline timeline;
    timeline.name = mesh_.stages == 1 ? fmt::format("rank {}", rank)
                                      : fmt::format("rank {} (stage {}, replica {})", rank, mesh_.stage_of(rank),
                                                    mesh_.replica_of(rank));
    timeline.offset_ns = all[rank][1].item<int64_t>();
    timeline.spans.resize(static_cast<size_t>(count));
    if (count > 0) std::memcpy(timeline.spans.data(), buffer.const_data_ptr(), buffer.nbytes());
    packets += encode_trace(timeline.spans, rank, timeline.name, timeline.offset_ns);
    if (const auto dropped = all[rank][2].item<int64_t>(); dropped > 0)
      log::warn("the trace of rank {} is full: {} of its spans were left out", rank, dropped);
    timelines.push_back(std::move(timeline));
  }
  if (world_.rank() != 0) return;
  write_atomically(folder_ / "trace.pftrace", packets);
  write_atomically(folder_ / "timeline.svg", timeline_svg(timelines));
  log::info("trace: {} (open it in ui.perfetto.dev), picture: {}", (folder_ / "trace.pftrace").string(),
            (folder_ / "timeline.svg").string());
}

}  // namespace trireme
