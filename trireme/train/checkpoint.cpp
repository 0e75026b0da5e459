#include "trireme/train/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/base/safetensors.h"
#include "trireme/base/tensor_files.h"
#include "trireme/memory/spare.h"
#include "trireme/train/checkpoint_parts.h"
#include "trireme/train/weights.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr double forever = 1e9;  // seconds
constexpr const char* partial_suffix = ".partial";

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Where each parameter that is trained lies in the store.
std::map<const Parameter*, std::pair<const Bucket*, const StoredParameter*>> places(const ParameterStore& store) {
  std::map<const Parameter*, std::pair<const Bucket*, const StoredParameter*>> found;
  for (const auto& bucket : store.buckets()) {
    for (const auto& stored : bucket.parameters) found[stored.parameter.get()] = {&bucket, &stored};
  }
  return found;
}

// Takes the name away first: whoever is killed in between leaves no half of a checkpoint under a whole one's name.
void remove_checkpoint(const fs::path& folder) {
  if (!fs::exists(folder)) return;
  const fs::path doomed = folder.string() + ".old" + partial_suffix;
  remove_tree(doomed);
  fs::rename(folder, doomed);
  remove_tree(doomed);
}

}  // namespace

CheckpointInfo open_checkpoint(const fs::path& folder) {
  const auto manifest = read_manifest(folder);
  verify_files(folder, manifest);
  CheckpointInfo info;
  info.folder = folder;
  info.step = manifest.at("step").get<int64_t>();
  info.progression.step = info.step;
  info.progression.updates = manifest.at("updates").get<int64_t>();
  info.progression.skipped = manifest.at("skipped").get<int64_t>();
  info.progression.skipped_in_a_row = manifest.at("skipped_in_a_row").get<int64_t>();
  info.config = manifest.at("config").get<std::string>();
  info.codec = manifest.value("codec", "");
  for (const auto& [name, entry] : manifest.at("files").items()) {
    auto& files = name.starts_with("model")  ? info.model_files
                  : name.starts_with("rank") ? info.rank_files
                                             : info.optimizer_files;
    files.push_back(folder / name);
  }
  return info;
}

CheckpointInfo newest_checkpoint(const fs::path& run_dir, const std::string& how_to_name_one) {
  const auto all = list_checkpoints(run_dir);
  if (all.empty()) refuse("{} holds no checkpoint", run_dir.string());
  try {
    return open_checkpoint(all.front());
  } catch (Error& error) {
    for (size_t i = 1; i < all.size(); ++i) {
      try {
        open_checkpoint(all[i]);
      } catch (const Error&) {
        continue;
      }
      refuse("the newest checkpoint cannot be used: {}. The newest whole one is {}: {} {}", error.what(),
             all[i].filename().string(), how_to_name_one, all[i].string());
    }
    refuse("the newest checkpoint cannot be used: {}. No other one is whole", error.what());
  }
}

void write_manifest(const fs::path& folder, const ordered_json& files, const Progression& progression,
                    const std::string& resolved_config, const std::string& codec) {
  ordered_json manifest{{"format", "trireme-checkpoint"},   {"version", checkpoint_version},
                        {"step", progression.step},         {"updates", progression.updates},
                        {"skipped", progression.skipped},   {"skipped_in_a_row", progression.skipped_in_a_row},
                        {"threads", at::get_num_threads()}, {"files", files},
                        {"config", resolved_config}};
  if (!codec.empty()) manifest["codec"] = codec;
  manifest["xxh3"] = manifest_checksum(manifest);
  write_atomically(folder / "manifest.json", manifest.dump(1) + "\n");
}

void set_aside_checkpoints_after(const fs::path& run_dir, int64_t step) {
  for (const auto& folder : list_checkpoints(run_dir)) {
    if (step_of_checkpoint(folder) <= step) continue;
    const auto aside = folder.parent_path() / ("abandoned-" + folder.filename().string());
    remove_tree(aside);
    fs::rename(folder, aside);
    log::info("{} is of a line that this run leaves: renamed to {}", folder.filename().string(), aside.string());
  }
}

ParameterList saved_parameters(const Model& model) {
  auto parameters = model.parameters();
  if (std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) { return parameter->adapter; }))
    std::erase_if(parameters, [](const auto& parameter) { return !parameter->adapter; });
  return parameters;
}

void load_checkpoint(const CheckpointInfo& info, const ParameterList& parameters, ParameterStore& store,
                     bool with_optimizer, bool whole_model, const BufferList& buffers) {
  c10::NoGradGuard no_grad;
  const auto load = [&](const TensorFiles& files, const std::string& name, const at::Tensor& target) {
    const auto found = files.find(name);
    if (!found) refuse("the checkpoint {} is of another model or optimizer: it has no {}", info.folder.string(), name);
    if (at::IntArrayRef(found.info->shape) != target.sizes()) {
      refuse("the checkpoint {} is of another model: {} has shape [{}] there and [{}] here", info.folder.string(), name,
             fmt::join(found.info->shape, ", "), fmt::join(target.sizes(), ", "));
    }
    if ((found.info->dtype == DType::i64) != (target.scalar_type() == at::kLong))
      refuse("the checkpoint {} is of another model: {} is of type {} there", info.folder.string(), name,
             dtype_name(found.info->dtype));
    target.copy_(tensor_of(found));
  };
  const TensorFiles model(info.model_files);
  const size_t wanted = parameters.size() + buffers.size();
  if (whole_model && model.size() != wanted) {
    refuse("the checkpoint {} is of another model: it has {} parameters, this one {}", info.folder.string(),
           model.size(), wanted);
  }
  const auto masters = store.masters();
  for (const auto& parameter : parameters) load(model, parameter->name, masters.at(parameter.get()));
  for (const auto& buffer : buffers) load(model, buffer->name, buffer->value);
  if (with_optimizer && info.optimizer_files.empty()) {
    log::info("{} holds no optimizer state: the optimizer starts anew", info.folder.string());
  } else if (with_optimizer) {
    const TensorFiles state(info.optimizer_files);
    const auto where = places(store);
    for (const auto& parameter : parameters) {
      if (!parameter->trained) continue;
      const auto& [bucket, stored] = where.at(parameter.get());
      for (const auto& [name, buffer] : bucket->state)
        load(state, parameter->name + "." + name, ParameterStore::piece(buffer, *stored));
    }
  }
  for (auto& bucket : store.buckets()) ParameterStore::publish(bucket);
}

bool load_own_state(const CheckpointInfo& info, int rank, int ranks, const OwnState& state) {
  if (state.empty() || info.rank_files.size() != static_cast<size_t>(ranks)) return false;
  c10::NoGradGuard no_grad;
  auto sorted = info.rank_files;
  std::sort(sorted.begin(), sorted.end());
  const TensorFiles file({sorted[static_cast<size_t>(rank)]});
  for (const auto& [name, tensor] : state) {
    const auto found = file.find(name);
    if (!found || at::IntArrayRef(found.info->shape) != tensor.sizes() ||
        found.info->dtype != dtype_of(tensor.scalar_type()))
      return false;
  }
  for (const auto& [name, tensor] : state) tensor.copy_(tensor_of(file.find(name)));
  return true;
}

OwnState read_own_state(const CheckpointInfo& info, int rank, int ranks) {
  OwnState state;
  if (info.rank_files.size() != static_cast<size_t>(ranks)) return state;
  auto sorted = info.rank_files;
  std::sort(sorted.begin(), sorted.end());
  const TensorFiles file({sorted[static_cast<size_t>(rank)]});
  for (const auto& found : file.all()) state[found.info->name] = tensor_of(found).clone();
  return state;
}

// The state as it was at one step, on the host, with what is needed to write it down.
struct CheckpointWriter::Snapshot {
  struct Entry {
    std::string name;
    at::Tensor view;  // of `buffers`
  };
  std::map<std::pair<const Bucket*, std::string>, at::Tensor> buffers;  // the bucket, and the name of its state
  std::map<const Buffer*, at::Tensor> model_buffers;
  std::vector<Entry> model, optimizer, own;
  Progression progression;

  // A copy's place is kept from save to save, though the buffer itself may come and go.
  at::Tensor copy_of(const Bucket& bucket, const std::string& name, const at::Tensor& buffer) {
    auto& copy = buffers[{&bucket, name}];
    if (!copy.defined()) copy = at::empty(buffer.sizes(), buffer.options().device(at::kCPU));
    return copy;
  }
};

CheckpointWriter::CheckpointWriter(fs::path run_dir, const CheckpointConfig& config, std::string resolved_config,
                                   Recorder& recorder, CheckpointPart part)
    : folder_(std::move(run_dir) / "checkpoints"),
      config_(config),
      resolved_config_(std::move(resolved_config)),
      recorder_(recorder),
      part_(part) {
  make_folder(folder_);
  held_.emplace(folder_);
  // What a killed run left half-written is of no use to anybody.
  if (part_.writer == 0) clean();
  thread_ = std::thread([this, rank = log::rank()] {
    log::set_rank(rank);
    const OwnerScope scope(recorder_.memory(), Owner::checkpoint);
    run();
  });
}

void CheckpointWriter::clean() const {
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const auto name = entry.path().filename().string();
    if (name.size() > std::strlen(partial_suffix) &&
        name.rfind(partial_suffix) == name.size() - std::strlen(partial_suffix)) {
      remove_tree(entry.path());
    }
  }
}

CheckpointWriter::~CheckpointWriter() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointWriter::keep_own(const OwnState& state) {
  c10::NoGradGuard no_grad;
  const OwnerScope scope(Owner::checkpoint);
  std::unique_lock lock(mutex_);
  wait_until_written(lock, forever);
  if (!snapshot_) snapshot_ = std::make_unique<Snapshot>();
  snapshot_->own.clear();
  for (const auto& [name, tensor] : state) snapshot_->own.push_back({name, tensor.to(at::kCPU, false, /*copy=*/true)});
}

void CheckpointWriter::save(const ParameterList& order, const ParameterStore& store, const Progression& progression,
                            const BufferList& model_buffers) {
  c10::NoGradGuard no_grad;
  const OwnerScope scope(Owner::checkpoint);
  const auto begun = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  wait_until_written(lock, forever);  // the one before: its buffers are in use
  if (!snapshot_) snapshot_ = std::make_unique<Snapshot>();
  auto& snapshot = *snapshot_;
  const bool first = part_.model && snapshot.model.empty();
  if (first) free_spare_memory();  // the copies stay from now on
  for (const auto& bucket : store.buckets()) {
    if (!part_.model) break;
    snapshot.copy_of(bucket, "", bucket.master).copy_(bucket.master);
    for (const auto& [name, buffer] : bucket.state) snapshot.copy_of(bucket, name, buffer).copy_(buffer);
  }
  for (const auto& buffer : model_buffers) {
    if (!part_.model) break;
    auto& copy = snapshot.model_buffers[buffer.get()];
    if (!copy.defined()) copy = at::empty(buffer->value.sizes(), buffer->value.options().device(at::kCPU));
    copy.copy_(buffer->value);
  }
  if (first) {
    const auto where = places(store);
    for (const auto& parameter : order) {
      if (!parameter->owned) continue;  // another stage saves it
      if (!parameter->trained) {        // and it will be the same at every save
        snapshot.model.push_back({parameter->name, parameter->value.detach().cpu()});
        continue;
      }
      const auto& [bucket, stored] = where.at(parameter.get());
      snapshot.model.push_back(
          {parameter->name, ParameterStore::piece(snapshot.copy_of(*bucket, "", bucket->master), *stored)});
      for (const auto& [name, buffer] : bucket->state) {
        snapshot.optimizer.push_back(
            {parameter->name + "." + name, ParameterStore::piece(snapshot.copy_of(*bucket, name, buffer), *stored)});
      }
    }
    for (const auto& buffer : model_buffers)
      snapshot.model.push_back({buffer->name, snapshot.model_buffers.at(buffer.get())});
  }
  snapshot.progression = progression;
  pending_ = true;
  lock.unlock();
  changed_.notify_all();
  const double stall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  recorder_.event("checkpoint_begun", {{"step", progression.step}, {"stall_s", stall_s}});
}

void CheckpointWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return pending_ || ending_; });
    if (!pending_) return;
    lock.unlock();
    std::optional<std::string> failure;
    try {
      write(*snapshot_);
    } catch (const std::exception& error) {
      // Training is worth more than this checkpoint: say so and go on. Only a run that ends without its last one fails.
      failure = error.what();
      log::warn("the checkpoint of step {} was not saved: {}. Earlier checkpoints are untouched",
                snapshot_->progression.step, error.what());
      recorder_.event("checkpoint_failed", {{"step", snapshot_->progression.step}, {"reason", error.what()}});
      if (part_.writer == 0)
        remove_tree(folder_ / fmt::format("step-{}{}", snapshot_->progression.step, partial_suffix));
    }
    lock.lock();
    failure_ = std::move(failure);
    pending_ = false;
    changed_.notify_all();
  }
}

void CheckpointWriter::write(const Snapshot& snapshot) {
  const auto begun = std::chrono::steady_clock::now();
  const auto& progression = snapshot.progression;
  const auto name = fmt::format("step-{}", progression.step);
  const auto partial = folder_ / (name + partial_suffix), whole = folder_ / name;
  if (!held_->is_at(folder_)) fail("{} was moved or removed while the run wrote there", folder_.string());
  try {
    make_folder(partial);
    write_part(snapshot, partial);
  } catch (...) {
    note_failed_part(partial, part_.writer);
    throw;
  }
  if (part_.writer != 0) return;

  PartWait wait;
  wait.ranks = part_.writer_ranks;
  wait.hurried = part_.stop_asked;
  wait.given_up = [&] {
    std::lock_guard lock(mutex_);
    return ending_;
  };
  wait.progressed = [&] { ++pieces_written_; };
  const auto files = gather_parts(partial, wait);
  uint64_t total = 0;
  for (const auto& [file, entry] : files.items()) total += entry.at("bytes").get<uint64_t>();
  write_manifest(partial, files, progression, resolved_config_, part_.codec);
  sync_folder(partial);
  remove_checkpoint(whole);  // a run that was resumed from an earlier step does this one again
  rename_durably(partial, whole);
  {
    std::lock_guard lock(mutex_);
    last_ = whole;
  }
  prune(progression.step);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  recorder_.event("checkpoint",
                  {{"step", progression.step}, {"path", whole.string()}, {"bytes", total}, {"write_s", seconds}});
}

// This writer's files, and then a note that they are there.
void CheckpointWriter::write_part(const Snapshot& snapshot, const fs::path& partial) {
  RateLimit limit(static_cast<uint64_t>(config_.rate_mb * 1e6));
  const auto one_of = [](int number, int count) { return fmt::format("-{:05}-of-{:05}", number + 1, count); };
  const auto suffix = part_.stages == 1 ? std::string() : one_of(part_.stage, part_.stages);
  std::optional<PartPulse> pulse;
  if (part_.writer != 0) pulse.emplace(partial, part_.writer);  // the first waits for the others
  ordered_json files;
  const auto write_file = [&](const std::string& name, const std::vector<Snapshot::Entry>& entries) {
    std::vector<TensorInfo> tensors;
    for (const auto& entry : entries)
      tensors.push_back({entry.name, dtype_of(entry.view.scalar_type()), entry.view.sizes().vec()});
    const auto file = name + ".safetensors";
    SafetensorsWriter writer(partial / file, tensors, {{"format", "pt"}}, &limit);
    for (const auto& entry : entries) {
      writer.append(bytes_of(entry.view.contiguous()));  // in the order of its dims, however it lies here
      ++pieces_written_;
    }
    const auto written = writer.finish();
    files[file] = {{"bytes", written.bytes}, {"xxh3", hex(written.checksum)}};
  };
  if (part_.model) {
    write_file("model" + suffix, snapshot.model);
    write_file("optimizer" + suffix, snapshot.optimizer);
  }
  if (!snapshot.own.empty())
    write_file("rank" + one_of(part_.writer, static_cast<int>(part_.writer_ranks.size())), snapshot.own);
  pulse.reset();  // from the note on the folder is the first writer's
  note_part(partial, part_.writer, files);
}

void CheckpointWriter::prune(int64_t newest) {
  auto all = list_checkpoints(folder_.parent_path());
  // A run that went on from an older checkpoint finds later ones here: they must not push out what it has just written.
  std::erase_if(all, [&](const auto& folder) { return step_of_checkpoint(folder) > newest; });
  for (size_t i = static_cast<size_t>(config_.keep); i < all.size(); ++i) remove_checkpoint(all[i]);
}

bool CheckpointWriter::finish(double timeout_s) {
  std::unique_lock lock(mutex_);
  return wait_until_written(lock, timeout_s);
}

// A disk that is slow is not a rank that hangs: as long as pieces get written, here or by those who are waited for, the
// watchdog is told so. A wait alone tells it nothing.
bool CheckpointWriter::wait_until_written(std::unique_lock<std::mutex>& lock, double timeout_s) {
  uint64_t seen = pieces_written_;
  for (double waited_s = 0; pending_ && waited_s < timeout_s; waited_s += 0.25) {
    changed_.wait_for(lock, std::chrono::duration<double>(std::min(0.25, timeout_s - waited_s)));
    if (pieces_written_ != seen) recorder_.still_working();
    seen = pieces_written_;
  }
  return !pending_;
}

std::optional<fs::path> CheckpointWriter::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

std::optional<std::string> CheckpointWriter::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace trireme
