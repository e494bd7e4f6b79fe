// The CPU executor's core: buffers, packed weights, a flat list of fused ops, and the team that runs them.
//
// Built once from Python (src/trimaran/kernels/native.py lowers a Program to these calls), then run() once per step.
#pragma once
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "activations.h"
#include "attention_plan.h"
#include "experts.h"
#include "kernels.h"
#include "latent.h"
#include "memory.h"
#include "pack.h"
#include "sampler.h"
#include "step.h"
#include "team.h"
#include "weight_memory.h"

namespace trimaran {

struct ProgramOptions {
  std::string isa;
  int threads;
  StepLimits limits;
  bool int8_activations;
  KvFormat kv_format;
  bool share_prefixes;              // pages that several sequences share are read once for all of them
  size_t weight_bytes;              // of all matrices and vectors, each rounded up by Arena::padded
  const uint8_t* packed = nullptr;  // where they lie packed already, as weights() of an equal program gave them
};

// Ops name buffers, matrices, vectors and ropes by the ids that the add_ functions returned; -1 is none.
enum class RowIndex { kToken, kPosition, kType };
struct EmbedOp {
  int out, weight;
  float scale;
  RowIndex index;  // which row of the weight a row of the step gets
};
struct NormOp {
  int out, x, weight;
  float eps;
};
struct LayerNormOp {
  int out, x, weight, bias;
  float eps;
};
struct LinearOp {
  int out, x, weight, bias;
  int norm;  // RMSNorm of x comes first
  float eps;
  bool gather;  // x has all rows, out only those that need logits
  Epilogue epilogue;
  int residual;
  bool gather_residual;  // the residual has all rows, out only those that need logits
  bool wide;             // int8 activations keep 15 bits
  bool reuse;            // the previous linear prepared the same rows
};
struct HeadNormOp {
  int weight;
  float eps;
  bool whole;  // one mean over all heads
};
struct AttentionOp {
  int out, qkv, cache, layer, heads, rope;
  float scale;
  HeadNormOp q_norm, k_norm;
  bool causal;
  int plan = -1;
};
struct RouteOp {
  int out, logits, bias;
  Routing routing;
};
struct ExpertsOp {
  int out, x, routes, gate_up, down;  // these two are stacks
  int top_k;
  int norm;  // RMSNorm of x comes first
  float eps;
  int residual;
};
struct HeadLinearOp {
  int out, x, weights;  // a stack
};
struct LatentOp {
  int out, q_latent, q, kv, selected, cache, layer, heads, latent, rope, norm;
  float scale, eps;
  int plan = -1;
};
struct SelectOp {
  int out, q, k, weights, cache, layer, heads, rope, norm, norm_bias;
  float eps;
  int plan = -1;
};
struct GluOp {
  int out, gate_up;
  Epilogue activation;  // kSwiglu or kGeglu
};
struct GeluOp {
  int out, x;
};
struct TanhOp {
  int out, x;
};
struct AddOp {
  int out, a, b;
};
struct TakeRowsOp {
  int out, x;
};
struct MeanRowsOp {
  int out, x;
};
struct LogitsOp {
  int x;
};
using Op = std::variant<EmbedOp, NormOp, LayerNormOp, LinearOp, AttentionOp, HeadLinearOp, LatentOp, SelectOp, RouteOp,
                        ExpertsOp, GluOp, GeluOp, TanhOp, AddOp, TakeRowsOp, MeanRowsOp, LogitsOp>;

class Program {
 public:
  explicit Program(const ProgramOptions& options);

  int add_buffer(int width, bool logits_rows);
  // Matrices and vectors that are packed already come without numbers.
  int add_matrix(const WeightView& view, bool paired);
  // An int8 matrix in two planes: for the linear that makes the logits, and for embeddings. It takes int8 activations.
  int add_head(const WeightView& view);
  // The matrices of all experts.
  int add_experts(const WeightView& view, bool paired);
  // A vector of n floats, zero-padded; `paired`: a bias in the strip order of a paired matrix.
  int add_vector(const float* data, int n, bool paired);
  // Tables [positions][dims / 2]; query_scale [positions] or null: what queries are multiplied with afterwards.
  int add_rope(const float* cos, const float* sin, const float* query_scale, int positions, int dims);
  // Caches of one group share pages; page 0 is the null page. `window`: see GroupLimits.
  int add_group(int num_pages, int window);
  // From now on steps say what they expect of the group's pages.
  void tag_pages(int group, PageTags held) { group_limits_[group].held = held; }
  // Keys and values of some layers, in a group's pages behind the caches that are there already.
  // `wide`: the layers that are held as wider() says.
  int add_heads_cache(int group, int layers, int kv_heads, int head_dim, const std::vector<int>& wide);
  // Scales of a static format, in which pages are held or exported: [2][layers][kv heads] of keys, then of values.
  void set_scales(int cache, KvFormat format, const float* scales);
  int add_latent_cache(int group, int layers, int latent, int rope);
  int add_index_cache(int group, int layers, int dim);
  void add_op(Op op);
  // The ops that follow are a list of their own: steps of prompts run them in place of those before.
  void begin_prefill_ops() { prefill_ops_ = ops_.size(); }
  // Allocates buffers and pages; call once, after everything was added.
  void finish();

  // Ties the team's threads to cores, all but the caller's: see Team::pin.
  void pin_threads(const std::vector<int>& cores) { team_.pin(cores); }

  // Names the page tables that steps from now on read, and may be called between two steps only.
  void read_tables(PageTables tables) {
    check_running(false);
    step_.read_tables(std::move(tables));
  }

  // One step in two halves. begin() checks the inputs and sets the team to work; it throws std::invalid_argument on
  // values out of range, and nothing has begun then. finish_step() joins in and returns when the step is done. The
  // arrays must not change in between, and nothing else may be called: std::logic_error. `prefill`: by the ops after
  // begin_prefill_ops(). What a step gives is written from row `first_result` on; the rows before keep what they hold.
  void begin(const StepArrays& arrays, bool want_logits, bool prefill, int first_result);
  // The running step's sequences whose pages were not what was expected.
  const std::vector<int>& faulty() const { return step_.faulty(); }
  double check_seconds() const { return step_.check_seconds(); }
  void finish_step();

  // Chooses a token for some rows of the last step's logits, shared out among the team. The rows of a draft follow each
  // other and have one sampler. One that remembers tokens is asked row after row, up to the first that does not count.
  struct Asked {
    Sampler* sampler;
    int row;
    int64_t position;
    const uint32_t* mask;  // [ceil(vocab / 32)], or null
    int32_t after;         // of a draft: what the row before must have given, or this one counts for nothing; -1: none
  };
  void choose(const std::vector<Asked>& asked, std::vector<Choice>& choices);

  // Pages of a group as an executor with pages of format `to` holds them, [pages][page_bytes(group, to)]; and back, in
  // this executor's own format. Numbers of pages have been checked.
  void export_pages(int group, const std::vector<int32_t>& pages, KvFormat to, uint8_t* out);
  void import_pages(int group, const std::vector<int32_t>& pages, const uint8_t* data);
  size_t page_bytes(int group, KvFormat format) const;

  // From now on every op is timed on member 0, its wait for the others included. After each step the vector, by op,
  // holds the seconds of that step. Call after finish(); the vector never moves again.
  const std::vector<double>& profile();

  const int32_t* greedy() const { return greedy_.data(); }
  float* logits() const { return reinterpret_cast<float*>(logits_.data()); }
  float* running_logits() const { return logits() + size_t(first_result_) * logits_stride(); }
  int logits_stride() const { return round_up(options_.limits.result, kStrip); }
  const ProgramOptions& options() const { return options_; }
  const uint8_t* weights() const { return weights_.data(); }
  size_t weight_bytes() const { return weights_.used(); }
  size_t kv_bytes() const;

 private:
  struct Buffer {
    int width, stride;
    bool logits_rows;
    float* data;
  };
  struct PagePart {  // one cache's share of a page, layer by layer
    enum Kind { kHeads, kLatents, kIndexKeys } kind;
    int layers, kv_heads;
    int width, rope;  // of a head, of a latent and its key part, or of an indexer's key
    int cache = -1;   // of heads: its number, and the layers that are held as wider() says
    std::vector<bool> wide = {};

    KvFormat format_of(int layer, KvFormat f) const { return !wide.empty() && wide[layer] ? wider(f) : f; }
  };
  struct Group {
    size_t page_bytes;  // so far
    std::vector<PagePart> parts;
    HugeMemory pages;
  };
  struct HeadsCache {
    struct Layer {
      KvFormat format;
      size_t offset;  // in a page
    };
    int group;
    std::vector<Layer> layers;
    int kv_heads, head_dim;
    std::vector<float> scales[2];  // of fp8-static and int8-static, as set_scales() takes them

    const float* scales_of(KvFormat format, int layer) const;  // of a layer's keys; null unless static
    HeadScale scale_of(KvFormat format, int layer, int head) const;
  };
  struct TokenCache {  // of latents or of an indexer's keys
    int group;
    size_t offset;  // of its first layer in a page
    int layers;
    size_t token_bytes;
  };
  struct Rope {
    std::vector<float> cos, sin, query_scale;
    int dims;
  };
  struct alignas(128) Worker {  // what one thread needs for itself
    Activations row{};          // one prepared row
    uint8_t* strip = nullptr;
    float* attention = nullptr;
    std::vector<Best> best;
    bool has_best = false;
    std::vector<GroupTerms> terms;  // the shortlist's part of rows and groups, and of rows
    std::vector<float> squares, reach, least;
    std::vector<Best> likeliest, likeliest_of_all;
    int scanned = 0, rescored = 0;  // strips of the head in this step
  };

  class ExpertsRun;  // csrc/experts.cpp

  struct Walk {  // the team's job: all ops in order
    Program* program;
    void operator()(Team::Member& m) { program->walk(m); }
  };

  void walk(Team::Member& m);
  void check_running(bool running) const;
  int rows_of(int buffer) const { return buffers_[buffer].logits_rows ? step_.logits() : step_.rows(); }
  float* row_of(int buffer, int row) const { return buffers_[buffer].data + size_t(row) * buffers_[buffer].stride; }
  // Sharing out a linear layer's strips, or units of it: how many make a ticket.
  int units_per_ticket(size_t unit_bytes, int units) const;
  int strips_per_ticket(const Matrix& w, int rows) const;
  template <class Work>
  void share_rows(Team::Member& m, int rows, Work&& work) {
    constexpr int kTicketsPerThread = 8;
    team_.share(m, rows, std::max(1, rows / (team_.size() * kTicketsPerThread)), work);
  }
  bool quantises(const Matrix& w) const { return is_integer(w.format) && options_.int8_activations; }
  bool prepares(const LinearOp& op) const { return quantises(matrices_[op.weight]) || op.norm >= 0 || op.gather; }
  // What a member does before its first ticket of a linear layer.
  void begin_strips(const LinearOp& op, Worker& worker, int rows);
  Prepare prepare_for(int input, int norm, float eps, bool quantise, const Activations& to) const;
  Prepare prepare_for(const LinearOp& op, const Activations& to) const;
  // Packs what lies beside codebooks; `one` is the first of the view's matrices.
  void add_outliers(const WeightView& view, Matrix& one);
  void plan_experts();
  // csrc/attention.cpp
  void plan(AttentionOp& op);
  Attention attention_for(const AttentionOp& op, const Team::Member& m) const;
  bool takes_rows(const AttentionOp& op) const { return buffers_[op.out].logits_rows; }
  int window_of(const AttentionOp& op) const { return group_limits_[heads_[op.cache].group].window; }
  // Finds what norms over all heads of a row divide by.
  void find_inverse_rms(const AttentionOp& op, Team::Member& m);

  // csrc/transfer.cpp
  size_t layer_bytes(const PagePart& part, KvFormat format) const;
  // The slices of `bytes` that lie `offset` bytes behind a page's beginning.
  PageSlices slices(int group, size_t offset, size_t bytes) const;
  template <class F>
  void for_slices(int group, KvFormat to, F&& f) const;
  void convert_slice(const PagePart& p, int layer, int head, const uint8_t* slice, KvFormat to, uint8_t* out,
                     float* scratch) const;

  // csrc/latent.cpp
  int add_token_cache(int group, const PagePart& part);
  void plan(LatentOp& op);
  void plan(SelectOp& op);
  TokenLayer token_layer(int cache, int layer) const;
  Rotation rotation(int rope) const;
  template <class Work>
  void share_tokens(Team::Member& m, Work&& work);

  void run_op(const EmbedOp& op, Team::Member& m);
  void run_op(const NormOp& op, Team::Member& m);
  void run_op(const LayerNormOp& op, Team::Member& m);
  void run_op(const LinearOp& op, Team::Member& m);
  void run_op(const AttentionOp& op, Team::Member& m);
  void run_op(const RouteOp& op, Team::Member& m);
  void run_op(const ExpertsOp& op, Team::Member& m);
  void run_op(const HeadLinearOp& op, Team::Member& m);
  void run_op(const LatentOp& op, Team::Member& m);
  void run_op(const SelectOp& op, Team::Member& m);
  void run_op(const GluOp& op, Team::Member& m);
  void run_op(const GeluOp& op, Team::Member& m);
  void run_op(const TanhOp& op, Team::Member& m);
  void run_op(const AddOp& op, Team::Member& m);
  void run_op(const TakeRowsOp& op, Team::Member& m);
  void run_op(const MeanRowsOp& op, Team::Member& m);
  void run_op(const LogitsOp& op, Team::Member& m);
  void find_greedy(const LinearOp& op, const Linear& job, Team::Member& m);
  Best likeliest_of_all(int row) const;
  void judge_scan();
  void collect_greedy();

  ProgramOptions options_;
  const Kernels& kernels_;
  std::vector<Buffer> buffers_;
  std::vector<Matrix> matrices_;
  std::vector<ExpertStack> stacks_;
  std::vector<const float*> vectors_;
  std::vector<Rope> ropes_;
  std::vector<Op> ops_;
  size_t prefill_ops_ = 0;  // where those of prompts begin; 0: all rows have the same
  std::vector<AttentionPlan> plans_;
  std::vector<float> q_inverse_, k_inverse_;  // by row, of the running attention
  std::vector<Worker> workers_;
  std::vector<ExpertWorker> expert_workers_;
  WeightMemory weights_;
  Arena scratch_, expert_scratch_;
  std::vector<GroupLimits> group_limits_;
  std::vector<Group> groups_;
  std::vector<HeadsCache> heads_;
  std::vector<TokenCache> tokens_;
  std::vector<LatentPlan> latent_plans_;
  std::vector<SelectPlan> select_plans_;
  size_t token_scratch_ = 0;  // floats that the kernels of latents and indexers need
  HugeMemory logits_;
  Activations rows_{};    // prepared rows of the running linear
  Activations hidden_{};  // of experts: the input of their second matrix, by expert and row
  std::vector<int32_t> greedy_;
  std::vector<RowSampler> row_samplers_;  // by member; made on first use
  float stayed_ = 0;                      // of the strips of the head, the share that stays after a scan, of late
  int whole_heads_ = 0;                   // greedy choices that read the whole head before the next scan
  std::vector<float> upper_;              // of the shortlist, [strips][rows]
  std::vector<double> op_seconds_;        // of the last step; empty: ops are not timed
  Step step_;
  Walk walk_{this};
  bool want_logits_ = false, running_ = false;
  size_t first_op_ = 0, end_op_ = 0;  // of the running step
  int first_result_ = 0;
  Team team_;  // last: its threads may be in a step that was started, and end before what they read does
};

}  // namespace trimaran
