#include "trireme/spec/sync_settings.h"

#include <algorithm>
#include <functional>
#include <string>

#include "trireme/base/error.h"

namespace trireme {

namespace {

std::vector<SyncRow> make_rows() {
  return {{.kind = SyncKind::allreduce, .name = "allreduce", .loose = false, .makes_sums = true, .takes_stages = true},
          {.kind = SyncKind::root, .name = "root", .loose = false, .takes_stages = true},
          {.kind = SyncKind::stale,
           .name = "stale",
           .options = {"staleness", "adapt_lr"},
           .makes_sums = true,
           .takes_stages = true},
          {.kind = SyncKind::eager, .name = "eager", .options = {"every", "eager"}, .makes_sums = true},
          {.kind = SyncKind::local,
           .name = "local",
           .options = {"every", "outer_lr", "outer_momentum", "overlap"},
           .makes_sums = true,
           .takes_stages = true},
          {.kind = SyncKind::server, .name = "server", .options = {"staleness", "adapt_lr", "servers"}},
          {.kind = SyncKind::elastic, .name = "elastic", .options = {"every", "servers", "elasticity"}},
          {.kind = SyncKind::gossip, .name = "gossip", .options = {"every", "graph"}},
          {.kind = SyncKind::hogwild, .name = "hogwild", .one_process = true}};
}

std::vector<std::pair<const char*, SyncKind>> names_of_kinds() {
  std::vector<std::pair<const char*, SyncKind>> names;
  for (const auto& row : all_sync_kinds()) names.emplace_back(row.name, row.kind);
  return names;
}

void describe_kind(Settings& settings, SyncConfig& sync) {
  settings.add_choice("sync.kind", sync.kind, names_of_kinds(),
                      "allreduce: all replicas sum gradients and update; root: a bucket's root does, and sends it on; "
                      "the others wait for less, see docs/replicas.md.");
  settings.add("sync.bucket_mb", sync.bucket_mb, "Gradients that are reduced at once.")
      .unit("MB")
      .above(0)
      .at_most(1e6);
  settings.add_choice("sync.order", sync.order, {{"backward", SyncOrder::backward}, {"forward", SyncOrder::forward}},
                      "backward: as gradients come, and a step ends when all have; forward: what the next forward pass "
                      "needs first goes first, and that begins before the last has come.");
  settings
      .add("sync.credit_mb", sync.credit_mb,
           "With sync.order = forward: gradients that are on their way at once; more urgent ones wait for no more.")
      .unit("MB")
      .above(0)
      .at_most(1e6)
      .read_if([&sync] { return sync.order == SyncOrder::forward; });
}

void describe_loose(Settings& settings, SyncConfig& sync) {
  const auto where = [&sync](const char* option) -> std::function<bool()> {
    return [&sync, option] { return row_of(sync.kind).reads(option); };
  };
  settings
      .add("sync.staleness", sync.staleness,
           "Steps of others that a replica's parameters may lack (stale, server); -1 = any number (server only).")
      .unit("steps")
      .at_least(-1)
      .at_most(1000)
      .read_if(where("staleness"));
  settings
      .add("sync.every", sync.every,
           "Steps between averages (local), pulls (elastic), messages (gossip), or rounds that wait for all (eager).")
      .unit("steps")
      .at_least(1)
      .read_if(where("every"));
  settings.add("sync.adapt_lr", sync.adapt_lr,
               "Whether an update whose gradients lack n steps of others is divided by n (stale, server).")
      .read_if(where("adapt_lr"));
  settings.add_choice("sync.eager", sync.eager, {{"solo", EagerKind::solo}, {"majority", EagerKind::majority}},
                      "Who begins a round of eager: the first rank that is ready, or one that chance picks.")
      .read_if(where("eager"));
  settings.add("sync.outer_lr", sync.outer_lr, "Share of the way to the average that local goes; DiLoCo's is 0.7.")
      .above(0)
      .read_if(where("outer_lr"));
  settings
      .add("sync.outer_momentum", sync.outer_momentum, "Nesterov momentum of the averages of local; DiLoCo's is 0.9.")
      .at_least(0)
      .below(1)
      .read_if(where("outer_momentum"));
  settings.add("sync.overlap", sync.overlap,
               "Whether an average of local is on its way during the next round, instead of everybody waiting.")
      .read_if(where("overlap"));
  settings.add("sync.servers", sync.servers, "Ranks that hold a part of the parameters (server, elastic); 0 = all.")
      .unit("ranks")
      .at_least(0)
      .read_if(where("servers"));
  settings
      .add("sync.elasticity", sync.elasticity,
           "Share of the way that a replica and the centre move towards each other (elastic).")
      .above(0)
      .below(1)
      .read_if(where("elasticity"));
  settings.add_choice(
      "sync.graph", sync.graph,
      {{"ring", GossipGraph::ring}, {"pairs", GossipGraph::pairs}, {"exponential", GossipGraph::exponential}},
      "To whom a rank sends (gossip): its neighbour, anybody, or 1, 2, 4 … ranks further in turn.")
      .read_if(where("graph"));
}

void describe_codec(Settings& settings, CodecConfig& codec) {
  // `auto` is one of none, bf16, int8 and int4.
  const auto where = [&codec](std::vector<CodecKind> kinds) -> std::function<bool()> {
    return [&codec, kinds] { return std::find(kinds.begin(), kinds.end(), codec.kind) != kinds.end(); };
  };
  settings.add_choice("sync.codec", codec.kind,
                      {{"none", CodecKind::none},
                       {"auto", CodecKind::automatic},
                       {"fp16", CodecKind::fp16},
                       {"bf16", CodecKind::bf16},
                       {"int8", CodecKind::int8},
                       {"int4", CodecKind::int4},
                       {"sign", CodecKind::sign},
                       {"topk", CodecKind::top_k},
                       {"threshold", CodecKind::threshold},
                       {"lowrank", CodecKind::low_rank},
                       {"bound", CodecKind::bound}},
                      "How what ranks sum is said in fewer bytes, between hosts only where there are several; auto: by "
                      "none, bf16, int8 or int4, whichever links and cores make fastest. See docs/codecs.md.");
  settings.add("sync.codec_feedback", codec.feedback, "Whether what a codec leaves out is said in the next steps.")
      .read_if([&codec] { return codec.kind != CodecKind::none; });
  settings.add("sync.codec_block", codec.block, "Elements that share a scale (int8, int4, sign).")
      .at_least(16)
      .at_most(65536)
      .read_if(where({CodecKind::automatic, CodecKind::int8, CodecKind::int4, CodecKind::sign}));
  settings.add_choice("sync.codec_rounding", codec.rounding,
                      {{"nearest", Rounding::nearest}, {"stochastic", Rounding::stochastic}},
                      "How int8 and int4 round: to the nearest, or by chance so that the mean is right.")
      .read_if(where({CodecKind::automatic, CodecKind::int8, CodecKind::int4}));
  settings
      .add("sync.codec_keep", codec.keep, "Share of the elements that topk keeps.")
      .above(0)
      .at_most(1)
      .read_if(where({CodecKind::top_k}));
  settings
      .add("sync.codec_threshold", codec.threshold, "What threshold keeps is at least so large.")
      .at_least(0)
      .read_if(where({CodecKind::threshold}));
  settings
      .add("sync.codec_rank", codec.rank, "Rank of the matrices that lowrank sends.")
      .at_least(1)
      .at_most(1024)
      .read_if(where({CodecKind::low_rank}));
  settings
      .add("sync.codec_bound", codec.bound, "Largest error of an element that bound allows.")
      .above(0)
      .read_if(where({CodecKind::bound}));
  settings.add_choice("sync.codec_bound_kind", codec.bound_kind,
                      {{"absolute", BoundKind::absolute}, {"relative", BoundKind::relative}},
                      "Whether that is the error itself, or a share of the element.")
      .read_if(where({CodecKind::bound}));
}

}  // namespace

bool SyncRow::reads(std::string_view option) const {
  return std::any_of(options.begin(), options.end(), [&](const char* one) { return one == option; });
}

const std::vector<SyncRow>& all_sync_kinds() {
  static const auto rows = make_rows();
  return rows;
}

const SyncRow& row_of(SyncKind kind) {
  for (const auto& row : all_sync_kinds()) {
    if (row.kind == kind) return row;
  }
  fail("no such way to keep replicas together");
}

bool is_loose(SyncKind kind) { return row_of(kind).loose; }

void describe_sync(Settings& settings, SyncConfig& sync) {
  settings.section("sync", "How replicas are kept together.");
  describe_kind(settings, sync);
  describe_loose(settings, sync);
  describe_codec(settings, sync.codec);
}

void describe_communication(Settings& settings, CommConfig& comm, TrialConfig& trial) {
  settings.section("comm", "How bytes travel between ranks.");
  settings.add_choice(
      "comm.transport", comm.transport,
      {{"auto", TransportKind::automatic},
       {"shared", TransportKind::shared},
       {"mpi", TransportKind::mpi},
       {"nccl", TransportKind::nccl}},
      "Shared memory or MPI messages; auto = shared memory inside a host, MPI between hosts; nccl = as auto, but NCCL "
      "for what lies on cards.");
  settings.add("comm.links", comm.links,
               "File of measured links, by which algorithms are chosen (trireme bench comm --tune makes it).");
  settings
      .add("comm.jitter_ms", comm.jitter_ms,
           "Every message between stages is held back for a random time up to this, to see how a schedule bears it.")
      .unit("ms")
      .at_least(0);
  settings.section("trial", "What the run is made to bear, to see how it does.");
  settings
      .add("trial.delay_ms", trial.delay_ms,
           "Time that each rank sleeps in every step: a number for each of the first ranks; empty = none.")
      .unit("ms")
      .at_least(0);
  settings
      .add("trial.burst", trial.burst,
           "With delays: they come in bursts of so many steps, at one rank after another; 0 = always.")
      .unit("steps")
      .at_least(0);
}

namespace {

// The kinds that look further than one step.
void check_loose(const RunConfig& config, const Settings& settings) {
  const auto require = std::bind_front(&Settings::require, &settings);
  const auto& sync = config.sync;
  require(sync.staleness >= 0 || sync.kind != SyncKind::stale, "sync.staleness", "must be at least 0 with",
          "sync.kind");
  const auto& row = row_of(sync.kind);
  if (!row.loose) return;
  require(config.parallel.pipe == 1 || row.takes_stages, "parallel.pipe",
          "must be 1 (each stage of a replica would meet other ranks at other times) with", "sync.kind");
  require(config.parallel.replicas.empty(), "parallel.replicas",
          "must be empty (a replica of one stage belongs to no replica of the others) with", "sync.kind");
  require(config.parallel.pipe == 1 || sync.kind != SyncKind::stale || config.optimizer.clip == 0, "optimizer.clip",
          "must be 0 (a stage does not know the others' part of a stale gradient) with", "sync.kind");
  // Replicas that are in different steps have no common batch.
  require(!shares_statistics(config.model), "model.batch_norm", "must be local with", "sync.kind");
  require(!row.one_process || config.train.device == DeviceKind::cpu, "train.device", "must be cpu with",
          "sync.kind");
}

// What is sent must be a sum of which the next one can make good what was lost.
void check_codec(const RunConfig& config, const Settings& settings) {
  const auto require = std::bind_front(&Settings::require, &settings);
  const auto& sync = config.sync;
  if (sync.codec.kind == CodecKind::none) return;
  require(row_of(sync.kind).makes_sums, "sync.codec", "must be none with", "sync.kind");
  require(sync.order == SyncOrder::backward, "sync.codec", "must be none with", "sync.order");
  require(config.train.precision != Precision::fp64, "train.precision", "must be fp32 or bf16 with", "sync.codec");
  require(sync.codec.block % 16 == 0, "sync.codec_block", "must be a multiple of 16 with", "sync.codec");
}

}  // namespace

void check_sync(const RunConfig& config, const Settings& settings) {
  const auto require = std::bind_front(&Settings::require, &settings);
  const bool forward_first = config.sync.order == SyncOrder::forward;
  require(!forward_first || config.sync.kind == SyncKind::allreduce, "sync.kind", "must be allreduce with",
          "sync.order");
  require(!forward_first || config.optimizer.clip == 0, "optimizer.clip", "must be 0 with", "sync.order");
  require(!forward_first || config.train.nonfinite_limit == 0, "train.nonfinite_limit", "must be 0 with", "sync.order");
  require(!forward_first || config.parallel.pipe == 1, "parallel.pipe", "must be 1 with", "sync.order");
  // The sums of BatchNorms are part of the passes: they cannot be in the order that gradients find for themselves, nor
  // in that of messages, which is another one on each replica.
  require(!forward_first || !shares_statistics(config.model), "model.batch_norm", "must be local with", "sync.order");
  check_loose(config, settings);
  check_codec(config, settings);
}

}  // namespace trireme
