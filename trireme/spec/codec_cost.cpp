#include "trireme/spec/codec_cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/units.h"

namespace trireme {

namespace {

// What is summed between whom, after every host has summed for itself.
struct Crossing {
  int ranks;
  int64_t bytes;
  LinkCost link;
  double inside_s;  // summing and gathering inside the hosts
};

Crossing crossing_of(const SumPlace& place, int64_t bytes) {
  if (place.hosts == 1) return {place.local, bytes, place.links.inside, 0};
  auto link = place.links.between;
  link.beta_s_per_byte *= place.local;  // all local ranks send at once
  const double inside = place.local == 1 ? 0
                                         : reduce_scatter_seconds(place.local, bytes, place.links.inside) +
                                               all_gather_seconds(place.local, bytes, place.links.inside);
  return {place.hosts, bytes / place.local, link, inside};
}

}  // namespace

double plain_sum_seconds(const SumPlace& place, int64_t bytes) {
  const auto crossing = crossing_of(place, bytes);
  const auto algorithm = choose_all_reduce(crossing.ranks, crossing.bytes, crossing.link);
  return crossing.inside_s + all_reduce_seconds(algorithm, crossing.ranks, crossing.bytes, crossing.link);
}

double compressed_sum_seconds(const SumPlace& place, int64_t bytes, const CodecSpeed& codec) {
  const auto crossing = crossing_of(place, bytes);
  const auto ranks = static_cast<double>(crossing.ranks), all = static_cast<double>(crossing.bytes);
  const auto message = static_cast<int64_t>(all * codec.ratio);
  const double wire = all_to_all_seconds(crossing.ranks, message, crossing.link) +
                      all_gather_seconds(crossing.ranks, message, crossing.link);
  // Parts for the others, and the sum of one's own; parts from the others, and all sums.
  const double encoded = all * (ranks - 1) / ranks + all / ranks, decoded = all * (ranks - 1) / ranks + all;
  const double work = encoded * codec.encode_s_per_byte + decoded * codec.decode_s_per_byte;
  return crossing.inside_s + wire + work / std::min(1.0, place.cores);
}

CodecChoice choose_codec(const SumPlace& place, int64_t bytes, const std::vector<CodecSpeed>& codecs, double worth) {
  CodecChoice choice;
  choice.plain_s = plain_sum_seconds(place, bytes);
  for (const auto& codec : codecs) choice.seconds.push_back(compressed_sum_seconds(place, bytes, codec));
  if (choice.seconds.empty()) return choice;
  const double best = *std::min_element(choice.seconds.begin(), choice.seconds.end());
  if (best > worth * choice.plain_s) return choice;
  double most = -1;
  for (size_t i = 0; i < codecs.size(); ++i) {
    if (choice.seconds[i] > 1.1 * best || codecs[i].ratio <= most) continue;
    most = codecs[i].ratio;
    choice.kind = codecs[i].kind;
  }
  return choice;
}

std::string CodecChoice::brief(const std::vector<CodecSpeed>& codecs) const {
  auto text = fmt::format("sync.codec = auto: {}. Predicted for a bucket: none {}", name(kind), human_seconds(plain_s));
  for (size_t i = 0; i < codecs.size(); ++i)
    text += fmt::format(", {} {}", name(codecs[i].kind), human_seconds(seconds[i]));
  return text;
}

const char* name(CodecKind kind) {
  switch (kind) {
    case CodecKind::none: return "none";
    case CodecKind::automatic: return "auto";
    case CodecKind::fp16: return "fp16";
    case CodecKind::bf16: return "bf16";
    case CodecKind::int8: return "int8";
    case CodecKind::int4: return "int4";
    case CodecKind::sign: return "sign";
    case CodecKind::top_k: return "topk";
    case CodecKind::threshold: return "threshold";
    case CodecKind::low_rank: return "lowrank";
    case CodecKind::bound: return "bound";
  }
  return "?";
}

}  // namespace trireme
