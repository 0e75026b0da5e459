// The trainer: a training step of one stage as tasks on the engine. Which tasks there are, and what each waits for, is
// known from the plan (engine/step_graph); the trainer binds its work to them. For m microbatches and b buckets:
//
//   load ─┬→ forward 0 → backward 0        (each also waits for its message from the neighbouring stage, and sends one)
//         ├→ …                             (where the schedule splits them: backward 0 → weights 0)
//         └→ forward m−1 → backward m−1 ─→ reduce 0 … reduce b−1, as gradients come, while other stages still work
//                                             └→ norm 0 … norm b−1 ─→ totals over all ranks → decide → optimize 0 … b−1
//
// (With a loose sync.kind it is: … backward m−1 → update → exchange → adopt.)
//
// The schedule chooses among the passes that are ready. `decide` sees the loss and the gradient norm of the whole job,
// so every rank decides alike: update, or skip.
//
// Where nothing depends on them (no clipping, and the first value that is not finite ends the run), stages do not wait
// for those totals: each goes on into the next step as soon as its own parameters have changed, and the totals are
// summed meanwhile. A pipeline whose schedule leaves no other waits has none then, with the same numbers.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "trireme/comm/postbox.h"
#include "trireme/comm/world.h"
#include "trireme/data/dataset.h"
#include "trireme/data/step_loader.h"
#include "trireme/device/device_trace.h"
#include "trireme/engine/executor.h"
#include "trireme/engine/step_graph.h"
#include "trireme/nn/model.h"
#include "trireme/observe/step_report.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/store.h"
#include "trireme/optim/versions.h"
#include "trireme/parallel/gradient_sync.h"
#include "trireme/parallel/loose_sync.h"
#include "trireme/spec/config.h"
#include "trireme/spec/plan.h"
#include "trireme/spec/progression.h"
#include "trireme/train/stage.h"

namespace trireme {

class Teacher;

// In the precision of the run.
LayerTable table_of(const RunConfig& config, const Model& model);
LayerTable table_of(const RunConfig& config, int64_t vocab);

class StageTrainer {
 public:
  // `whole` is the model, all of it; without one, what the configuration names. Without a plan, the configuration's.
  StageTrainer(const RunConfig& config, World& world, const Split& data, std::unique_ptr<Model> whole = nullptr);
  StageTrainer(const RunConfig& config, World& world, const Split& data, std::unique_ptr<Model> whole, Plan plan);
  ~StageTrainer();

  // Does the next step; `stop` is this rank's wish to end, agreed on by all ranks in stop_agreed(). The report is of
  // the step before where totals come late; then settles() says when the next call only waits for those of this step.
  StepReport step(bool stop);
  bool settles() const { return late_.settles; }
  // Says that the step was skipped for values that are not finite, or fails when too many were; after its report has
  // been recorded.
  void check_finite(const StepReport& report) const;
  // Compares checksums of all replicas' parameters; throws on all of them when one has others. Collective.
  void check_replicas();
  bool stop_agreed() const { return stop_agreed_; }
  // Whether all ranks stand in the same step now: only then may they do what is collective.
  bool together() const { return flow_ ? flow_->together : loose_ ? loose_->together() : !late_.open; }
  // Takes up what a pipeline that never drains had in flight; false where there is nothing that fits. Collective.
  bool go_on(const OwnState& state);
  bool never_drains() const { return flow_ != nullptr; }
  int64_t most_versions() const { return flow_ ? flow_->versions.most() : 1; }
  const CodecConfig& codec() const { return codec_; }  // as it was asked for or chosen
  // What this rank has of its own, besides what while_whole() saves; whether ranks have anything, the same on all.
  OwnState own_state();
  // Calls `save` when parameters and optimizer state are whole on the ranks that save them. Collective.
  void while_whole(const std::function<void()>& save);

  // Evaluates `train.eval_batches` batches of the held-out samples and puts the mean loss, and of a classifier the
  // accuracy, into the report; nothing when there are none.
  void evaluate(StepReport& report);

  Executor& executor() { return executor_; }
  const Plan& plan() const { return plan_; }
  const Mesh& mesh() const { return mesh_; }
  int stage_number() const { return mesh_.stage_of(world_.rank()); }
  Model& model() { return *model_; }  // this rank's layers
  ParameterStore& store() { return *store_; }
  Progression& progression() { return progression_; }
  const Schedule& schedule() const { return *schedule_; }
  // Bytes held for backward passes in the last step, by counting: at most, and by the largest microbatch.
  int64_t activation_bytes() const { return most_kept_bytes_; }
  int64_t microbatch_bytes() const { return largest_flight_bytes_; }
  at::Device device() const { return device_; }
  std::string brief() const;  // one line: the whole model's parameters and layers, ranks, batch

 private:
  struct Planned {
    std::unique_ptr<Model> model;
    Plan plan;
  };
  StageTrainer(const RunConfig& config, World& world, const Split& data, Planned planned);
  static Planned planned(const RunConfig& config, World& world, const Split& data, std::unique_ptr<Model> whole);

  // From total_idle on: three numbers a stage, then one a rank.
  enum Total { total_loss, total_stop, total_squares, total_right, total_judged, total_distillation, total_idle };

  // A microbatch on its way through this stage: what came for it, and what its forward pass left for the backward pass.
  struct Flight {
    Microbatch data;
    int64_t step = 0;     // of the run, from 0,
    double items = 1;     // and what is learnt in all of it
    int64_t version = 0;  // of the weights, where there are several
    std::vector<PendingTensor> arrived, gradients;  // by crossing, as all of these:
    std::vector<Postbox::Box> arrival_boxes, return_boxes;  // where they come in from other ranks,
    std::vector<TaskId> arrivals, returns;                  // and the tasks that wait for them there
    std::vector<at::Tensor> inputs, outputs;
    at::Tensor loss;
    at::Tensor distillation;    // of the loss, where there is a teacher
    DeferredGradients weights;  // that a backward pass left to a task of their own
    int64_t bytes = 0;          // that are held for what is still to be done
  };
  // A part of the model on this rank, and the microbatches on their way through it.
  struct Chunk {
    std::unique_ptr<Stage> stage;
    ParameterList parameters;
    std::function<void(size_t layer)> before_layer;
    int64_t remembered = -1;          // running statistics know of the run's microbatches before this one; -1: of all
    std::vector<Flight> flights;      // by microbatch
    std::vector<Flight> evaluations;  // the same, of held-out samples
  };
  // A step of a pipeline that never drains, as tasks.
  struct FlowStep {
    StepGraph tasks;
    Graph graph;
    std::unique_ptr<ListSchedule> schedule;
    int64_t forwards = 0;
  };
  // Of such a pipeline: what has set out and come back, in numbers of the run's microbatches.
  struct FlowState {
    Flow plan;
    WeightVersions versions;
    int64_t forwarded = 0, returned = 0, next = 0, total = 0;
    std::map<std::array<int64_t, 4>, FlowStep> steps;  // by what makes them differ
    FlowStep* running = nullptr;
    std::deque<LoadedStep> loaded;
    std::vector<double> scales;  // of a round's gradients: samples of the batch to its own
    double lr_share = 1, squares = 0;
    // What other stages share, which changes a step later: see stage_ties.cpp.
    struct TiePart {
      size_t bucket;
      at::Tensor gradients;  // of the last step
    };
    struct {
      std::vector<TiePart> parts;
      bool owed = false;  // they have not been summed,
      int64_t step = 0;   // are of this step,
      double lr = 0;      // and for this rate
      double squares = 0;
    } ties;
    // Reports to rank 0, and its orders, which are obeyed `lag` steps later.
    std::vector<Postbox::Box> tellers;
    std::vector<at::Tensor> told;
    std::vector<TaskId> told_tasks;
    Postbox::Box orders = 0;
    at::Tensor ordered;
    TaskId order_task = 0;
    std::vector<bool> decided;
    int64_t lag = 1, steps_done = 0;
    bool together = true;
    // After a resume: forward passes that are to be done again.
    bool replays = false;
    int64_t replayed = -1, total_then = 0;
  };
  // Who waits and who carries: an executor with nothing to do helps both.
  struct Carriers final : Helper {
    Communicator* communicator = nullptr;
    Postbox* postbox = nullptr;
    World* world = nullptr;
    bool help(bool may_be_kept) override {
      return (postbox && postbox->help(may_be_kept)) || communicator->help(may_be_kept);
    }
    // Peers may be waiting for this rank, and it for them: they hear of the error before anybody waits any more.
    void cancel(const std::exception_ptr& error) override {
      world->announce(error);
      if (postbox) postbox->cancel(error);
    }
  };

  int64_t totals_length() const { return total_idle + 3 * mesh_.stages + world_.size(); }
  void take_parts(const Model& whole, const LayerTable& table);
  void open_step();
  void make_flights(size_t chunk, MessageKind kind, size_t count);
  void join_groups();
  void open_postbox(const MailPeers& peers, at::Device device);
  void open_loose();
  void tell_pipeline();
  void update_loosely();
  void evaluate_now(StepReport& report);
  StepReport own_report(int64_t sent_before, double batches_before);
  void complete(StepReport& report);
  StepReport keep_for_later(StepReport report);
  StepReport settle();
  bool meets_after(int64_t step) const;
  void tell_times(StepReport& report);
  void tell_traffic(StepReport& report);
  BucketSums* sums() { return loose_ ? loose_->sums() : sums_.get(); }
  void bear_trial() const;
  void open_flow();
  void open_reports();
  FlowStep& flow_step(bool obeys);
  void expect_at(TaskId id, const StepTask& task);
  Flight& setting_out(size_t pass);
  Flight& coming_back(size_t pass);
  size_t slot_of(int64_t microbatch) const;
  void load_ahead(int64_t forwards);
  void flow_forward(int64_t pass);
  void flow_backward(int64_t pass);
  void flow_update(size_t round);
  double clipped_scale(double scale, double squares, int64_t step) const;
  void open_ties();
  void put_ties_aside();
  void sum_tie(TaskId task, size_t bucket);
  void change_ties();
  void settle_ties();
  void report_flow();
  void run_flow_step();
  OwnState flow_state();
  bool fits_flow(const OwnState& state) const;
  void replay();
  bool had_passed(int part) const;
  // What the tasks of a step do: of one that drains, or an evaluation; of its end under a loose kind; of one that never
  // drains.
  std::function<void()> work_of(TaskId id, const StepTask& task);
  std::function<void()> loose_work_of(TaskId id, const StepTask& task);
  std::function<void()> flow_work_of(TaskId id, const StepTask& task);
  Communicator::Done completion(TaskId task) {
    return [this, task](std::exception_ptr error) { executor_.complete(task, error); };
  }
  void build_evaluation();
  void open_box(MessageKind kind, size_t chunk, size_t microbatch, size_t crossing);
  void hand_on(MessageKind kind, const Crossing& crossing, size_t microbatch, const at::Tensor& tensor);
  // A microbatch's number in its step, the same on all ranks that pass it.
  int number_of(size_t microbatch) const {
    return plan_.dealing.number_of(world_.rank(), static_cast<int>(microbatch % pieces_.size()));
  }
  Flight& flight_of(MessageKind kind, size_t chunk, size_t microbatch) {
    return (kind == MessageKind::evaluation ? chunks_[chunk].evaluations : chunks_[chunk].flights)[microbatch];
  }
  void load_step();
  void forward(size_t chunk, size_t microbatch);
  void backward(size_t chunk, size_t microbatch);
  void compute_weights(size_t chunk, size_t microbatch, int32_t slice);
  void compute(const Chunk& chunk, Flight& flight);
  int64_t held(Owner owner) const;  // on the device that this rank computes on
  void note_peak();
  void release(Flight& flight);
  void evaluate_one(size_t chunk, size_t microbatch);
  void finish_pass();
  TraceSpan on_card(const char* what, int64_t index) const;
  void fill_totals();
  void judge();
  void decide();
  void count_update();
  void measure(size_t bucket);
  void update(size_t bucket, int64_t number, double lr, double scale);
  // With gradients that come after the step has ended: changes the parameters by those of a bucket, or of all, once.
  void catch_up(size_t bucket);
  void catch_up();
  void find_layers();
  at::Tensor gather_replicas(const at::Tensor& given);
  void share_buffers();
  // Where microbatches are dealt over replicas, each remembers its own: see stage_statistics.cpp.
  bool deals_statistics() const;
  void remember_dealt(Chunk& chunk, int64_t number);
  void with_statistics(const std::function<void()>& use);
  Pass pass_of(const Chunk& chunk, const Flight& flight) const;
  Documents documents_of(const at::Tensor& starts) const;
  at::Tensor on_device(const at::Tensor& tensor) const;
  at::Tensor inputs_of(const at::Tensor& inputs) const;  // of a batch, as the model takes them

  const RunConfig& config_;
  World& world_;
  const Split& data_;
  const Plan plan_;
  const Mesh& mesh_ = plan_.mesh;
  const std::vector<Share> pieces_;  // of the training batch: this rank's microbatches
  const int64_t samples_;            // in them
  const int64_t numbers_;            // microbatches of a step that pass this rank's pipeline
  at::Device device_;
  int64_t model_parameters_ = 0, model_trained_ = 0, model_layers_ = 0;  // of all stages
  int64_t widest_crossing_ = 0;        // bytes of a sample between two layers, at most
  bool first_ = false, last_ = false;  // whether this rank has the model's first, and its last part
  std::vector<Chunk> chunks_;
  std::unique_ptr<Model> model_;
  std::vector<Tie> ties_;
  CodecConfig codec_;                         // of sums, as it was asked for or chosen
  GradientSync::Groups groups_, sum_groups_;  // of ranks; and the same ones for sums by a codec
  // With a loose kind, by stage of this rank's replica: what they tell each other of a step.
  struct {
    std::vector<Postbox::Box> boxes;
    std::vector<at::Tensor> told;  // loss, squares, the wish to stop
    std::vector<TaskId> tasks;     // that wait for it
  } pipeline_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Teacher> teacher_;  // of the last stage, with distill.from
  DeviceTrace device_trace_;
  std::unique_ptr<LooseSync> loose_;
  std::unique_ptr<Postbox> postbox_;  // none without messages; goes before those that its thread calls

  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<StepBuilder> steps_;
  Carriers carriers_;
  RealClock clock_;
  Executor executor_;
  std::unique_ptr<BucketSums> sums_;  // with a codec, where a step waits for them
  std::unique_ptr<GradientSync> sync_;
  GradientSync::Sends sends_;
  std::unique_ptr<FlowState> flow_;
  GatherReplicas replicas_;  // where BatchNorms need the samples of all of them
  Graph step_graph_, evaluation_graph_;
  size_t recomputed_ = 0;  // so many layers, the model's first, are computed again

  std::unique_ptr<StepLoader> loader_;
  std::vector<Share> evaluated_;        // of the held-out samples
  size_t backwards_ = 0;                // begun in this step
  DeferredGradients weight_gradients_;  // of the pass that runs now
  DeviceEvent last_pass_;               // on a card
  bool settles_ = false;  // a pass is given to the card when its messages are there, and one at a time ahead
  at::Tensor loss_sum_;   // over this rank's samples, on the device
  at::Tensor distillation_sum_;
  double evaluated_items_ = 0;
  at::Tensor right_;                 // in an evaluation: samples whose class this rank told, on the device
  int64_t judged_ = 0;               // of so many
  at::Tensor totals_;                // summed over ranks: see Total; on the host
  std::vector<at::Tensor> squares_;  // of each bucket's gradients

  Progression progression_;
  int64_t own_step_ = 0;  // of this rank, from 1: the one that runs now
  bool begun_ = false;
  bool wants_stop_ = false, stop_agreed_ = false;
  struct {                 // where the totals of a step are summed while the next one runs
    bool open = false;     // those of the last step have not been summed,
    bool settles = false;  // and must be before the next step begins
    StepReport report;     // of the last step, to be completed with them
  } late_;
  double grad_norm_ = 0, scale_ = 1, lr_ = 0;
  struct {
    std::vector<bool> buckets;  // whose gradients are on their way, or there, and have not been used
    int64_t number = 0;         // of the update,
    double lr = 0;              // and its rate
  } behind_;
  double last_reduce_idle_s_ = 0, step_begun_s_ = 0;
  double awaited_s_ = 0;  // parameters that were on their way, in this step
  int64_t kept_bytes_ = 0, most_kept_bytes_ = 0, largest_flight_bytes_ = 0;
  struct {
    int64_t activations = 0, working = 0;
  } backward_began_;  // what was held then: what is computed again comes on top of what was kept
  const std::function<void()> note_peak_ = [this] { note_peak(); };
  bool update_ = true;
};

}  // namespace trireme
